"""The table command of docs/analytic.md runs, and the document holds what it prints."""

from __future__ import annotations

import sys

from tests.conftest import ROOT

sys.path.insert(0, str(ROOT / "examples"))
import analytic_view


def test_the_document_holds_the_grid_table() -> None:
    document = (ROOT / "docs" / "analytic.md").read_text()
    assert "\n".join(analytic_view.grid_table()) in document
    written = document.partition(analytic_view.BEGIN)[2].partition(analytic_view.END)[0]
    assert all(f"| {name} |" in written for name, _, _ in analytic_view.SPACES)
