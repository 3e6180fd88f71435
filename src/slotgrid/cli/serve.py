"""``slotgrid serve``: a compiled artifact behind an OpenAI-compatible API."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from slotgrid.cli._common import JsonOption, note


def serve(
    artifact: Annotated[Path, typer.Argument(help="Artifact of slotgrid compile.", metavar="ARTIFACT")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)] = 8000,
    slots: Annotated[int | None, typer.Option(help="KV slots, at most those compiled.")] = None,
    max_running: Annotated[int | None, typer.Option(help="Running limit; the top bucket unless given.")] = None,
    rules: Annotated[str, typer.Option(help="real or paper.")] = "real",
    events: Annotated[Path | None, typer.Option(help="Write an event log (JSONL) to this new file.")] = None,
    api_key: Annotated[
        str | None, typer.Option(help="Key that /v1 requests must carry.", envvar="SLOTGRID_API_KEY")
    ] = None,
    served_model_name: Annotated[
        str | None, typer.Option(help="Model name in the API; the model's own unless given.")
    ] = None,
    drain: Annotated[str, typer.Option(help="How long open requests may still run after SIGTERM or ctrl-c.")] = "30s",
    max_body: Annotated[str, typer.Option(help="Largest request body.")] = "4MiB",
    max_open: Annotated[int, typer.Option(help="Open requests before new ones get a 503.", min=1)] = 4096,
    as_json: JsonOption = False,
) -> None:
    """Serve a compiled artifact until SIGTERM or ctrl-c; needs slotgrid[serve].

    With --json, one line of JSON with the base URL is printed as soon as requests are answered.
    """
    from slotgrid.serve.artifact import load_artifact
    from slotgrid.serve.require import require
    from slotgrid.units import parse_quantity

    require("slotgrid serve", "jax", "starlette", "uvicorn", "prometheus_client")
    from slotgrid.serve.server import ServerOptions
    from slotgrid.serve.server import serve as run_server

    made = load_artifact(artifact)
    config = made.config(slots, max_running)
    options = ServerOptions(
        config=config,
        rules=rules,
        host=host,
        port=port,
        model_name=served_model_name or made.shape.name,
        api_key=api_key,
        events=events,
        drain_s=parse_quantity(drain, "time", "--drain"),
        max_body_bytes=round(parse_quantity(max_body, "size", "--max-body") * 2**30),
        most_open=max_open,
    )

    def on_ready(url: str) -> None:
        if as_json:
            # one line, so that a script can read it while the server runs
            ready = {"base_url": url, "model": options.model_name, "config": config.to_dict(), "rules": rules}
            print(json.dumps(ready), flush=True)
        note(f"serving {options.model_name} ({config.label}, {rules} rules) on {url}; ctrl-c ends it")

    run_server(made, options, on_ready=on_ready, note=note)
