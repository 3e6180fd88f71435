"""The compiled engine where its cache cannot be written."""

from __future__ import annotations

import errno

import pytest

from slotgrid.engine._jit import PLAIN_PYTHON, jit


@pytest.mark.skipif(PLAIN_PYTHON, reason="nothing is compiled")
def test_a_full_disk_costs_the_cache_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    from numba.core import caching

    tried = []

    def full(*_: object, **__: object) -> None:
        tried.append(True)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(caching.IndexDataCacheFile, "save", full)

    @jit
    def double(x: int) -> int:
        return 2 * x

    assert double(21) == 42
    assert tried
