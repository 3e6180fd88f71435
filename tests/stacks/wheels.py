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
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
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


class _Any(type):
    def __getattr__(cls, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Any(name, (_Anything,), {})


class _Anything(metaclass=_Any):
    """Base of every stubbed name: a class that can be subclassed, subscripted, called and used as a decorator."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __call__(self, *arguments: object, **_: object) -> object:
        return arguments[0] if arguments else None

    def __enter__(self) -> object:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __class_getitem__(cls, _: object) -> type:
        return cls


class _Stub(types.ModuleType):
    """Stands for a module that needs a native library: any name in it is a fresh empty class."""

    __path__ = ()

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        value = _Any(name, (_Anything,), {"__module__": self.__name__})
        setattr(self, name, value)
        return value


class _StubFinder:
    """Gives a stub for every module below some packages, except those in ``real``, which come from the wheel."""

    def __init__(self, roots: tuple[str, ...], real: tuple[str, ...], folder: Path) -> None:
        self._roots = roots
        self._real = real
        self._folder = folder

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name.split(".")[0] not in self._roots:
            return None
        if name in self._real:
            return spec_from_file_location(name, self._folder / f"{name.replace('.', '/')}.py")
        return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return _Stub(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


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
    with _only(stubs, None):
        yield


@contextmanager
def served(release: str, real: tuple[str, ...]) -> Iterator[None]:
    """As :func:`imported`, but of the whole stack only the modules in ``real`` come from the wheel; every other one
    below vllm, vllm_rbln, optimum, torch and rebel is a stub."""
    finder = _StubFinder(("vllm", "vllm_rbln", "optimum", "torch", "rebel"), real, site_packages(release))
    with _only({"torch": torch_stub(), "vllm_rbln.logger": _log_module()}, finder):
        yield


@contextmanager
def _only(stubs: dict[str, types.ModuleType], finder: _StubFinder | None) -> Iterator[None]:
    """Put stubs and a finder in place, and take out again whatever was imported below them."""
    owned = {name.split(".")[0] for name in stubs} | {"vllm", "vllm_rbln", "optimum", "rebel"}

    def take_out() -> dict[str, types.ModuleType]:
        return {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] in owned}

    before = take_out()
    sys.modules.update(stubs)
    if finder is not None:
        sys.meta_path.insert(0, finder)  # type: ignore[arg-type]
    try:
        yield
    finally:
        if finder is not None:
            sys.meta_path.remove(finder)  # type: ignore[arg-type]
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
