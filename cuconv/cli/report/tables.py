"""Measurements as Markdown tables, and texts that have these tables between markers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from cuconv.bench.drift import DECAYS, FORMATS, INPUTS
from cuconv.bench.results import OURS, Kernel, Step
from cuconv.bench.steps import PACKAGES, TORCH, parts
from cuconv.bench.workloads import REPORT
from cuconv.cli.report.measured import Measured, Sizes, batch_text, microseconds, report
from cuconv.runtime.batches import lengths
from cuconv.runtime.dtypes import FLOAT32
from cuconv.runtime.errors import message, one_of
from cuconv.runtime.workload import CHANNELS, TOKENS

PEER = "best peer µs"
TIMES = ("µs", "of copy", PEER)
MISSING, WRONG = "not measured", "WRONG"


def figure(value: float) -> str:
    """Three digits, more where there are more before the point."""
    digits = next((places for limit, places in ((9.995, 2), (99.95, 1)) if value < limit), 0)
    return f"{value:.{digits}f}"


def timed(measured: Measured, function: str, sizes: Sizes | None, fraction: str = "fraction_of_copy") -> list[str]:
    """The cells of TIMES for a kernel and the fastest library beside it; empty without sizes."""
    if sizes is None:
        return [""] * len(TIMES)
    row, peers = measured.kernel(function, sizes), measured.peers(function, sizes)
    time, share = microseconds(row), None if row is None else getattr(row, fraction)
    best = f"{figure(_time(peers[0]))} {peers[0].library}" if peers else ""
    if time is None:
        # A call that did not fit was not run, and neither was a copy.
        return [MISSING if row is None or row.copy_us is None else WRONG, "", best]
    return [figure(time), "" if share is None else f"{share:.2f}", best]


def _time(row: Kernel) -> float:
    time = microseconds(row)
    assert time is not None
    return time


def run(measured: Measured) -> str:
    """Each machine that rows were measured on, the versions of libraries in all of its runs and the days."""
    days: dict[str, list[str]] = {}
    versions: dict[str, dict[str, dict[str, None]]] = {}
    for header in measured.headers:
        machine = f"One {header.gpu} (driver {header.driver}, CuPy {header.cupy} for CUDA {header.cuda}"
        days.setdefault(machine, []).append(header.time.partition("T")[0])
        libraries = versions.setdefault(machine, {})
        for name, version in {"torch": header.torch, **header.peers}.items():
            if version:
                libraries.setdefault(name, {})[version] = None
    spans = []
    for machine, found in days.items():
        named = "".join(f", {name} {' and '.join(each)}" for name, each in versions[machine].items())
        first, last = min(found), max(found)
        spans.append(f"{machine}{named}), {first}{f' to {last}' if last != first else ''}")
    return f"{'; '.join(spans)}." if spans else "Not measured yet."


HEADLINE: tuple[tuple[str, str, Sizes], ...] = (
    (
        "prefill convolution, 8 × 4096 × 2048",
        "causal_conv1d_fn",
        {"batch": 8, "dim": 4096, "seqlen": 2048, "contiguous": TOKENS},
    ),
    (
        "packed prefill convolution, 16 sequences of 512, 8192 channels",
        "causal_conv1d_varlen_fn",
        {"sequences": "16x512"},
    ),
    (
        "decode convolution, 256 × 10240",
        "causal_conv1d_update",
        {"batch": 256, "dim": 10240, "contiguous": CHANNELS},
    ),
    ("state update, 64 × 128 heads of 64 × 128", "selective_state_update", {"batch": 64}),
    ("selective scan, 8 × 8192 × 2048, 16 states", "selective_scan_fn", {"batch": 8, "dim": 8192, "seqlen": 2048}),
)
"""Calls that represent all others: a description, the function, and the sizes of a row of the report."""


def headline(measured: Measured) -> str:
    """One row for each kind of call."""
    rows = []
    for text, function, sizes in HEADLINE:
        time, share, best = timed(measured, function, sizes)
        if function.startswith("selective_scan"):
            # Exponentials bound a scan, so that a copy is no measure of it.
            share = ""
        rows.append([f"{text}: `{function}`", time, share, best])
    return _table(["bfloat16"], ["µs", "of a copy", PEER], rows)


def forward(measured: Measured) -> str:
    """The dense convolution in both layouts."""
    return _dense(measured, "causal_conv1d_fn")


def backward(measured: Measured) -> str:
    """Gradients of the dense convolution in both layouts."""
    return _dense(measured, "causal_conv1d_bwd")


def _dense(measured: Measured, function: str) -> str:
    rows = [
        [
            f"{sizes['batch']} × {sizes['dim']} × {sizes['seqlen']}{besides(sizes)}",
            sizes["dtype"],
            *timed(measured, function, layouts.get(TOKENS)),
            *timed(measured, function, layouts.get(CHANNELS)),
        ]
        for sizes, layouts in by_layout(function)
    ]
    return _table(["batch × dim × seqlen", "dtype"], _twice("channel-first", "channel-last"), rows)


PREFILLS = {"over": ", in place (out is x)", "gated": ", two gates and a residual"}
"""What a prefill does besides, by its form."""


def besides(sizes: Sizes) -> str:
    """What a prefill does besides, in words, and its number of taps unless it is four."""
    text = f", {sizes['width']} taps" if sizes.get("width", 4) != 4 else ""
    text += f", a snapshot every {sizes['snapshots']} tokens" if sizes.get("snapshots") else ""
    text += f", a prefix cache by blocks of {sizes['blocks']} tokens" if sizes.get("blocks") else ""
    text += f", in place (out is {sizes['over']})" if sizes.get("over") else ""
    return text + PREFILLS.get(sizes.get("form", ""), "")


def varlen(measured: Measured) -> str:
    function = "causal_conv1d_varlen_fn"
    rows = [
        [
            batch_text(sizes["sequences"])
            + ("" if sizes["contiguous"] == CHANNELS else ", tokens contiguous")
            + besides(sizes),
            sizes["dtype"],
            str(sizes["dim"]),
            *timed(measured, function, sizes),
        ]
        for sizes in report(function)
    ]
    return _table(["sequences", "dtype"], ["dim", *TIMES], rows)


def qkv(measured: Measured) -> str:
    """A column for every number of tokens."""
    function = "causal_conv1d_qkv_split"
    columns = [
        f"{sum(lengths(sizes['sequences']))}{', q and k normalised' if sizes['l2norm'] else ''}"
        for sizes in report(function)
    ]
    cells = zip(TIMES, *(timed(measured, function, sizes) for sizes in report(function)), strict=True)
    return _table(["tokens"], columns, [[name, *row] for name, *row in cells if name != PEER or any(row)])


FORMS = {
    "dense": "",
    "packed": ", packed",
    "moved": ", with `dst_state_indices`",
    "windows": ", the inputs before each next one kept",
    "states": ", the state after each kept",
    "tree": " of a tree, the inputs before each next one kept",
}
"""What a decode step does besides, by its form."""


def update(measured: Measured) -> str:
    function = "causal_conv1d_update"
    rows = [
        [
            f"{sizes['batch']} × {sizes['dim']}"
            + (f", {sizes['tokens']} tokens" if sizes["tokens"] > 1 else "")
            + FORMS[sizes["form"]],
            sizes["dtype"],
            *timed(measured, function, layouts.get(TOKENS)),
            *timed(measured, function, layouts.get(CHANNELS)),
        ]
        for sizes, layouts in by_layout(function)
    ]
    return _table([f"`{function}`, batch × dim", "dtype"], _twice("columns contiguous", "channels contiguous"), rows)


def states(measured: Measured) -> str:
    rows = [
        [
            _states_text(sizes),
            sizes["state_dtype"] or sizes["dtype"],
            sizes["dtype"],
            *timed(measured, function, sizes),
        ]
        for function in ("selective_state_update", "selective_state_update_replay")
        for sizes in report(function)
    ]
    return _table(["`selective_state_update`", "state", "x"], TIMES, rows)


def _states_text(sizes: Sizes) -> str:
    heads = f"{sizes['nheads']} heads of " if sizes["nheads"] else ""
    text = f"{'Mamba-2' if heads else 'Mamba'}, {sizes['batch']} × {heads}{sizes['headdim']} × {sizes['d_state']}"
    if "window" in sizes:
        text += f", {sizes['tokens']} tokens" if sizes["tokens"] > 1 else ""
        kind = "folded" if sizes["fold"] else "all flush" if sizes["live"] == sizes["window"] else "flushes spread"
        return text + f", replay, {kind}"
    text += f", {sizes['tokens']} tokens, a state after each" if sizes["tokens"] > 1 else ""
    return text + (", with `state_batch_indices`" if sizes["indices"] else "")


def scan(measured: Measured) -> str:
    rows = []
    for function in ("selective_scan_fn", "selective_scan_varlen_fn"):
        for sizes in report(function):
            if "batch" in sizes:
                label = f"{sizes['batch']} × {sizes['dim']} × {sizes['seqlen']}"
            else:
                label = f"{sizes['dim']} × ({batch_text(sizes['sequences'])}), packed"
            label += "" if sizes["contiguous"] == TOKENS else ", channels contiguous"
            label += f", {sizes['delta']} of delta" if sizes.get("delta") else ""
            label += besides(sizes)
            rows.append([label, sizes["dtype"], *timed(measured, function, sizes, "fraction_of_exponentials")])
    return _table(["batch × dim × seqlen", "dtype"], ["µs", "of bound", PEER], rows)


HAVE_TABLES = {
    *("causal_conv1d_fn", "causal_conv1d_bwd", "causal_conv1d_varlen_fn", "causal_conv1d_qkv_split"),
    *("causal_conv1d_update", "selective_state_update", "selective_state_update_replay"),
    *("selective_scan_fn", "selective_scan_varlen_fn"),
}
"""Functions with a table of their own."""


def others(measured: Measured) -> str:
    """All other functions, also those without a row in the report."""
    rows = []
    for function in (function for function in REPORT if function not in HAVE_TABLES):
        for sizes in report(function):
            count = str(sizes["batch"]) if "batch" in sizes else batch_text(sizes.get("sequences", ""))
            cells = [count, _channels(sizes), sizes.get("dtype", ""), *timed(measured, function, sizes)]
            rows.append([f"`{function}`", *cells])
        if not REPORT[function]:
            rows.append([f"`{function}`", "", "", "", MISSING, "", ""])
    return _table(["", "sequences", "channels", "dtype"], TIMES, rows)


def _channels(sizes: Sizes) -> str:
    """The channels of a call, or whatever numbers its maker takes."""
    found = next((str(sizes[name]) for name in ("parts", "heads", "dim") if name in sizes), None)
    if found is None:
        return ", ".join(f"{name} {value}" for name, value in sizes.items() if type(value) is int and name != "batch")
    if "seqlen" in sizes:
        found += f"x{sizes['seqlen']}"
    note = ", tokens contiguous" if sizes.get("contiguous") == TOKENS else ""
    note += f", {sizes['d_state']} states" if sizes.get("d_state", 16) != 16 else ""
    note += f", constant {' and '.join(sizes['constants'])}" if sizes.get("constants") else ""
    if sizes.get("states") is False:
        note += ", states recomputed" if "constants" in sizes else ", without states"
    return found.replace(",", ", ").replace("x", " × ") + note


HOST_KINDS = {(False, False): "new", (True, False): "`out`", (True, True): "bound"}
"""The columns of host times: whether `out` is given and whether the call is bound, and the heading in a table."""


def host(measured: Measured) -> str:
    kinds = [(arrays, *kind) for arrays in ("torch", "cupy") for kind in HOST_KINDS]
    rows = []
    for function in REPORT:
        found = [measured.host(function, *kind) for kind in kinds]
        rows.append([f"`{function}`", *(figure(row.host_us) if row else MISSING for row in found)])
    columns = [f"{library}, {kind} µs" for library in ("torch", "CuPy") for kind in HOST_KINDS.values()]
    return _table([""], columns, rows)


STEPS = ("prefill", "decode", "training")


def steps(measured: Measured) -> str:
    """Steps of whole models, by another library and by cuconv."""
    rows = []
    order = [*parts(), *(model for model, _ in measured.steps)]
    for model in sorted({model for model, _ in measured.steps}, key=order.index):
        found = {step: measured.steps.get((model, step), {}) for step in STEPS}
        sizes = next(row.sizes for by_library in found.values() for row in by_library.values())
        for library in (TORCH, PACKAGES):
            cells = [_step(by_library.get(library), by_library.get(OURS)) for by_library in found.values()]
            if any(cells):
                rows.append([model, ", ".join(f"{name} {size}" for name, size in sizes.items()), library, *cells])
    return _table(["", "sizes", "beside"], [f"{step} ms" for step in STEPS], rows)


def _step(theirs: Step | None, ours: Step | None) -> str:
    if theirs is None or ours is None:
        return ""
    return f"{figure(theirs.step_ms)} → {figure(ours.step_ms)}, {figure(theirs.step_ms / ours.step_ms)}×"


def drifts(measured: Measured) -> str:
    """Errors after many steps, by inputs and decay of states."""
    rows = []
    for dtype, is_random in FORMATS:
        found = [measured.drifts.get((str(dtype), is_random, inputs, decay)) for inputs in INPUTS for decay in DECAYS]
        cells = [f"{row.error:.1e}" if row else MISSING for row in found]
        rows.append([str(dtype), "at random" if is_random else "to nearest" if dtype is not FLOAT32 else "", *cells])
    columns = [f"{inputs}, {decay}" for inputs in INPUTS for decay in DECAYS]
    return _table(["states", "rounded"], columns, rows)


TABLES: dict[str, Callable[[Measured], str]] = {
    make.__name__: make
    for make in (headline, run, forward, backward, varlen, qkv, update, states, others, scan, drifts, host, steps)
}
"""Tables by the names in markers."""

_MARKER = re.compile(r"^<!-- (?:measured: (?P<name>.*?)|end) -->$", re.MULTILINE)


def render(text: str, measured: Measured) -> str:
    """The text with what was measured between its markers, `<!-- measured: forward -->` and `<!-- end -->`."""
    parts: list[str] = []
    done = 0
    for name, begin, end in _sections(text):
        parts += [text[done:begin], f"\n{TABLES[name](measured)}\n"]
        done = end
    return "".join([*parts, text[done:]])


def missing(text: str) -> list[str]:
    """The tables that a text has no markers for."""
    found = {name for name, _, _ in _sections(text)}
    return [name for name in TABLES if name not in found]


def _sections(text: str) -> Iterator[tuple[str, int, int]]:
    """For each marker its name, and the beginning and end of the text that it encloses. ValueError for invalid
    markers."""
    opened: tuple[str, int] | None = None
    for marker in _MARKER.finditer(text):
        name, line = marker["name"], text.count("\n", 0, marker.start()) + 1
        if (name is None) != (opened is not None):
            raise ValueError(message(f"line {line}", marker[0], "every marker to be followed by its end"))
        if name is not None and name not in TABLES:
            raise ValueError(message(f"line {line}", marker[0], f"measured: {one_of(TABLES)}"))
        if opened is not None:
            yield *opened, marker.start()
        opened = None if name is None else (name, marker.end())
    if opened is not None:
        raise ValueError(message(f"marker {opened[0]}", "the end of the text", "<!-- end -->"))


def by_layout(function: str) -> list[tuple[Sizes, dict[str, Sizes]]]:
    """The report's sizes; sizes that differ only in the contiguous axis are grouped."""
    rows: dict[Any, tuple[Sizes, dict[str, Sizes]]] = {}
    for sizes in report(function):
        shared = frozenset((name, size) for name, size in sizes.items() if name != "contiguous")
        rows.setdefault(shared, (sizes, {}))[1][sizes["contiguous"]] = sizes
    return list(rows.values())


def _twice(*names: str) -> list[str]:
    return [column for name in names for column in (f"{name} µs", *TIMES[1:])]


def _table(words: Sequence[str], numbers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns of words and then of numbers, aligned right; of peers there are columns where there are peers."""
    columns = [
        (name, align, [row[index] for row in rows])
        for index, (name, align) in enumerate([*((word, "---") for word in words), *((n, "--:") for n in numbers)])
        if name != PEER or any(row[index] for row in rows)
    ]
    lines = [[name for name, _, _ in columns], *zip(*(cells for _, _, cells in columns), strict=True)]
    head, *body = [f"|{'|'.join(f' {cell} ' if cell else ' ' for cell in cells)}|" for cells in lines]
    return "\n".join([head, f"|{'|'.join(align for _, align, _ in columns)}|", *body])
