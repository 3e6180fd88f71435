"""What there is before a run stays out of its collections."""

from __future__ import annotations

import gc

import pytest

from slotgrid.measure.garbage import only_new_garbage


def test_only_new_objects_are_looked_at() -> None:
    before = [[] for _ in range(100)]
    with pytest.raises(RuntimeError), only_new_garbage():
        new: list[object] = [[]]
        watched = {id(item) for item in gc.get_objects()}
        assert id(new) in watched
        assert id(before) not in watched
        raise RuntimeError
    assert id(before) in {id(item) for item in gc.get_objects()}
