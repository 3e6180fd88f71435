"""Files as they lie in a run directory: gzip or not, read in blocks, with progress and bounded memory."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from slotgrid.errors import InputError

# (bytes read, bytes in all), as they lie on disk
Progress = Callable[[int, int], None]

# small: what is made of a block, line by line, is many times as large
BLOCK_BYTES = 1 << 20
_decode = json.JSONDecoder().decode
_GZIP_MAGIC = b"\x1f\x8b"
# zlib: window size, and a gzip header
_GZIP = 31


class Meter:
    """Counts the bytes read of all files of a directory and tells whoever watches."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self.total = total
        self.done = 0
        self._progress = progress

    def add(self, count: int) -> None:
        """Count bytes that were read, and tell the progress."""
        self.done += count
        if self._progress is not None:
            self._progress(min(self.done, self.total), self.total)


def _chunks(raw: BinaryIO, meter: Meter | None, size: int) -> Iterator[bytes]:
    while chunk := raw.read(size):
        if meter is not None:
            meter.add(len(chunk))
        yield chunk


class Piece:
    """One file read in blocks. ``cut`` is True once it turned out to end in the middle of its gzip stream."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cut = False

    def blocks(self, meter: Meter | None = None, block_bytes: int = BLOCK_BYTES) -> Iterator[bytes]:
        """Uncompressed bytes in blocks. Raises InputError when unreadable or not the gzip it claims to be."""
        self.cut = False
        try:
            with open(self.path, "rb") as raw:
                packed = raw.read(2) == _GZIP_MAGIC
                raw.seek(0)
                chunks = _chunks(raw, meter, block_bytes)
                yield from self._unpacked(chunks, block_bytes) if packed else chunks
        except zlib.error as error:
            raise InputError(f"{self.path}: not readable gzip ({error})") from None
        except OSError as error:
            raise InputError(f"{self.path}: {error.strerror or error}") from None

    def _unpacked(self, chunks: Iterator[bytes], block_bytes: int) -> Iterator[bytes]:
        """What a gzip stream holds, all of it up to where it is cut; several streams one after another count as one."""
        unpack = zlib.decompressobj(_GZIP)
        for chunk in chunks:
            left = chunk
            while left:
                if unpack.eof:
                    unpack = zlib.decompressobj(_GZIP)
                block = unpack.decompress(left, block_bytes)
                left = unpack.unused_data if unpack.eof else unpack.unconsumed_tail
                if block:
                    yield block
        self.cut = not unpack.eof

    def head(self, size: int = 1 << 16) -> bytes:
        """The first bytes, at most ``size``."""
        data = b""
        for block in self.blocks(block_bytes=size):
            data += block
            if len(data) >= size:
                break
        return data[:size]


def json_lines(path: Path, meter: Meter | None, warn: Callable[[str], None]) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number from 1, object) of a JSONL file, gzip or not; empty lines are skipped.

    A last line without its newline that is not whole is left out with a warning. Raises InputError naming file
    and line for anything else that is not a JSON object.
    """
    piece = Piece(path)
    rest = b""
    number = 0
    for block in piece.blocks(meter):
        lines = (rest + block).split(b"\n")
        rest = lines.pop()
        for line in lines:
            number += 1
            if line.strip():
                yield number, _object(line, path, number)
    number += 1
    if rest.strip():
        try:
            last = _object(rest, path, number)
        except InputError:
            warn(f"{path.name}: line {number}, the last, is cut; it was left out")
            return
        yield number, last
    elif piece.cut:
        warn(f"{path.name}: the gzip stream ends in the middle; read up to line {number - 1}")


def _object(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        value = _decode(line.decode())
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: line {number}: not UTF-8 text at byte {error.start}; expected JSON") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{path}: line {number}, column {error.colno}: {error.msg}") from None
    except RecursionError:
        raise InputError(f"{path}: line {number}: nested too deeply") from None
    if not isinstance(value, dict):
        raise InputError(f"{path}: line {number}: not a JSON object; each line must be one")
    return value
