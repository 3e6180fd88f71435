"""Command lines of optimum-rbln and vllm-rbln. Source: their own argument parsing, 0.11.1 to 0.12.0."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from slotgrid.config import ServingConfig
from slotgrid.errors import InputError
from slotgrid.stacks.rbln.artifact import Artifact
from slotgrid.stacks.rbln.releases import FILES, RESIZE_SINCE

STRATEGY = "VLLM_RBLN_DECODE_BATCH_BUCKET_STRATEGY"
MANUAL_BUCKETS = "VLLM_RBLN_DECODE_BATCH_BUCKET_MANUAL_BUCKETS"
USE_TORCH_COMPILE = "VLLM_RBLN_USE_VLLM_MODEL"


@dataclass(frozen=True)
class Command:
    """One command: environment variables and words. ``text`` is what to paste into a shell."""

    purpose: str
    words: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The command as typed in a shell."""
        settings = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " ".join([*settings, shlex.join(self.words)])

    def to_dict(self) -> dict[str, object]:
        """The command as JSON values."""
        return {"purpose": self.purpose, "environment": dict(self.environment), "words": list(self.words)}


def compile_command(
    config: ServingConfig,
    *,
    model_id: str,
    max_seq_len: int,
    devices: int | None,
    output_dir: str | None = None,
) -> list[str]:
    """Words of the ``optimum-rbln-cli`` call that compiles ``config``.

    KV slots equal the batch size unless ``kvcache_num_blocks`` says otherwise, so it is named only then.
    """
    folder = output_dir or (
        f"{model_id.rsplit('/', 1)[-1].lower()}-b{'-'.join(map(str, config.buckets))}-s{config.slots}"
    )
    # a single size without brackets would be read as a number, not as a list
    sizes = ",".join(map(str, config.buckets)) if len(config.buckets) > 1 else f"[{config.buckets[0]}]"
    words = ["optimum-rbln-cli", "--output-dir", folder, "--model-id", model_id]
    words += ["--batch_size", str(config.max_running), "--decoder_batch_sizes", sizes]
    words += ["--max_seq_len", str(max_seq_len)]
    if devices is not None:
        words += ["--num_devices", str(devices)]
    if config.slots != config.max_running:
        words += ["--kvcache_num_blocks", str(config.slots)]
    return words


def resize_command(folder: str, blocks: int, *, output_dir: str) -> list[str]:
    """Words of the ``optimum-rbln-cli`` call (since 0.12.0) that copies a compiled folder with another number of
    KV blocks; the original stays as it is."""
    return [
        "optimum-rbln-cli",
        "--model-id",
        folder,
        "--set-kvcache-num-blocks",
        str(blocks),
        "--output-dir",
        output_dir,
    ]


def build_command(
    config: ServingConfig,
    *,
    model_id: str,
    max_seq_len: int,
    devices: int | None,
    output_dir: str,
    release: str,
    artifact: Artifact | None = None,
) -> Command:
    """The cheapest command that gives ``config``: a resize where only the number of blocks differs from
    ``artifact`` and the release can do it, else a compilation. Raises InputError for an unknown release or a
    config the eager path cannot be compiled for."""
    check_release(release)
    if config.buckets[-1] != config.max_running:
        raise InputError(
            f"max_running: {config.max_running} with top bucket {config.buckets[-1]}; on RBLN both are the batch size"
        )
    if config.slots == 1 and config.max_running > 1:
        raise InputError(
            f"slots: 1 with batch size {config.max_running}: the one block is kept back for padding; at least 2"
        )
    if artifact is not None:
        problem = why_not_resize(artifact, config, max_seq_len=max_seq_len, devices=devices, release=release)
        if problem is None:
            words = resize_command(artifact.folder, config.slots, output_dir=output_dir)
            return Command("resize", tuple(words))
    words = compile_command(config, model_id=model_id, max_seq_len=max_seq_len, devices=devices, output_dir=output_dir)
    return Command("compile", tuple(words))


def why_not_resize(
    artifact: Artifact, config: ServingConfig, *, max_seq_len: int, devices: int | None, release: str
) -> str | None:
    """Why a compiled folder cannot be resized to ``config``; None when it can.

    The command line itself does not refuse a cache of fixed size: it would write the new number of blocks beside
    buffers of the old size. Only caches the folder marks as left to the compiler are really resized.
    """
    if (
        artifact.config.buckets != config.buckets
        or artifact.config.max_running != config.max_running
        or artifact.max_seq_len != max_seq_len
        or devices not in (None, artifact.devices)
    ):
        return "more than the number of KV slots differs"
    if artifact.config.slots == config.slots:
        return f"it already has {config.slots} KV slots"
    if _release_key(release) < _release_key(RESIZE_SINCE):
        return f"optimum-rbln {release} cannot; {RESIZE_SINCE} is the first that can"
    if config.slots < config.max_running:
        return f"fewer blocks ({config.slots}) than the batch size ({config.max_running}) are refused by the command"
    if not artifact.resizable:
        return "its cache has a fixed size (is_auto is false), as optimum-rbln writes it for eager attention"
    return None


def serve_command(folder: str, *, port: int | None = None, observe: str | None = None) -> Command:
    """``vllm serve`` of a compiled folder with what the measurements need: reuse, per-request cached tokens in the
    answers, the prefix manager's debug lines and the end-of-run statistics. ``observe``: file for the plugin."""
    words = ["vllm", "serve", folder, "--enable-prefix-caching", "--enable-prompt-tokens-details"]
    if port is not None:
        words += ["--port", str(port)]
    environment = {"VLLM_LOGGING_LEVEL": "DEBUG", "VLLM_RBLN_METRICS": "1"}
    if observe is not None:
        environment["SLOTGRID_OBSERVE"] = observe
    return Command("serve", tuple(words), environment)


def torch_compile_command(
    config: ServingConfig, *, model_id: str, max_seq_len: int, release: str, port: int | None = None
) -> Command:
    """``vllm serve`` on the torch.compile path (CR100), where buckets are a matter of starting the server.

    0.12.0 takes ``--rbln-decode-batch-bucket-*`` flags; before it the same settings are environment variables.
    KV slots do not exist on this path; only buckets and the running limit are named. Raises InputError when the top
    bucket is not the running limit, which the server refuses.
    """
    check_release(release)
    if config.buckets[-1] != config.max_running:
        raise InputError(
            f"buckets: the top bucket {config.buckets[-1]} must equal max_running {config.max_running} on this path"
        )
    words = ["vllm", "serve", model_id, "--max-num-seqs", str(config.max_running)]
    words += ["--max-model-len", str(max_seq_len), "--enable-prefix-caching", "--enable-prompt-tokens-details"]
    if port is not None:
        words += ["--port", str(port)]
    environment = {"VLLM_LOGGING_LEVEL": "DEBUG", "VLLM_RBLN_METRICS": "1"}
    if _release_key(release) >= _release_key("0.12.0"):
        words += ["--model-impl", "vllm", "--rbln-decode-batch-bucket-strategy", "manual"]
        # last, since it takes as many numbers as follow
        words += ["--rbln-decode-batch-bucket-manual-buckets", *map(str, config.buckets)]
    else:
        environment |= {
            USE_TORCH_COMPILE: "1",
            STRATEGY: "manual",
            MANUAL_BUCKETS: ",".join(map(str, config.buckets)),
        }
    return Command("serve", tuple(words), environment)


def check_release(release: str) -> None:
    """Raise InputError unless the vllm-rbln release is known."""
    if release not in FILES:
        raise InputError(f"release: {release!r} is not known; known are {', '.join(FILES)}")


def _release_key(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split(".post")[0].split("."))
