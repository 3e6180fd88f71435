"""``slotgrid calibrate``: probes on a server, and the profile they give."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from slotgrid.cli._common import JsonOption, console, note, print_json, whole_numbers


def calibrate(
    output: Annotated[Path, typer.Option("-o", "--output", help="Profile to write (TOML).", metavar="PROFILE")],
    base_url: Annotated[str | None, typer.Option(help="Server to calibrate, e.g. http://127.0.0.1:8000.")] = None,
    artifact: Annotated[
        Path | None, typer.Option(help="Artifact of slotgrid compile, run in this process on the CPU clock instead.")
    ] = None,
    buckets: Annotated[
        str | None, typer.Option(help="Decode batch buckets, if known; detected from the step times otherwise.")
    ] = None,
    events: Annotated[
        Path | None, typer.Option(help="Event log of the server: buckets and running limit are read from it.")
    ] = None,
    top: Annotated[
        int | None, typer.Option(help="Most streams to measure; the running limit unless given.", min=1)
    ] = None,
    max_seq_len: Annotated[
        int | None, typer.Option(help="Tokens a sequence may have; as the server states it unless given.", min=64)
    ] = None,
    repeats: Annotated[int, typer.Option(help="Repeats of each timed replay, at least.", min=3)] = 3,
    most_repeats: Annotated[int, typer.Option(help="Repeats while an interval is wider than 5 %, at most.", min=3)] = 6,
    most_streams: Annotated[int, typer.Option(help="Where the search for the running limit ends.", min=2)] = 64,
    most_slots: Annotated[int, typer.Option(help="Where the search for the slots ends.", min=2)] = 128,
    block_tokens: Annotated[
        int | None, typer.Option(help="Reuse block, where the server does not report cached tokens.", min=1)
    ] = None,
    generated_reusable: Annotated[
        bool | None, typer.Option(help="Whether generated tokens are reused, where that cannot be seen.")
    ] = None,
    slots: Annotated[int | None, typer.Option(help="With --artifact: KV slots, at most those compiled.")] = None,
    max_running: Annotated[int | None, typer.Option(help="With --artifact: running limit.")] = None,
    rules: Annotated[str, typer.Option(help="real or paper: rules of simulations with this profile.")] = "real",
    profile_id: Annotated[
        str | None, typer.Option("--id", help="Id of the profile; the file's name unless given.")
    ] = None,
    stack: Annotated[str, typer.Option(help="Which compile command to print with this profile, e.g. rbln.")] = "",
    hardware: Annotated[str | None, typer.Option(help="What the server runs on, in words.")] = None,
    model: Annotated[str | None, typer.Option(help="Model name in the API; the server's first unless given.")] = None,
    api_key: Annotated[
        str | None, typer.Option(help="Key that requests must carry.", envvar="SLOTGRID_API_KEY")
    ] = None,
    prompts: Annotated[
        str, typer.Option(help="ids: exact prefixes; text: words; auto: ids where the server takes and returns them.")
    ] = "auto",
    ca_file: Annotated[Path | None, typer.Option(help="Certificates to trust instead of the system's.")] = None,
    verify: Annotated[bool, typer.Option(help="Check the server's certificate.")] = True,
    seed: Annotated[int | None, typer.Option(help="Names all prompts and orders; drawn anew unless given.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Remove the replays of an earlier calibration first.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Measure a server's step and prefill costs and its slot rules, and write them as a profile.

    Nothing else may use the server meanwhile. The replays are kept beside PROFILE; a stopped calibration goes on.
    """
    from slotgrid.config import ServingConfig
    from slotgrid.errors import InputError
    from slotgrid.measure.calibrate.calibrate import calibrate as run
    from slotgrid.measure.calibrate.calibrate import require_profile
    from slotgrid.measure.calibrate.profile_text import Stated
    from slotgrid.measure.calibrate.session import Asked
    from slotgrid.measure.calibrate.target import InProcessTarget, Target
    from slotgrid.profile.stack_profile import RULE_NAMES
    from slotgrid.serve.require import require

    if (base_url is None) == (artifact is None):
        raise InputError("give one of --base-url (a server) and --artifact (in this process)")
    if artifact is None and (slots is not None or max_running is not None):
        raise InputError("--slots and --max-running belong to --artifact; a server's own are measured")
    if artifact is not None and events is not None:
        raise InputError("--events belongs to --base-url; an artifact states its own configuration")
    if rules not in RULE_NAMES:
        raise InputError(f"--rules: {rules!r}; allowed: {', '.join(RULE_NAMES)}")
    target: Target
    if artifact is not None:
        require("slotgrid calibrate --artifact", "jax")
        target = InProcessTarget(artifact, rules=rules, slots=slots, max_running=max_running)
    else:
        from slotgrid.measure.calibrate.over_http import HttpTarget, config_of_events
        from slotgrid.measure.http import Endpoint

        endpoint = Endpoint(
            base_url or "", api_key=api_key, ca_file=None if ca_file is None else str(ca_file), verify=verify
        )
        config = None if events is None else config_of_events(events)
        target = HttpTarget(endpoint, model=model, prompts=prompts, config=config)
    length = max_seq_len or target.known.max_seq_len
    if length is None:
        raise InputError("the server does not say how long a sequence may be; give it with --max-seq-len")
    served = target.known.max_seq_len
    if served is not None and length > served:
        raise InputError(f"--max-seq-len: {length}; the server's sequences have at most {served} tokens")
    asked = Asked(
        max_seq_len=length,
        buckets=None if buckets is None else ServingConfig(whole_numbers(buckets, "--buckets")).buckets,
        top=top,
        rounds=repeats,
        most_rounds=max(repeats, most_repeats),
        most_streams=most_streams,
        most_slots=most_slots,
    )
    result = run(
        target=target,
        output=output,
        asked=asked,
        stated=Stated(block_tokens, generated_reusable),
        profile_id=profile_id,
        stack=stack,
        hardware=hardware,
        rules=rules,
        seed=seed,
        again=again,
        say=note if sys.stderr.isatty() else None,
    )
    if as_json:
        print_json(result.to_dict())
    else:
        from slotgrid.report.calibration_table import calibration_report

        calibration_report(result, console())
    require_profile(result, output)
    note(f"profile written to {output}, replays kept in {result.folder}")
