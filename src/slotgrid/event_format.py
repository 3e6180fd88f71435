"""The event format: what a server writes while it runs, one JSON object a line (docs/events.md).

The one place where names, fields and types stand. Writers are observers inside a server and the static engine; readers
turn it into tables. Nothing is imported here that a server would notice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slotgrid.errors import InputError

FORMAT = "slotgrid-events/1"

START = "start"
STEP_START = "step_start"
STEP_END = "step_end"
ALLOCATION = "allocation"
EVICTION = "eviction"
HIT = "hit"
MISS = "miss"
RELEASE = "release"

STEP_KINDS = ("prefill", "decode")
CAUSES = ("admission", "padding", "preemption")
CLOCKS = ("monotonic", "cpu")


@dataclass(frozen=True)
class Field:
    """One field of an event: JSON type ("int", "text", "flag", "object", "list"), meaning with unit, may it be null
    or absent.

    choices: the allowed texts, where there are only these.
    """

    name: str
    kind: str
    meaning: str
    optional: bool = False
    choices: tuple[str, ...] = ()


# every event
COMMON = (
    Field("event", "text", "what happened", choices=()),
    Field("t_ns", "int", "monotonic clock of the host, nanoseconds"),
    Field("pid", "int", "process that wrote it; several may write one file, each starting with its own start event"),
)

FIELDS: dict[str, tuple[Field, ...]] = {
    START: (
        Field("format", "text", "version of this format", choices=(FORMAT,)),
        Field("writer", "text", "what writes, with its version"),
        Field("versions", "object", "package name to version"),
        Field("files", "object", "wrapped file to its SHA-256 (hex)"),
        Field("known", "flag", "all files are ones this writer was tested with"),
        Field("unix_ns", "int", "wall clock at t_ns, nanoseconds since 1970", optional=True),
        Field("clock", "text", "what t_ns counts", optional=True, choices=CLOCKS),
        Field("config", "object", "buckets, slots, max_running", optional=True),
        Field("rules", "text", "rule set of the scheduler", optional=True),
        Field("block_tokens", "int", "tokens a prefix is looked up and prefilled by", optional=True),
    ),
    STEP_START: (
        Field("step", "int", "number of the step in this process, from 0"),
        Field("kind", "text", "prefill or decode", choices=STEP_KINDS),
        Field("running", "int", "requests in a decode step; of a prefill, who waits for it, if known", optional=True),
        Field("bucket", "int", "compiled batch size it runs in; null for a prefill", optional=True),
        Field("request", "text", "request of a prefill", optional=True),
        Field("computed_tokens", "int", "tokens a prefill computes", optional=True),
    ),
    STEP_END: (
        Field("step", "int", "number of the step that ended"),
        Field("finished", "list", "requests it finished: request, output_tokens, reason", optional=True),
    ),
    ALLOCATION: (
        Field("request", "text", "request that got a slot"),
        Field("slot", "int", "its number"),
        Field("blocks", "int", "blocks inside the slot, taken at once", optional=True),
        Field("prompt_tokens", "int", "tokens of the prompt", optional=True),
        Field("arrival_ns", "int", "when it arrived, on the clock of t_ns", optional=True),
        Field("session", "int", "its session, if the client is known", optional=True),
        Field("turn", "int", "its turn in the session, from 0", optional=True),
        Field("prefix", "text", "hash of its first block of prompt tokens", optional=True),
    ),
    EVICTION: (
        Field("slot", "int", "slot that was given up"),
        Field("cause", "text", "who asked for it", choices=CAUSES),
        Field("request", "text", "request whose prefix it held", optional=True),
    ),
    HIT: (
        Field("request", "text", "request that reuses a prefix"),
        Field("cached_tokens", "int", "tokens it reuses, at least 1"),
        Field("slot", "int", "slot they are in", optional=True),
        Field("block_hit_tokens", "int", "tokens the layer below claimed", optional=True),
    ),
    MISS: (
        Field("request", "text", "request that reuses nothing although the layer below claimed a hit"),
        Field("block_hit_tokens", "int", "tokens the layer below claimed"),
    ),
    RELEASE: (
        Field("request", "text", "request that is finished"),
        Field("slot", "int", "its slot, evictable from now on"),
        Field("preempted", "flag", "it was stopped and starts again later", optional=True),
        Field("cancelled", "flag", "its client gave it up", optional=True),
        Field("output_tokens", "int", "tokens it had when it was given up", optional=True),
    ),
}


def check_event(event: Any, where: str) -> None:
    """Raise InputError naming ``where`` and the field unless ``event`` follows the format."""
    if not isinstance(event, Mapping):
        raise InputError(f"{where}: not a JSON object")
    name = event.get("event")
    if name not in FIELDS:
        raise InputError(f"{where}: event is {name!r}; allowed: {', '.join(FIELDS)}")
    for field in (*COMMON, *FIELDS[name]):
        value = event.get(field.name)
        if value is None:
            if not field.optional:
                raise InputError(f"{where}: {name}: {field.name} is missing")
        elif not _fits(value, field.kind):
            raise InputError(f"{where}: {name}: {field.name} is {value!r}; expected {field.kind}")
        elif field.choices and value not in field.choices:
            raise InputError(f"{where}: {name}: {field.name} is {value!r}; allowed: {', '.join(field.choices)}")


def _fits(value: Any, kind: str) -> bool:
    if kind == "int":
        return isinstance(value, int) and not isinstance(value, bool)
    if kind == "flag":
        return isinstance(value, bool)
    if kind == "list":
        return isinstance(value, list)
    if kind == "object":
        return isinstance(value, Mapping)
    return isinstance(value, str)
