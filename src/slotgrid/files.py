"""Reading and writing files so that a stopped command never leaves a half-written one."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from slotgrid.errors import InputError


def read_bytes(path: str | Path) -> bytes:
    """Whole file. Raises InputError naming the file when it cannot be read."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None


def read_json(path: str | Path) -> Any:
    """Parse a JSON file. Raises InputError with file, line and column when it is not JSON."""
    return parse_json(read_bytes(path), str(path))


def parse_json(data: bytes, where: str) -> Any:
    """Parse JSON bytes; NaN and infinities are refused as JSON does not know them."""
    if not data.strip():
        raise InputError(f"{where}: the file is empty; expected JSON")
    try:
        return json.loads(data, parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: not UTF-8 text at byte {error.start}; expected JSON") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{where}: line {error.lineno}, column {error.colno}: {error.msg}") from None
    except _ConstantError as error:
        raise InputError(f"{where}: {error} is not a JSON number; allowed are finite numbers") from None
    except RecursionError:
        raise InputError(f"{where}: nested too deeply") from None


class _ConstantError(ValueError):
    pass


def _refuse_constant(name: str) -> Any:
    raise _ConstantError(name)


@contextlib.contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Give a temporary path beside ``path``; on success it takes the place of ``path``, else it is removed.

    Raises InputError naming ``path`` when the folder cannot be written or the disk is full.
    """
    target = Path(path)
    with _named(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        os.close(handle)
    temporary = Path(name)
    try:
        with _named(target):
            yield temporary
            os.chmod(temporary, 0o666 & ~_umask())
            os.replace(temporary, target)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Write a text file whole or not at all."""
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())


def write_json(path: str | Path, value: Any, *, indent: int | None = 1) -> None:
    """Write a JSON file whole or not at all; NaN is refused."""
    write_text(path, json.dumps(value, indent=indent, allow_nan=False) + "\n")


def write_with(path: str | Path, writer: Callable[[Path], object]) -> None:
    """Let ``writer`` fill a temporary file that then takes the place of ``path``."""
    with replacing(path) as temporary:
        writer(temporary)


def write_table(path: str | Path, writer: Callable[[Path], object]) -> None:
    """:func:`write_with` for a polars writer, whose errors hide the operating system's."""
    import polars as pl

    def write(temporary: Path) -> None:
        try:
            writer(temporary)
        except pl.exceptions.PolarsError as error:
            raise OSError(str(error).splitlines()[0].rpartition("IO error: ")[2]) from None

    write_with(path, write)


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: cannot write: {error.strerror or error}") from None


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
