"""Measurements as pictures: PNG files for the README."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cuconv.bench.drift import DECAYS, FORMATS, INPUTS
from cuconv.bench.results import OURS, Kernel
from cuconv.cli.report import tables
from cuconv.cli.report.drawing import (
    BLUE,
    DPI,
    GREEN,
    GREY,
    INK,
    ORANGE,
    OUR_LOOK,
    PURPLE,
    STYLE,
    VERMILLION,
    Look,
    as_plain_numbers,
    draw_legend,
    draw_line,
    draw_points,
    label_ends,
    looks_of,
    new_figure,
    say,
    up_to_copy,
)
from cuconv.cli.report.measured import Measured, batch_text, microseconds, whole
from cuconv.runtime.workload import CHANNELS, TOKENS

_PREFILL, _STEP = ("packed", Look("s", GREEN)), ("convolution step", Look("^", VERMILLION))
_BACKWARD = "backward", Look("v", ORANGE)
OPERATIONS = {
    "causal_conv1d_fn": ("convolution", OUR_LOOK),
    "causal_conv1d_varlen_fn": _PREFILL,
    "causal_conv1d_split": _PREFILL,
    "causal_conv1d_qkv_split": _PREFILL,
    "causal_conv1d_update": _STEP,
    "causal_conv1d_update_split": _STEP,
    "causal_conv1d_update_qkv_split": _STEP,
    "causal_conv1d_bwd": _BACKWARD,
    "causal_conv1d_varlen_bwd": _BACKWARD,
    "selective_state_update": ("state space step", Look("D", PURPLE)),
}
"""The functions that memory bounds."""

STEPS: tuple[tuple[str, str, Mapping[str, Any]], ...] = (
    ("causal_conv1d_update", "states with contiguous columns", {"contiguous": TOKENS, "form": "dense"}),
    ("causal_conv1d_update", "states with contiguous channels", {"contiguous": CHANNELS, "form": "dense"}),
    ("selective_state_update", "bfloat16 states of 128 heads of 64 × 128", {"nheads": 128, "state_dtype": ""}),
    ("selective_state_update", "float32 states of 128 heads of 64 × 128", {"nheads": 128, "state_dtype": "float32"}),
)
"""Decode steps: the function, a description of its sizes, and the sizes."""

EQUAL, UNEQUAL = ("1x8192", "16x512"), ("4096+16x256", "7800+392x1", "512in8192")
"""Lengths of packed sequences."""

MOST_PEERS = 2
"""Most other libraries that are shown beside a bar."""


def draw(folder: Path, measured: Measured) -> list[Path]:
    """Write every picture into an existing folder; returns their paths."""
    from matplotlib import style

    drawn = []
    # The user's configuration and versions are left out, so that files have the same bytes every time.
    with style.context(["default", STYLE], after_reset=True):
        for name, make in PICTURES.items():
            drawn.append(folder / f"{name}.png")
            make(measured).savefig(drawn[-1], dpi=DPI, metadata={"Software": None})
    return drawn


def roofline(measured: Measured) -> Any:
    """Speed against size, beside a copy."""
    figure = new_figure("Memory speed against the bytes that a call moves", tables.run(measured))
    axes = figure.add_axes((0.09, 0.165, 0.88, 0.635))
    copies: dict[float, float] = {}
    looks: dict[str, Look] = {}
    are_peers = False
    for function, (name, look) in OPERATIONS.items():
        for row, peers in measured.kernels(function):
            looks[name] = look
            are_peers |= bool(peers)
            draw_points(axes, [_speed(peer) for peer in peers[:1]], look.hollow)
            draw_points(axes, [_speed(row)], look)
            if row.copy_us:
                copies[row.bytes_moved / 2**20] = row.bytes_moved / row.copy_us * 1e-3
    draw_legend(figure, looks | ({"hollow: fastest peer": Look("o", GREY).hollow} if are_peers else {}))
    axes.set(xscale="log", xlabel="MiB moved", ylabel="GB/s")
    axes.tick_params(axis="x", pad=9)
    as_plain_numbers(axes.xaxis)
    if copies:
        x, y = zip(*sorted(copies.items()), strict=True)
        axes.plot(x, y, color=GREY, zorder=1)
        axes.annotate("copy", (x[-1], y[-1]), (0, 10), textcoords="offset points", color=GREY, ha="right")
        axes.set_ylim(0, 1.1 * max(axes.dataLim.y1, *y))
    else:
        say(axes, tables.MISSING)
    return figure


def _speed(row: Kernel) -> tuple[float, float]:
    assert row.gb_per_s is not None
    return row.bytes_moved / 2**20, row.gb_per_s


def decode(measured: Measured) -> Any:
    """Time against the batch, a panel for each kind of states."""
    figure = new_figure("Time of a decode step of one token against the batch, bfloat16", tables.run(measured))
    panels = [
        [
            (row, peers)
            for row, peers in measured.kernels(function)
            if {"dtype": "bfloat16", "tokens": 1, **wanted}.items() <= whole(function, row.sizes).items()
        ]
        for function, _, wanted in STEPS
    ]
    looks = looks_of(peer.library for rows in panels for _, peers in rows for peer in peers) | {OURS: OUR_LOOK}
    for number, (rows, (function, text, _)) in enumerate(zip(panels, STEPS, strict=True)):
        axes = figure.add_axes((0.08 + 0.485 * (number % 2), 0.57 - 0.43 * (number // 2), 0.285, 0.265))
        axes.set_title(f"{function}\n{text}", fontsize=16)
        axes.set(xscale="log", yscale="log", xlabel="batch", ylabel="µs")
        if rows:
            _steps(axes, rows, looks)
        else:
            say(axes, tables.MISSING)
    return figure


def _steps(axes: Any, rows: Sequence[tuple[Kernel, list[Kernel]]], looks: Mapping[str, Look]) -> None:
    """Lines over the batch, interrupted where the number of channels changes."""
    from matplotlib.ticker import LogLocator

    lines: dict[str, dict[int, list[tuple[float, float]]]] = {}
    batches: dict[int, list[int]] = {}
    for row, peers in rows:
        batch, channels = row.sizes["batch"], row.sizes.get("dim", 0)
        batches.setdefault(channels, []).append(batch)
        for name, time in [("copy", row.copy_us), *((each.library, microseconds(each)) for each in [*peers, row])]:
            if time:
                lines.setdefault(name, {}).setdefault(channels, []).append((batch, time))
    for name, parts in lines.items():
        for points in parts.values():
            if name in looks:
                draw_line(axes, sorted(points), looks[name])
            else:
                axes.plot(*zip(*sorted(points), strict=True), color=GREY, linestyle="--")
    axes.margins(y=0.1)
    axes.set_xticks(sorted(batch for each in batches.values() for batch in each))
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 3)))
    axes.minorticks_off()
    as_plain_numbers(axes.xaxis)
    as_plain_numbers(axes.yaxis)
    of = " and ".join(f"{channels} ({', '.join(map(str, each))})" for channels, each in batches.items() if channels)
    axes.set_xlabel(f"batch, of dim {of}" if of else "batch", fontsize=16)
    ends = {name: max(point for points in parts.values() for point in points)[1] for name, parts in lines.items()}
    label_ends(axes, ends, {name: looks[name].colour if name in looks else GREY for name in ends})


def skew(measured: Measured) -> Any:
    """Packed sequences of unequal lengths beside those of equal ones."""
    title = "Packed prefill, equal and unequal lengths: speed as a fraction of a copy's"
    figure = new_figure(title, tables.run(measured))
    axes = figure.add_axes((0.205, 0.15, 0.76, 0.64))
    rows = {
        row.sizes["sequences"]: [row, *peers[:MOST_PEERS]]
        for row, peers in measured.kernels("causal_conv1d_varlen_fn")
        if {"dtype": "bfloat16", "contiguous": CHANNELS, "snapshots": 0, "form": "", "blocks": 0}.items()
        <= whole("causal_conv1d_varlen_fn", row.sizes).items()
    }
    for place, spec in enumerate((*EQUAL, *UNEQUAL)):
        kernels = rows.get(spec, [])
        top = place - 0.1 - 0.12 * len(kernels)
        for kernel in kernels:
            thickness = 0.44 if kernel.library == OURS else 0.24
            _bar(axes, kernel, top + thickness / 2, thickness - 0.04, BLUE if spec in EQUAL else VERMILLION)
            top += thickness
        if not kernels:
            text, *_ = tables.timed(measured, "causal_conv1d_varlen_fn", {"sequences": spec})
            axes.text(0.01, place, text, va="center", color=GREY)
    looks = {"equal lengths": Look("s", BLUE), "unequal lengths": Look("s", VERMILLION)}
    are_peers = any(len(kernels) > 1 for kernels in rows.values())
    draw_legend(figure, looks | ({"hollow: fastest peers": Look("s", GREY).hollow} if are_peers else {}))
    names = [batch_text(spec).replace(", ", ",\n") for spec in (*EQUAL, *UNEQUAL)]
    axes.set_yticks(range(len(names)), names)
    axes.set(ylim=(len(names) - 0.5, -0.5), xlabel="of the speed of a copy, 8192 tokens × 8192 channels, bfloat16")
    up_to_copy(axes)
    return figure


def _bar(axes: Any, kernel: Kernel, place: float, thickness: float, colour: str) -> None:
    """A bar with its figures inside, or beside it where it is short."""
    share, time = kernel.fraction_of_copy, microseconds(kernel)
    assert share is not None and time is not None
    is_ours, is_long = kernel.library == OURS, share > 0.35
    face, edge = (colour, colour) if is_ours else ("white", GREY)
    axes.barh(place, share, thickness, color=face, edgecolor=edge, linewidth=1.5)
    text = f"{share:.2f}  {tables.figure(time)} µs"
    axes.annotate(
        text if is_ours else f"{kernel.library}  {text}", (share, place), (-8 if is_long else 8, 0),
        textcoords="offset points", ha="right" if is_long else "left", va="center",
        color="white" if is_ours and is_long else INK, fontsize=19 if is_ours else 15,
    )  # fmt: skip


def forward(measured: Measured) -> Any:
    """Shape by shape, a panel for each layout."""
    function = "causal_conv1d_fn"
    figure = new_figure("Convolution of every shape: speed as a fraction of a copy's", tables.run(measured))
    shapes = [(sizes, layouts) for sizes, layouts in tables.by_layout(function) if not sizes["form"]]
    peers = {
        (place, layout): measured.peers(function, sizes)
        for place, (_, layouts) in enumerate(shapes)
        for layout, sizes in layouts.items()
    }
    looks = {OURS: OUR_LOOK} | looks_of(peer.library for each in peers.values() for peer in each)
    draw_legend(figure, looks)
    names = [
        f"{sizes['batch']} × {sizes['dim']} × {sizes['seqlen']}{tables.besides(sizes)}, {sizes['dtype']}"
        for sizes, _ in shapes
    ]
    for number, (title, layout) in enumerate((("channel-first", TOKENS), ("channel-last", CHANNELS))):
        axes = figure.add_axes((0.253 + 0.375 * number, 0.145, 0.31, 0.635))
        axes.set_title(title)
        for place, (_, layouts) in enumerate(shapes):
            sizes = layouts[layout]
            row = measured.kernel(function, sizes)
            for kernel in (*reversed(peers[place, layout]), *([row] if row else [])):
                if kernel.fraction_of_copy is not None:
                    draw_points(axes, [(kernel.fraction_of_copy, place)], looks[kernel.library])
            time, share, _ = tables.timed(measured, function, sizes)
            text = share or (time if time == tables.WRONG else "–")
            beside = axes.get_yaxis_transform()
            axes.text(1.02, place, text, transform=beside, color=BLUE, fontsize=16, va="center_baseline")
        axes.set_yticks(range(len(names)), names if number == 0 else [""] * len(names), fontsize=16)
        if number == 0:
            axes.text(
                -0.02, 1.02, "batch × dim × seqlen", transform=axes.transAxes, fontsize=16, color=GREY, ha="right"
            )
        axes.set(ylim=(len(names) - 0.5, -0.5), xlabel="of the speed of a copy")
        up_to_copy(axes)
    return figure


DRIFTS = dict(zip(map(str, dict(FORMATS)), (INK, VERMILLION, ORANGE, BLUE, PURPLE, GREEN), strict=True))
"""Colours of the dtypes of states."""


def drift(measured: Measured) -> Any:
    """Errors after many steps against the decay, a panel for each kind of inputs."""
    steps = {row.steps for row in measured.drifts.values()}
    figure = new_figure(
        f"Errors of state updates after {max(steps, default=0):,} steps, by the dtype of states", tables.run(measured)
    )
    looks = {"to nearest": Look("o", GREY), "at random": Look("o", GREY).hollow}
    draw_legend(figure, looks)
    for number, inputs in enumerate(INPUTS):
        axes = figure.add_axes((0.08 + 0.475 * number, 0.245, 0.31, 0.535))
        axes.set_title(f"{inputs} inputs")
        axes.set(xlabel="decay", ylabel="error, relative" if number == 0 else "", yscale="log")
        ends: dict[str, float] = {}
        for dtype, is_random in FORMATS:
            found = [measured.drifts.get((str(dtype), is_random, inputs, decay)) for decay in DECAYS]
            points = [(place, row.error) for place, row in enumerate(found) if row]
            if points:
                look = Look("o", DRIFTS[str(dtype)])
                draw_line(axes, points, look.hollow if is_random else look, "--" if is_random else "-")
                ends.setdefault(str(dtype), points[-1][1])
        axes.set_xticks(range(len(DECAYS)), [f"{decay:g}" for decay in DECAYS])
        if ends:
            label_ends(axes, ends, DRIFTS)
        else:
            say(axes, tables.MISSING)
    return figure


PICTURES: dict[str, Callable[[Measured], Any]] = {
    make.__name__: make for make in (roofline, decode, skew, forward, drift)
}
