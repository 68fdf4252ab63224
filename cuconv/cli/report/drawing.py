"""How pictures look: white, without decoration, with colours that everyone can tell apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from textwrap import wrap
from typing import Any, NamedTuple

SIZE, DPI = (16, 9), 100
"""1600 × 900 pixels, and letters that are still read at half that size."""

# Okabe and Ito, "Color universal design", 2008.
BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
INK, GREY, FAINT = "#222222", "#666666", "#E4E4E4"

STYLE = {
    "font.size": 18,
    "axes.titlesize": 18,
    "axes.titlelocation": "left",
    "axes.edgecolor": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.labelcolor": INK,
    "grid.color": FAINT,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "lines.markersize": 11,
    "lines.markeredgewidth": 2.2,
    "lines.linewidth": 2.5,
    "legend.frameon": False,
    "legend.handletextpad": 0.2,
    "legend.columnspacing": 1.3,
}


class Look(NamedTuple):
    """The look of a series of points; those of cuconv are filled."""

    marker: str
    colour: str
    is_filled: bool = True

    @property
    def hollow(self) -> Look:
        return self._replace(is_filled=False)

    @property
    def properties(self) -> dict[str, Any]:
        """The arguments of matplotlib for this look."""
        face = self.colour if self.is_filled else "white"
        return {"marker": self.marker, "color": self.colour, "markerfacecolor": face, "zorder": 2 + self.is_filled}


OUR_LOOK = Look("o", BLUE)
PEER_LOOKS = [
    Look(marker, colour, False)
    for marker, colour in zip("s^DvPXh", (VERMILLION, GREEN, PURPLE, ORANGE, SKY, INK, GREY), strict=True)
]


def looks_of(libraries: Iterable[str]) -> dict[str, Look]:
    """Looks of libraries, given out in the order of their names."""
    return dict(zip(sorted(set(libraries)), cycle(PEER_LOOKS), strict=False))


def new_figure(title: str, source: str) -> Any:
    """A figure with a title above and the source of its numbers below."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE, facecolor="white")
    figure.text(0.02, 0.965, title, fontsize=25, fontweight="bold", va="top")
    # Lines for each machine.
    lines = "\n".join(line for each in source.split("; ") for line in wrap(each, 150))
    figure.text(0.02, 0.008, lines, fontsize=14, color=GREY, va="bottom")
    return figure


def draw_legend(figure: Any, looks: Mapping[str, Look]) -> None:
    """One line below the title."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], linestyle="none", label=name, **look.properties) for name, look in looks.items()]
    if handles:
        figure.legend(handles=handles, loc="upper left", bbox_to_anchor=(0.012, 0.91), ncols=len(handles))


def draw_line(axes: Any, points: Sequence[tuple[float, float]], look: Look, linestyle: str = "-") -> None:
    axes.plot([x for x, _ in points], [y for _, y in points], linestyle=linestyle, **look.properties)


def draw_points(axes: Any, points: Sequence[tuple[float, float]], look: Look) -> None:
    draw_line(axes, points, look, "none")


def label_ends(axes: Any, ends: Mapping[str, float], colours: Mapping[str, str]) -> None:
    """Names beside the right ends of lines, which are at these heights."""
    to_axes = axes.transData + axes.transAxes.inverted()
    names = sorted(ends, key=lambda name: (ends[name], name))
    heights = [float(to_axes.transform((1.0, ends[name]))[1]) for name in names]
    for name, height in zip(names, apart(heights, 0.11), strict=True):
        axes.text(1.04, height, name, color=colours[name], transform=axes.transAxes, va="center", fontsize=17)


def apart(rising: Sequence[float], gap: float) -> list[float]:
    """Numbers at least this far apart, halfway between pushing them up from the first and down from the last."""
    up, down = list(rising), list(rising)
    for i in range(1, len(up)):
        up[i] = max(up[i], up[i - 1] + gap)
        down[-1 - i] = min(down[-1 - i], down[-i] - gap)
    return [(a + b) / 2 for a, b in zip(up, down, strict=True)]


def as_plain_numbers(axis: Any) -> None:
    """1000, not 10³."""
    from matplotlib.ticker import FuncFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def up_to_copy(axes: Any) -> None:
    """An axis of fractions of the speed of a copy, a little more where that is exceeded."""
    axes.set_xlim(0, max(1.03, axes.dataLim.x1 + 0.03))
    axes.axvline(1.0, color=GREY, zorder=1)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "0.25", "0.5", "0.75", "copy"])


def say(axes: Any, text: str) -> None:
    """Text in the middle of empty axes."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=GREY)
