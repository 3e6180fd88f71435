"""Quantities with units."""

from __future__ import annotations

import pytest

import slotgrid as sg
from slotgrid.units import parse_quantity, to_base


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("30m", "time", 1800.0),
        ("500ms", "time", 0.5),
        ("0.8 ms", "time", 0.0008),
        ("2h", "time", 7200.0),
        ("1e3us", "time", 0.001),
        ("15.7GiB", "size", 15.7),
        ("512MiB", "size", 0.5),
    ],
)
def test_values(text: str, dimension: str, value: float) -> None:
    assert parse_quantity(text, dimension, "--x") == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("30", r"--x: '30' has no unit; write e\.g\. 30s"),
        ("30 parsecs", "--x: unknown unit 'parsecs'; allowed: s, ms"),
        ("5GiB", "--x: unknown unit 'GiB'"),
        ("soon", "--x: 'soon' is not a number with a unit"),
        ("-3s", "--x: '-3s' is negative"),
        ("1e999s", "--x: inf is not a finite number"),
    ],
)
def test_bad_text_is_named(text: str, message: str) -> None:
    with pytest.raises(sg.InputError, match=message):
        parse_quantity(text, "time", "--x")


def test_decimals_stay_decimals() -> None:
    assert to_base(9.87, "ms", "time", "x") == 0.00987
    assert to_base(12.97, "ms", "time", "x") == 0.01297
