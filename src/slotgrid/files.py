"""Reading and writing files so that a stopped command never leaves a half-written one."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotgrid.errors import InputError

if TYPE_CHECKING:
    import polars as pl

# key of a table's metadata: what the table belongs to
OWNER = "slotgrid.owner"
# a disk with less room than this is full
_NO_ROOM_BYTES = 1 << 16


def read_bytes(path: str | Path) -> bytes:
    """Whole file. Raises InputError naming the file when it cannot be read."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None


def first_line(path: str | Path) -> bytes:
    """First line of a file without its end. Raises InputError naming the file when it cannot be read."""
    try:
        with open(path, "rb") as stream:
            return stream.readline().rstrip(b"\r\n")
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
        place = _place_of_constant(json.loads(data, parse_constant=_Constant))
        raise InputError(f"{where}: {place}{error}, which is not a JSON number; allowed are finite numbers") from None
    except RecursionError:
        raise InputError(f"{where}: nested too deeply") from None
    except ValueError as error:
        raise InputError(f"{where}: {error}") from None


class _ConstantError(ValueError):
    pass


class _Constant(str):
    """NaN or an infinity where it stood in a JSON text."""


def _place_of_constant(value: Any) -> str:
    """Where the first constant stands, as ``clients[0].start_s is ``; empty when it is the whole value."""
    stack = [("", value)]
    while stack:
        place, value = stack.pop()
        if isinstance(value, _Constant):
            return f"{place} is " if place else ""
        if isinstance(value, dict):
            inside = [(f"{place}.{key}" if place else str(key), entry) for key, entry in value.items()]
        elif isinstance(value, list):
            inside = [(f"{place}[{i}]", entry) for i, entry in enumerate(value)]
        else:
            continue
        stack += reversed(inside)
    return ""


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


def utf8_bytes(text: str) -> bytes:
    """A text as UTF-8. What stands for a byte that was none (in a file name, say) is written as ``\\udcfc``."""
    return text.encode("utf-8", "backslashreplace")


def text_writer(text: str) -> Callable[[Path], None]:
    """A writer of one text file, in UTF-8."""

    def write(path: Path) -> None:
        with open(path, "wb") as stream:
            stream.write(utf8_bytes(text))
            stream.flush()
            os.fsync(stream.fileno())

    return write


def json_writer(value: Any, *, indent: int | None = 1) -> Callable[[Path], None]:
    """A writer of one JSON file; NaN is refused at once."""
    return text_writer(json.dumps(value, indent=indent, allow_nan=False) + "\n")


def write_text(path: str | Path, text: str) -> None:
    """Write a text file whole or not at all."""
    write_together({Path(path): text_writer(text)})


def write_json(path: str | Path, value: Any, *, indent: int | None = 1) -> None:
    """Write a JSON file whole or not at all; NaN is refused."""
    write_together({Path(path): json_writer(value, indent=indent)})


def write_together(writers: Mapping[Path, Callable[[Path], object]]) -> None:
    """Write files that belong together: all are whole on disk before the first takes its place.

    Files take their places from last to first, so the first named can vouch for the others. A full disk leaves every
    earlier file as it was. Raises InputError naming the file.
    """
    with contextlib.ExitStack() as stack:
        temporaries = [(path, writer, stack.enter_context(replacing(path))) for path, writer in writers.items()]
        for path, writer, temporary in temporaries:
            with _named(path):
                writer(temporary)


def table_writer(table: pl.DataFrame, *, owner: str) -> Callable[[Path], None]:
    """A writer of one Parquet table that carries ``owner``: the name of what it belongs to, see :func:`read_table`."""

    def write(path: Path) -> None:
        _polars_errors(path, lambda: table.write_parquet(path, metadata={OWNER: owner}))

    return write


def csv_writer(table: pl.DataFrame) -> Callable[[Path], None]:
    """A writer of one table as CSV."""
    return lambda path: _polars_errors(path, lambda: table.write_csv(path))


def read_table(path: Path, *, owner: str | None, owner_file: str) -> pl.DataFrame:
    """Read a Parquet table. Raises InputError when it cannot be read or carries another owner than ``owner_file`` names
    (None: whoever)."""
    import polars as pl

    try:
        _check_name(path)
        carried = pl.read_parquet_metadata(path).get(OWNER)
        if owner is not None and carried != owner:
            raise InputError(f"{path}: does not belong to the {owner_file} beside it; write both again")
        return pl.read_parquet(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise InputError(f"{path}: cannot read: {str(error).splitlines()[0]}") from None


def _polars_errors(path: Path, write: Callable[[], object]) -> None:
    """Polars hides the operating system's error; bring it back."""
    import polars as pl

    _check_name(path)
    try:
        write()
    except pl.exceptions.PolarsError as error:
        if shutil.disk_usage(path.parent).free < _NO_ROOM_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from None
        raise OSError(str(error).splitlines()[0].rpartition("IO error: ")[2]) from None


def _check_name(path: Path) -> None:
    """Polars knows no other names."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise OSError("a name in the path is not UTF-8 text; rename it") from None


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
