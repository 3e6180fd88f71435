"""Many short names in little memory: one run of bytes and where each begins, looked up by hash."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


class Names:
    """A list of names (bytes); an absent one is None. A third of the memory of a list of str."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._ends = array("q")
        self._absent: set[int] = set()

    def add(self, name: bytes | None) -> int:
        """Append a name; returns its index."""
        if name is None:
            self._absent.add(len(self._ends))
        else:
            self._bytes += name
        self._ends.append(len(self._bytes))
        return len(self._ends) - 1

    def __len__(self) -> int:
        return len(self._ends)

    def raw(self, index: int) -> bytes | None:
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
        return len(self._absent) < len(self._ends)

    def hashes(self, form: Callable[[bytes], bytes | None] | None = None) -> Ints:
        """64-bit hash of each name, or of what ``form`` makes of it; 0 where there is none."""

        def one(index: int) -> int:
            raw = self.raw(index)
            made = raw if raw is None or form is None else form(raw)
            return 0 if made is None else hash(made)

        return np.fromiter((one(i) for i in range(len(self))), np.int64, len(self))

    def doubles(self) -> Iterator[tuple[int, int]]:
        """(index of the first, index of a later one) for every name that is there more than once."""
        hashes = self.hashes()
        order = np.argsort(hashes, kind="stable")
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

    def find(self, other: Names, form: Callable[[bytes], bytes | None]) -> Iterator[tuple[int, int]]:
        """(index here, index there) wherever ``form`` of a name of ``other`` is a name here. Names here are unique."""
        mine = self.hashes()
        order = np.argsort(mine, kind="stable")
        theirs = other.hashes(form)
        at = np.searchsorted(mine[order], theirs)
        at[at == len(order)] = 0
        hit = np.flatnonzero((theirs != 0) & (mine[order][at] == theirs)) if len(order) else np.empty(0, np.int64)
        for r in hit.tolist():
            raw = other.raw(r)
            i = int(order[at[r]])
            if raw is not None and self.raw(i) == form(raw):
                yield i, r
