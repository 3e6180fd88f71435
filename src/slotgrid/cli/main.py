"""The ``slotgrid`` command: one module per subcommand; each parses, calls one function, prints."""

from __future__ import annotations

import io
import os
import sys
from typing import Annotated

import typer
from typer.exceptions import TyperException

from slotgrid._version import __version__
from slotgrid.cli import (
    calibrate,
    capacity,
    compile,
    diagnose,
    explain,
    measure,
    plan,
    profile,
    propose,
    rbln,
    replay,
    saturate,
    search,
    serve,
    simulate,
    steady,
    study,
    workload,
)
from slotgrid.errors import SlotgridError

# what a shell reports for a process that ctrl-c ended
INTERRUPTED = 130

app = typer.Typer(
    name="slotgrid",
    help="Choose KV slots and decode batch buckets for a compile-time-static LLM server, before compiling it.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(plan.app, name="plan")
app.add_typer(workload.app, name="workload")
app.add_typer(profile.app, name="profile")
app.add_typer(rbln.app, name="rbln")
app.add_typer(study.app, name="study")
app.command("simulate")(simulate.simulate)
app.command("search")(search.search)
app.command("explain")(explain.explain)
app.command("propose")(propose.propose)
app.command("capacity")(capacity.capacity)
app.command("steady")(steady.steady)
app.command("diagnose")(diagnose.diagnose)
app.command("compile")(compile.compile_)
app.command("serve")(serve.serve)
app.command("replay")(replay.replay)
app.command("saturate")(saturate.saturate)
app.command("null")(saturate.null)
app.command("calibrate")(calibrate.calibrate)
app.command("measure")(measure.measure)


def _version(value: bool) -> None:
    if value:
        print(f"slotgrid {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Entry point. Exit code 0 for success, 1 for a run that failed, 2 for bad input, 130 after ctrl-c."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        # a file name may hold bytes that no encoding knows
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code; errors are one line on stderr."""
    command = typer.main.get_command(app)
    try:
        code = command.main(arguments, prog_name="slotgrid", standalone_mode=False)
        sys.stdout.flush()
        if code == INTERRUPTED:
            print("slotgrid: interrupted", file=sys.stderr)
        return code if isinstance(code, int) else 0
    except SlotgridError as error:
        print(f"slotgrid: error: {error}", file=sys.stderr)
        return error.exit_code
    except TyperException as error:
        message = error.format_message()
        if type(error).__name__ == "NoArgsIsHelpError":
            # a command group without a command: its help page
            print(message, file=sys.stderr)
        else:
            print(f"slotgrid: error: {' '.join(message.split())} (see --help)", file=sys.stderr)
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        print("slotgrid: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # the reader went away (e.g. `| head`): nothing more to say, and nothing to flush at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        print(f"slotgrid: error: {error.filename or 'output'}: {error.strerror or error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    main()
