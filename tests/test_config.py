"""ServingConfig: what is allowed, and what the errors say."""

from __future__ import annotations

from typing import Any

import pytest

import slotgrid as sg


def test_defaults_follow_the_top_bucket() -> None:
    config = sg.ServingConfig((1, 2, 4, 8))
    assert (config.slots, config.max_running) == (8, 8)
    assert [config.bucket_for(n) for n in range(1, 9)] == [1, 2, 4, 4, 8, 8, 8, 8]
    assert sg.ServingConfig.from_dict(config.to_dict()) == config
    assert sg.ServingConfig([1, 8], slots=9).label == "1,8@9"
    assert sg.ServingConfig.parse("1,8@9") == sg.ServingConfig((1, 8), slots=9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"buckets": ()}, "buckets: empty"),
        ({"buckets": (1, 4, 2)}, "buckets: 2 after 4; sizes must ascend"),
        ({"buckets": (1, 4, 4)}, "buckets: 4 appears twice"),
        ({"buckets": (0, 4)}, "buckets: 0 is below 1"),
        ({"buckets": (1, 2.5)}, "buckets: 2.5 is not a whole number"),
        ({"buckets": (1, "x")}, "buckets: 'x' is not a whole number"),
        ({"buckets": (1, 4), "max_running": 5}, "the top bucket 4 is below max_running 5"),
        ({"buckets": (1, 4), "max_running": 0}, "max_running: 0 is below 1"),
        ({"buckets": (1, 4), "slots": 0}, "slots: 0 is below 1"),
    ],
)
def test_bad_configurations_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(sg.InputError, match=message):
        sg.ServingConfig(**arguments)


@pytest.mark.parametrize("text", ["", "1,two", "1,2@", "1;2"])
def test_bad_text_is_named(text: str) -> None:
    with pytest.raises(sg.InputError, match="not a list of whole numbers"):
        sg.ServingConfig.parse(text)
