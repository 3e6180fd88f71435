"""Reading TOML strictly: every key is asked for, and a key nobody asked for is an error that names it."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from typing import Any

from slotgrid.errors import InputError


def parse_toml(data: bytes, where: str) -> Table:
    """Parse TOML bytes into a strict table. Raises InputError with file and position."""
    if not data.strip():
        raise InputError(f"{where}: the file is empty; expected TOML")
    try:
        return Table(tomllib.loads(data.decode("utf-8")), where, "")
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: not UTF-8 text at byte {error.start}; expected TOML") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{where}: {error}") from None


class Table:
    """One TOML table. ``where`` is the file, ``path`` the dotted keys down to here."""

    def __init__(self, data: dict[str, Any], where: str, path: str) -> None:
        self._data = data
        self._seen: set[str] = set()
        self.where = where
        self.path = path

    def at(self, key: str = "") -> str:
        """``file: a.b.key``, the name of a place in an error."""
        dotted = ".".join(part for part in (self.path, key) if part)
        return f"{self.where}: {dotted}" if dotted else self.where

    def has(self, key: str) -> bool:
        self._seen.add(key)
        return key in self._data

    def raw(self, key: str) -> Any:
        """The value as TOML gave it; raises InputError when the key is missing."""
        if not self.has(key):
            raise InputError(f"{self.at(key)} is missing; the table has: {', '.join(self._data) or 'nothing'}")
        return self._data[key]

    def table(self, key: str) -> Table:
        value = self.raw(key)
        if not isinstance(value, dict):
            raise InputError(f"{self.at(key)} is {value!r}; expected a table")
        return Table(value, self.where, self.at(key).removeprefix(f"{self.where}: "))

    def tables(self, key: str) -> list[Table]:
        value = self.raw(key)
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise InputError(f"{self.at(key)} is not an array of tables")
        path = self.at(key).removeprefix(f"{self.where}: ")
        return [Table(item, self.where, f"{path}[{i}]") for i, item in enumerate(value)]

    def text(self, key: str, default: str | None = None) -> str:
        if default is not None and not self.has(key):
            return default
        value = self.raw(key)
        if not isinstance(value, str):
            raise InputError(f"{self.at(key)} is {value!r}; expected text")
        return value

    def choice(self, key: str, allowed: Sequence[str], default: str | None = None) -> str:
        value = self.text(key, default)
        if value not in allowed:
            raise InputError(f"{self.at(key)} is {value!r}; allowed: {', '.join(allowed)}")
        return value

    def flag(self, key: str, default: bool | None = None) -> bool:
        if default is not None and not self.has(key):
            return default
        value = self.raw(key)
        if not isinstance(value, bool):
            raise InputError(f"{self.at(key)} is {value!r}; expected true or false")
        return value

    def whole(self, key: str, least: int, default: int | None = None) -> int:
        if default is not None and not self.has(key):
            return default
        return self._whole(self.raw(key), least, self.at(key))

    def wholes(self, key: str, least: int, default: Sequence[int] | None = None) -> tuple[int, ...]:
        if default is not None and not self.has(key):
            return tuple(default)
        value = self.raw(key)
        if not isinstance(value, list) or not value:
            raise InputError(f"{self.at(key)} is {value!r}; expected a list of whole numbers")
        return tuple(self._whole(item, least, self.at(key)) for item in value)

    def number(self, key: str, least: float | None = None, default: float | None = None) -> float:
        if default is not None and not self.has(key):
            return default
        return self.check_number(self.raw(key), least, self.at(key))

    def numbers(self, key: str, least: float | None = None) -> tuple[float, ...]:
        value = self.raw(key)
        if not isinstance(value, list) or not value:
            raise InputError(f"{self.at(key)} is {value!r}; expected a list of numbers")
        return tuple(self.check_number(item, least, self.at(key)) for item in value)

    def finish(self) -> None:
        """Raise InputError when the table holds a key that was never asked for."""
        for key in self._data:
            if key not in self._seen:
                raise InputError(f"{self.at(key)}: unknown key; allowed here: {', '.join(sorted(self._seen))}")

    @staticmethod
    def check_number(value: Any, least: float | None, where: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < math.inf:
            raise InputError(f"{where} is {value!r}; expected a finite number")
        if least is not None and value < least:
            raise InputError(f"{where} is {value!r}; allowed: at least {least:g}")
        return value

    @staticmethod
    def _whole(value: Any, least: int, where: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InputError(f"{where} is {value!r}; expected a whole number of at least {least}")
        return value
