"""The artifact directory: what was compiled, from which weights, with which versions.

``artifact.json`` names everything else; a directory that has it is whole. Executables are what
``jax.experimental.serialize_executable`` gives, which contains pickles: load only artifacts you trust.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from slotgrid import files
from slotgrid.config import ServingConfig
from slotgrid.errors import InputError
from slotgrid.serve.shapes import ModelShape

FORMAT = "slotgrid-artifact/1"
CONFIG = "artifact.json"
PREFILL = "prefill"
COPY = "copy"


@dataclass(frozen=True)
class ArtifactFile:
    """A file of the artifact. ``compile_s`` is None for what was not compiled."""

    name: str
    file: str
    bytes: int
    sha256: str
    compile_s: float | None = None


@dataclass(frozen=True)
class Artifact:
    """What is fixed when a server is compiled. Lengths in tokens.

    buckets: compiled decode batch sizes. slots: KV slots, without the spare one for padding rows.
    graphs: one per bucket (``decode-B``), ``prefill`` and ``copy``. data: weights and tokenizer.
    host: the processor, since CPU executables use what the one they were compiled on can do.
    """

    folder: Path
    shape: ModelShape
    buckets: tuple[int, ...]
    slots: int
    max_seq_len: int
    prefill_chunk: int
    platform: str
    device_kind: str
    host: str
    versions: dict[str, str]
    graphs: tuple[ArtifactFile, ...]
    data: tuple[ArtifactFile, ...]

    @property
    def compile_s(self) -> float:
        return sum(graph.compile_s or 0.0 for graph in self.graphs)

    @property
    def total_bytes(self) -> int:
        return sum(entry.bytes for entry in (*self.graphs, *self.data))

    @property
    def kv_bytes(self) -> int:
        """Bytes of KV memory, the spare slot included."""
        return (self.slots + 1) * self.max_seq_len * self.shape.kv_bytes_per_token

    def config(self, slots: int | None = None, max_running: int | None = None) -> ServingConfig:
        """The serving configuration, with fewer slots or a lower running limit when asked for.

        Raises InputError for more than was compiled.
        """
        if slots is not None and slots > self.slots:
            raise InputError(f"--slots: {slots}; this artifact was compiled with {self.slots}, allowed: 1 to that")
        return ServingConfig(self.buckets, slots=self.slots if slots is None else slots, max_running=max_running)

    def to_dict(self) -> dict[str, Any]:
        data = asdict(self)
        del data["folder"]
        return {
            "format": FORMAT,
            **data,
            "buckets": list(self.buckets),
            "compile_s": self.compile_s,
            "total_bytes": self.total_bytes,
            "kv_bytes": self.kv_bytes,
        }

    def read(self, name: str) -> bytes:
        """A file of the artifact by its name, checked against the recorded size and hash."""
        entry = next((entry for entry in (*self.graphs, *self.data) if entry.name == name), None)
        if entry is None:
            raise InputError(f"{self.folder / CONFIG}: no file named {name!r}; the artifact is not complete")
        path = self.folder / entry.file
        content = files.read_bytes(path)
        if len(content) != entry.bytes or hashlib.sha256(content).hexdigest() != entry.sha256:
            raise InputError(f"{path}: not the file that was compiled (size or hash differs); compile again")
        return content


def versions() -> dict[str, str]:
    """Versions an executable depends on."""
    return {name: version(name) for name in ("slotgrid", "jax", "jaxlib")}


def host_name() -> str:
    """The processor as the system names it."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as stream:
        for line in stream:
            if line.startswith("model name"):
                return f"{platform.machine()} {line.partition(':')[2].strip()}"
    return f"{platform.machine()} {platform.processor()}".strip()


def load_artifact(folder: str | Path) -> Artifact:
    """Read ``artifact.json``. Raises InputError naming the file and what is wrong with it."""
    target = Path(folder)
    path = target / CONFIG
    if not path.exists():
        raise InputError(f"{target}: not an artifact (no {CONFIG}); make one with slotgrid compile -o {target}")
    data = files.read_json(path)
    if not isinstance(data, Mapping) or data.get("format") != FORMAT:
        raise InputError(f'{path}: not an artifact; expected "format": "{FORMAT}"')
    try:
        found = Artifact(
            folder=target,
            shape=ModelShape.from_dict(data["shape"]),
            buckets=ServingConfig(data["buckets"]).buckets,
            slots=data["slots"],
            max_seq_len=data["max_seq_len"],
            prefill_chunk=data["prefill_chunk"],
            platform=data["platform"],
            device_kind=data["device_kind"],
            host=data["host"],
            versions=dict(data["versions"]),
            graphs=tuple(ArtifactFile(**entry) for entry in data["graphs"]),
            data=tuple(ArtifactFile(**entry) for entry in data["data"]),
        )
    except KeyError as error:
        raise InputError(f"{path}: {error.args[0]} is missing") from None
    except (TypeError, ValueError) as error:
        raise InputError(f"{path}: {error}") from None
    return found


def add_file(folder: Path, name: str, file: str, content: bytes, compile_s: float | None = None) -> ArtifactFile:
    """Write a file of a new artifact and describe it."""
    files.write_together({folder / file: lambda path: path.write_bytes(content)})
    return ArtifactFile(name, file, len(content), hashlib.sha256(content).hexdigest(), compile_s)


@contextlib.contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A temporary directory beside ``target`` that takes its place on success and is removed otherwise.

    Raises InputError when ``target`` exists and is anything but an artifact, or cannot be written.
    """
    if target.exists() and not (target / CONFIG).exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"{target}: exists and is not an artifact; give another -o")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise InputError(f"{target}: cannot write: {error.strerror or error}") from None
    try:
        temporary.chmod(0o755)
        yield temporary
        try:
            old = temporary.with_name(temporary.name + ".old")
            if target.exists():
                os.replace(target, old)
            os.replace(temporary, target)
        except OSError as error:
            raise InputError(f"{target}: cannot write: {error.strerror or error}") from None
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
