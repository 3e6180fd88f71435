"""``slotgrid rbln``: compiled folders, command lines and the log line of the Rebellions stack."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slotgrid.cli._common import JsonOption, console, note, print_json

if TYPE_CHECKING:
    from slotgrid.profile import StackProfile
    from slotgrid.stacks.rbln.artifact import Artifact

app = typer.Typer(
    help="Rebellions: read compiled folders, write commands, patch the log line.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

FolderArgument = Annotated[Path, typer.Argument(help="Folder compiled by optimum-rbln.", metavar="DIR")]


@app.command()
def inspect(
    folder: FolderArgument,
    profile: Annotated[
        str | None, typer.Option(help="Profile whose memory model prices the whole device; KV only unless given.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say what a compiled folder serves: buckets, KV slots, devices, memory."""
    from slotgrid.profile import load_profile
    from slotgrid.stacks.rbln.artifact import read_artifact

    stack = None if profile is None else load_profile(profile)
    artifact = read_artifact(folder)
    data = artifact.to_dict()
    data["memory_gib_per_device"] = None if stack is None else _memory_gib(stack, artifact)
    if as_json:
        print_json(data)
        return
    _print_artifact(artifact, data["memory_gib_per_device"])


def _memory_gib(stack: StackProfile, artifact: Artifact) -> float:
    return stack.needed_memory().fullest_device_gib(artifact.config)


def _print_artifact(artifact: Artifact, memory_gib: float | None) -> None:
    from rich.table import Table

    config = artifact.config
    screen = console()
    screen.print(f"{artifact.folder}: {artifact.model_class}, compiled by optimum-rbln {artifact.optimum_version}")
    table = Table(box=None, show_header=False)
    table.add_row("buckets", ",".join(map(str, config.buckets)))
    table.add_row("max running", str(config.max_running))
    slots = f"{config.slots} ({artifact.usable_slots} usable"
    slots += ", one is kept for padding)" if artifact.usable_slots < config.slots else ")"
    if artifact.extra_slots:
        slots += f"; {artifact.extra_slots} above the batch size keep prefixes"
    table.add_row("KV slots", slots)
    table.add_row("slot", f"{artifact.slot_tokens} tokens, reused in blocks of {artifact.block_tokens}")
    table.add_row("devices", _known(artifact.devices) + (f" x {artifact.npu}" if artifact.npu else ""))
    for part in artifact.parts:
        table.add_row(f"  {part.name}", f"{_known(part.devices)} devices")
    size = "not known" if artifact.slot_bytes is None else f"{artifact.slot_bytes:,} bytes over all devices"
    table.add_row("one KV slot", size)
    kv_gib = artifact.kv_gib_per_device
    table.add_row("KV per device", "not known" if kv_gib is None else f"{kv_gib:.3f} GiB")
    if memory_gib is not None:
        table.add_row("memory", f"{memory_gib:.2f} GiB on the fullest device, by the profile")
    table.add_row("resizable", "yes (optimum-rbln 0.12)" if artifact.resizable else "no, its cache has a fixed size")
    screen.print(table)


def _known(value: int | None) -> str:
    return "not known" if value is None else str(value)


@app.command()
def commands(
    buckets: Annotated[str, typer.Option(help="Decode batch buckets, e.g. 1,2,4,8 or 1,2,4,8@9 (9 slots).")],
    model: Annotated[str, typer.Option(help="Model id, e.g. Qwen/Qwen3-4B.")],
    slots: Annotated[int | None, typer.Option(help="KV slots; the top bucket unless given.")] = None,
    max_seq_len: Annotated[int, typer.Option(help="Most tokens of a sequence.", min=1)] = 8192,
    devices: Annotated[int | None, typer.Option(help="Devices of one server.", min=1)] = None,
    release: Annotated[str, typer.Option(help="vllm-rbln and optimum-rbln release.")] = "0.11.1",
    artifact: Annotated[
        Path | None, typer.Option(help="Compiled folder to start from; only resized where that is enough.")
    ] = None,
    torch_compile: Annotated[
        bool, typer.Option("--torch-compile", help="The path without a compiled folder (CR100).")
    ] = False,
    output_dir: Annotated[str | None, typer.Option(help="Folder to compile into.")] = None,
    observe: Annotated[str | None, typer.Option(help="File the observation plugin writes.")] = None,
    port: Annotated[int | None, typer.Option(help="Port of the server.", min=1, max=65535)] = None,
    as_json: JsonOption = False,
) -> None:
    """Write the commands that compile (or resize) and serve a configuration."""
    from slotgrid.config import ServingConfig
    from slotgrid.errors import InputError
    from slotgrid.stacks.rbln import commands as build
    from slotgrid.stacks.rbln.artifact import read_artifact

    config = ServingConfig.parse(buckets, slots=slots)
    if torch_compile:
        if artifact is not None or observe is not None:
            raise InputError(
                "--torch-compile: takes neither --artifact nor --observe; that path has no compiled folder"
            )
        found = [
            build.torch_compile_command(config, model_id=model, max_seq_len=max_seq_len, release=release, port=port)
        ]
    else:
        folder = output_dir or f"{model.rsplit('/', 1)[-1].lower()}-b{config.max_running}-s{config.slots}"
        compiled = None if artifact is None else read_artifact(artifact)
        first = build.build_command(
            config,
            model_id=model,
            max_seq_len=max_seq_len,
            devices=devices,
            output_dir=folder,
            release=release,
            artifact=compiled,
        )
        if compiled is not None and first.purpose == "compile":
            problem = build.why_not_resize(compiled, config, max_seq_len=max_seq_len, devices=devices, release=release)
            note(f"{artifact} is not resized: {problem}")
        found = [first, build.serve_command(folder, port=port, observe=observe)]
    if as_json:
        print_json([{**command.to_dict(), "text": command.text} for command in found])
        return
    for command in found:
        print(command.text)


patch_app = typer.Typer(help="The log line of vllm-rbln 0.11.x.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(patch_app, name="patch")

FileOption = Annotated[
    Path | None, typer.Option("--file", help="model_base.py; the one installed in this environment unless given.")
]


@patch_app.command("status")
def patch_status(file: FileOption = None, as_json: JsonOption = False) -> None:
    """Say whether model_base.py is the original, patched or unknown."""
    _patch("status", file, as_json)


@patch_app.command("apply")
def patch_apply(file: FileOption = None, as_json: JsonOption = False) -> None:
    """Write the log line into the original of 0.11.x and keep a backup."""
    _patch("apply", file, as_json)


@patch_app.command("revert")
def patch_revert(file: FileOption = None, as_json: JsonOption = False) -> None:
    """Take the log line out again, byte for byte."""
    _patch("revert", file, as_json)


def _patch(verb: str, file: Path | None, as_json: bool) -> None:
    from slotgrid.stacks.rbln import patch

    found = getattr(patch, verb)(patch.installed_file() if file is None else file)
    if as_json:
        print_json(found.to_dict())
        return
    shipped = f", as in vllm-rbln {', '.join(found.releases)}" if found.releases else ""
    print(f"{found.file}: {found.state}{shipped} (SHA-256 {found.sha256})")
    if found.backup is not None:
        print(f"backup: {found.backup}")
