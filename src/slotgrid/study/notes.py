"""Notes on what was priced outside the measured range, of many runs as few."""

from __future__ import annotations

import re
from collections.abc import Sequence

_SPAN = re.compile(r"(prefills of |decode steps with up to )([\d to]+)( tokens .*| running .*)")
_NUMBER = re.compile(r"\d+")


def merge_notes(notes: Sequence[str]) -> tuple[str, ...]:
    """Notes of many runs on what was outside the measured range as one range each, so that they can be read."""
    spans: dict[tuple[str, str], list[int]] = {}
    for text in notes:
        # "prefills of 149 to 330 tokens (measured ...)", "decode steps with up to 10 running (measured ...)"
        match = _SPAN.fullmatch(text)
        head, numbers, tail = (text, "", "") if match is None else match.groups()
        spans.setdefault((head, tail), []).extend(map(int, _NUMBER.findall(numbers)))
    merged = []
    for (head, tail), numbers in spans.items():
        span = "" if not numbers else f"{min(numbers)} to {max(numbers)}"
        if head.endswith("up to "):
            span = str(max(numbers))
        merged.append(head + span + tail)
    return tuple(merged)
