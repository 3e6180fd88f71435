"""``slotgrid profile``: what was measured of a model on a stack."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from slotgrid.cli._common import JsonOption, console, print_json

app = typer.Typer(help="Look at stack profiles and where their numbers come from.", no_args_is_help=True)


@app.command("list")
def list_(as_json: JsonOption = False) -> None:
    """List the built-in profiles."""
    from slotgrid.profile import built_in_profiles, load_profile

    found = [load_profile(name) for name in built_in_profiles()]
    if as_json:
        print_json([{"id": p.id, "model_id": p.model_id, "hardware": p.hardware} for p in found])
        return
    for profile in found:
        console().print(f"{profile.id}  {profile.model_id} on {profile.hardware}")


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="Built-in profile id or TOML file.", metavar="ID")],
    as_json: JsonOption = False,
) -> None:
    """Show every value of a profile with its kind and source."""
    from slotgrid.profile import load_profile

    data = load_profile(name).to_dict()
    if as_json:
        print_json(data)
        return
    from rich.table import Table

    out = console()
    for key in ("id", "description", "model_id", "hardware", "software", "rules", "sha256"):
        out.out(f"{key}: {data[key]}", highlight=False)
    table = Table(box=None)
    for column in ("value", "", "95 %", "kind", "source"):
        table.add_column(column)
    for entry in data["values"]:
        table.add_row(entry["name"], entry["as_written"], _interval(entry), entry["kind"], entry["source"])
    out.print(table)
    for name, span in data["ranges"].items():
        out.print(f"measured range of {name}: {span or 'not stated'}")
    kv = data["kv"]
    out.print(
        f"kv: slot {kv['slot_tokens']} tokens, block {kv['block_tokens']} tokens, generated tokens "
        f"{'stay' if kv['generated_reusable'] else 'are not'} reusable ({kv['source'] or 'source not stated'}); "
        f"prefill chunk {data['prefill_chunk_tokens']} tokens"
    )
    for finding in data["findings"]:
        value = finding["value"] or f"not decided: {finding['reason']}"
        out.print(f"{finding['name']}: {value} ({finding['samples']} samples; {finding['conditions']})")


def _interval(entry: Mapping[str, Any]) -> str:
    """The interval of a value, relative to it where that is a number."""
    if "interval" not in entry:
        return ""
    low, high = entry["interval"]
    value = entry["value"]
    return f"{low / value - 1:+.1%} {high / value - 1:+.1%}" if value else f"{low:g} to {high:g}"
