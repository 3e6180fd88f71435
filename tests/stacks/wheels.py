"""The public wheels of the stack, pinned by hash in requirements/stack, and their modules without a native runtime."""

from __future__ import annotations

import importlib
import logging
import subprocess
import sys
import types
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PINS = ROOT / "requirements" / "stack"
# kept with the environment, so that a clean environment fetches them anew and `make unit` finds them
CACHE = Path(sys.prefix) / "stack"
# packages whose own __init__ loads the native runtime: replaced by empty ones
_PACKAGES = (
    "vllm_rbln",
    "vllm_rbln.v1",
    "vllm_rbln.v1.core",
    "optimum",
    "optimum.rbln",
    "optimum.rbln.utils",
    "optimum.rbln.transformers",
    "optimum.rbln.transformers.models",
    "optimum.rbln.transformers.models.decoderonly",
)
RELEASES = ("0.11.1", "0.11.1.post1", "0.11.2", "0.12.0")


@cache
def site_packages(release: str) -> Path:
    """A folder with the unpacked wheels of one release; fetched once per environment, checked by hash by pip."""
    target = CACHE / release
    if (target / ".complete").exists():
        return target
    downloads = CACHE / f"{release}.wheels"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--ignore-requires-python", "--only-binary=:all:", "--require-hashes"]
    subprocess.run([*command, "-d", str(downloads), "-r", str(PINS / f"{release}.txt")], check=True)
    for wheel in sorted(downloads.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(target)
    (target / ".complete").touch()
    return target


class _Stub(types.ModuleType):
    """Stands for a module that needs a native library: any name in it is a fresh empty class."""

    __path__ = ()

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        value = type(name, (), {"__module__": self.__name__})
        setattr(self, name, value)
        return value


def _log_module() -> types.ModuleType:
    module = types.ModuleType("vllm_rbln.logger")
    module.init_logger = logging.getLogger  # type: ignore[attr-defined]
    return module


def torch_stub() -> types.ModuleType:
    """The few tensor calls of the prefix-cache manager, on plain lists."""

    class Tensor(list):  # type: ignore[type-arg]
        def fill_(self, value: int) -> None:
            self[:] = [value] * len(self)

        def copy_(self, other: list[int]) -> None:
            raise AssertionError("a slice of a list is a copy; nothing may rely on it")

        def __getitem__(self, key):  # type: ignore[no-untyped-def]
            if isinstance(key, slice):
                view = types.SimpleNamespace()
                view.copy_ = lambda other, key=key: list.__setitem__(self, key, other)
                return view
            return list.__getitem__(self, key)

        def clone(self) -> list[int]:
            return list(iter(self))

    module = _Stub("torch")
    module.int16 = "int16"  # type: ignore[attr-defined]
    module.zeros = lambda count, dtype=None: Tensor([0] * count)  # type: ignore[attr-defined]
    module.tensor = lambda values, dtype=None: list(values)  # type: ignore[attr-defined]
    return module


@contextmanager
def imported(release: str, stand_ins: dict[str, types.ModuleType] | None = None) -> Iterator[None]:
    """Make the wheels of a release importable; modules imported inside are forgotten afterwards.

    The packages' own ``__init__`` files, which load the native runtime, are replaced by empty packages.
    """
    root = site_packages(release)
    stubs: dict[str, types.ModuleType] = {"torch": torch_stub(), "vllm_rbln.logger": _log_module()}
    for package in _PACKAGES:
        module = types.ModuleType(package)
        module.__path__ = [str(root / package.replace(".", "/"))]
        stubs[package] = module
    stubs.update(stand_ins or {})
    owned = {name.split(".")[0] for name in stubs}

    def take_out() -> dict[str, types.ModuleType]:
        return {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] in owned}

    before = take_out()
    sys.modules.update(stubs)
    try:
        yield
    finally:
        take_out()
        sys.modules.update(before)


def load(name: str) -> types.ModuleType:
    """Import a module of the wheels; call inside :func:`imported`."""
    return importlib.import_module(name)


def stub(name: str) -> types.ModuleType:
    """A module whose every name is an empty class."""
    return _Stub(name)


if __name__ == "__main__":
    for _release in RELEASES:
        site_packages(_release)
