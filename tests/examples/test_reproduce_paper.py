"""Every published number is reproduced: the example's own rows, one test each section."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import pytest

from tests.conftest import ROOT


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reproduce_paper", ROOT / "examples" / "reproduce_paper.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_every_row_is_equal(example: ModuleType) -> None:
    rows = list(example.rows())
    assert [row for row in rows if not row.equal] == []
    assert len(rows) == 125


def test_a_wrong_number_would_show(example: ModuleType) -> None:
    assert not example.Row("x", "0.920931", "0.920932").equal
