"""What all still pictures share: size, colours, bytes."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH_IN = 10.0
DPI = 110

# Okabe-Ito: told apart with colour-blind eyes and in grey print
BLUE, SKY, ORANGE, RED, GREEN, GREY = "#0072B2", "#9ECAE9", "#E69F00", "#D55E00", "#009E73", "#9A9A9A"


@dataclass(frozen=True)
class Picture:
    """name: file stem. title and caption: what it shows, in words. png: the image."""

    name: str
    title: str
    caption: str
    png: bytes


def new_figure(height_in: float) -> tuple[Figure, Axes]:
    """A figure of the common width with one pair of axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_IN, height_in), dpi=DPI, layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def png_of(figure: Figure) -> bytes:
    """The picture's bytes."""
    buffer = io.BytesIO()
    # no version or time stamp: the same run gives the same bytes
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def legend_above(axes: Axes, columns: int) -> None:
    """A legend above the axes, which hides nothing."""
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=columns, frameon=False)


def whole_ticks(axis: object) -> None:
    """Ticks at whole numbers only."""
    from matplotlib.axis import Axis
    from matplotlib.ticker import MaxNLocator

    assert isinstance(axis, Axis)
    axis.set_major_locator(MaxNLocator(integer=True))
