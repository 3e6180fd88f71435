"""Many short names in little memory: one run of bytes and where each begins, looked up by hash."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.signedinteger[Any]]
_STRETCH = 16_384


class Names:
    """A list of names (bytes); an absent one is None. A third of the memory of a list of str."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._ends = array("I")
        self._absent: set[int] = set()
        self._lookup: tuple[Ints, npt.NDArray[np.int32]] | None = None

    def add(self, name: bytes | None) -> int:
        """Append a name; returns its index."""
        if name is None:
            self._absent.add(len(self._ends))
        else:
            self._bytes += name
        self._ends.append(len(self._bytes))
        return len(self._ends) - 1

    def forget(self) -> None:
        """Free the names; how many there were stays known."""
        self._bytes = bytearray()
        self._ends = array("I", [0]) * len(self._ends)
        self._lookup = None

    def __len__(self) -> int:
        return len(self._ends)

    def raw(self, index: int) -> bytes | None:
        """The bytes of a name; None where it was absent."""
        if index in self._absent:
            return None
        begin = self._ends[index - 1] if index else 0
        return bytes(self._bytes[begin : self._ends[index]])

    def __getitem__(self, index: int) -> str | None:
        raw = self.raw(index)
        return None if raw is None else raw.decode(errors="replace")

    def __iter__(self) -> Iterator[str | None]:
        return (self[i] for i in range(len(self)))

    @property
    def any_present(self) -> bool:
        """Whether any name was there."""
        return len(self._absent) < len(self._ends)

    def hashes(self) -> Ints:
        """64-bit hash of each name; 0 where there is none."""
        made = array("q", [0]) * len(self._ends)
        with memoryview(self._bytes) as data:
            begin = 0
            for i, end in enumerate(self._ends):
                made[i] = hash(bytes(data[begin:end]))
                begin = end
        for i in self._absent:
            made[i] = 0
        return np.frombuffer(made, np.int64)

    def doubles(self) -> Iterator[tuple[int, int]]:
        """(index of the first, index of a later one) for every name that is there more than once."""
        hashes = self.hashes()
        hashes.sort()
        twice = np.unique(hashes[1:][hashes[1:] == hashes[:-1]])
        del hashes
        twice = twice[twice != 0]
        if not len(twice):
            return
        hashes = self.hashes()
        order = np.flatnonzero(np.isin(hashes, twice))
        order = order[np.argsort(hashes[order], kind="stable")]
        same = np.flatnonzero(hashes[order][1:] == hashes[order][:-1])
        seen: dict[bytes, int] = {}
        for at in same.tolist():
            for index in (int(order[at]), int(order[at + 1])):
                raw = self.raw(index)
                if raw is None:
                    continue
                first = seen.setdefault(raw, index)
                if first != index:
                    yield first, index

    def first_double(self) -> str | None:
        """A name that is there twice, or None."""
        found = next(self.doubles(), None)
        return None if found is None else self[found[0]]

    def find(
        self, names: Iterable[tuple[int, bytes]], form: Callable[[bytes], bytes | None]
    ) -> Iterator[tuple[int, int]]:
        """(index here, index given) where ``form`` of a given (index, name) is a name here. Names here are unique."""
        if self._lookup is None:
            mine = self.hashes()
            order = np.argsort(mine, kind="stable").astype(np.int32)
            mine.sort()
            self._lookup = mine, order
        hashes, order = self._lookup
        if not len(order):
            return
        given = ((r, key) for r, name in names if (key := form(name)) is not None)
        # a stretch at a time: as objects all of them would need much memory
        while made := list(itertools.islice(given, _STRETCH)):
            theirs = np.fromiter((hash(key) for _, key in made), np.int64, len(made))
            at = np.minimum(np.searchsorted(hashes, theirs), len(order) - 1)
            for k in np.flatnonzero(hashes[at] == theirs).tolist():
                r, key = made[k]
                i = int(order[at[k]])
                if self.raw(i) == key:
                    yield i, r

    def forget_lookup(self) -> None:
        """Free what ``find`` keeps between calls."""
        self._lookup = None
