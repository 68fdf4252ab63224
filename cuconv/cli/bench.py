"""`cuconv bench`: times of functions on one GPU, beside a copy of the same number of bytes and beside other
libraries."""

from __future__ import annotations

import argparse
import contextlib
import inspect
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from cuconv.bench import device, drift, measure, results, steps
from cuconv.bench.machine import Machine
from cuconv.bench.makers import MAKERS, label, parse
from cuconv.bench.models import MODELS
from cuconv.bench.peers.found import LIBRARIES, Loaded, find, libraries, versions
from cuconv.bench.results import OURS, Header, Host, Kernel, Row
from cuconv.bench.workloads import REPORT, of_model, workloads
from cuconv.cli.arguments import path
from cuconv.cli.console import CANNOT, OK, WRONG, CannotRun, Console
from cuconv.runtime.dtypes import FLOATS
from cuconv.runtime.errors import message
from cuconv.runtime.workload import Workload

COLUMNS, LABEL = 140, 58


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--op", action="append", choices=list(MAKERS), metavar="NAME", help="time this function; may be repeated"
    )
    parser.add_argument(
        "--shape", action="append", metavar="NAME=VALUE,...", help="at these sizes, with one --op; may be repeated"
    )
    parser.add_argument(
        "--model", action="append", choices=list(MODELS), metavar="NAME", help="what a layer calls; may be repeated"
    )
    parser.add_argument("--dtype", choices=[each.name for each in FLOATS], help="of the models, bfloat16 if not given")
    parser.add_argument(
        "--peers", default="all", metavar="NAMES", help=f"none, all or some of {', '.join(LIBRARIES)} (all)"
    )
    parser.add_argument(
        "--steps", action="store_true", help="instead, steps of models of transformers and of Mamba, beside torch's own"
    )
    parser.add_argument(
        "--drift", action="store_true", help="instead, errors of state updates after many steps, by the states' dtype"
    )
    parser.add_argument("--no-host", action="store_true", help="leave out the time until a call returns")
    parser.add_argument("--only-host", action="store_true", help="leave out all but that, of the smallest workloads")
    parser.add_argument("--quick", action="store_true", help="fewer replays")
    parser.add_argument("--output", metavar="FILE", type=path, help="add the results to this file of JSON lines")


def run(options: argparse.Namespace, console: Console) -> int:
    """Time what the options name. Returns WRONG when a result of cuconv is wrong or a call of it fails."""
    for name in ("steps", "drift"):
        others = [options.op, options.model, options.shape, options.dtype, name == "drift" and options.steps]
        if getattr(options, name) and any(others):
            wanted = "alone, with --quick, --output and --json"
            raise ValueError(message(f"--{name}", "beside what names other rows", wanted))
    chosen = choose(options)
    names = libraries(options.peers)
    if (reason := device.missing()) is not None:
        raise CannotRun(f"no GPU can be used ({reason}), so nothing was timed; `cuconv doctor` says what is missing")
    # What other libraries print is not output of this command.
    with contextlib.redirect_stdout(sys.stderr):
        if options.steps:
            return _run_steps(Machine(options.quick), options, console)
        if options.drift:
            return _run_drift(Machine(options.quick), options, console)
        return _run(Machine(options.quick), chosen, names, options, console)


def _run_steps(machine: Machine, options: argparse.Namespace, console: Console) -> int:
    record = Record(options.output)
    header = machine.header(steps.versions())
    record.add(header)
    for line in machine_lines(header, machine.clocks(), {}):
        console.line(line)
    console.line("ms: median of steps, host and GPU together")
    missing = {}
    for part, timed in steps.parts(options.quick).items():
        try:
            for row in timed():
                record.add(row)
                sizes = " ".join(f"{name}={size}" for name, size in row.sizes.items())
                console.line(clip(f"{row.step_ms:10.3f}  {row.library:<10}{row.step:<10}{row.model}, {sizes}"))
        except Exception as error:
            missing[part] = f"{type(error).__name__}: {error}"
            console.line(clip(f"{'':12}{part}: {missing[part]}"))
    console.finish(
        {"run": results.to_json(header), "missing": missing, "rows": list(map(results.to_json, record.rows))}
    )
    return WRONG if missing else OK


def _run_drift(machine: Machine, options: argparse.Namespace, console: Console) -> int:
    record = Record(options.output)
    header = machine.header()
    record.add(header)
    for line in machine_lines(header, machine.clocks(), {}):
        console.line(line)
    steps = drift.LAST if options.quick else drift.STEPS
    console.line(f"errors of the last of {steps} steps, relative to their root mean square; mean towards the result")
    for row in drift.on_gpu(steps):
        record.add(row)
        rounding = "random" if row.is_random else "nearest"
        console.line(
            clip(f"{row.error:10.1e} {row.bias:+10.1e}  {row.state_dtype} {rounding}, {row.inputs}, decay {row.decay}")
        )
    console.finish({"run": results.to_json(header), "rows": list(map(results.to_json, record.rows))})
    return OK


def _run(
    machine: Machine, chosen: Sequence[Workload], names: Sequence[str], options: argparse.Namespace, console: Console
) -> int:
    functions = list(dict.fromkeys(workload.function for workload in chosen))
    peers, missing = find(names, functions)
    if options.peers != "all" and missing:
        raise CannotRun("--peers: " + "; ".join(f"{name} cannot be used here ({why})" for name, why in missing.items()))
    header = machine.header(versions(peers))
    record = Record(options.output)
    record.add(header)
    for line in heading(header, machine.clocks(), missing):
        console.line(line)
    is_alive = True
    for function in functions:
        own = [workload for workload in chosen if workload.function == function]
        is_alive = is_alive and _function(machine, own, peers, record, console, options)
    if not is_alive:
        console.error("the GPU was lost, for the rest of this process; what would have followed was not timed")
    console.finish(
        {"run": results.to_json(header), "missing": missing, "rows": list(map(results.to_json, record.rows))}
    )
    return WRONG if record.is_wrong else OK if is_alive else CANNOT


class Record:
    """The rows measured so far. Each is also added to a file at once, if one is named."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.rows: list[Row] = []
        self.is_wrong = False
        """Whether a result of cuconv was wrong or a call of it failed."""

    def add(self, *items: Header | Row) -> None:
        self.rows += [item for item in items if not isinstance(item, Header)]
        if self.path is not None:
            results.append(self.path, *items)


def choose(options: argparse.Namespace) -> list[Workload]:
    """The workloads that the options name, each once, or those of the report if they name none."""
    if options.only_host and options.no_host:
        raise ValueError(message("--only-host", "--no-host, too", "one of them"))
    if options.shape and (options.model or len(options.op or ()) != 1):
        raise ValueError(message("--shape", "no function that it is of", "one --op and no --model"))
    if options.dtype and not options.model:
        raise ValueError(message("--dtype", options.dtype, "a --model; with --op, --shape dtype=..."))
    found = list(_chosen(options))
    if not found:
        raise ValueError(message("--op", ", ".join(options.op), f"what {', '.join(options.model)} calls"))
    return list({(workload.function, workload.title): workload for workload in found}.values())


def _chosen(options: argparse.Namespace) -> Iterator[Workload]:
    functions = options.op or list(REPORT)
    if options.shape:
        yield from (parse(functions[0], sizes) for sizes in options.shape)
    elif options.model:
        for model in options.model:
            layer = of_model(model, options.dtype or "bfloat16")
            yield from (workload for workload in layer if workload.function in functions)
    else:
        for function in dict.fromkeys(functions):
            yield from workloads(REPORT, function)


def _function(
    machine: Machine,
    chosen: Sequence[Workload],
    peers: Sequence[Loaded],
    record: Record,
    console: Console,
    options: argparse.Namespace,
) -> bool:
    """Time a function's workloads, and the host time of its smallest usual one. Returns whether the GPU still works."""
    if options.only_host:
        chosen, peers = [min(chosen, key=_size)], ()
    console.line()
    for line in title(chosen[0].function):
        console.line(line)
    smallest: tuple[Workload, float] | None = None
    for number, workload in enumerate(chosen):
        console.progress(number, len(chosen), f"{workload.function} {label(workload)}")
        try:
            rows = measure.kernels(machine, workload, peers)
        except measure.TooLarge as error:
            rows = [measure.too_large(workload, error)]
        else:
            record.is_wrong = record.is_wrong or not rows[0].is_right
        if not (options.only_host and rows[0].is_right):
            record.add(*rows)
            for line in lines(workload, rows):
                console.line(line)
        if not rows[-1].is_right and not machine.is_alive():
            return False
        ours = rows[0].kernel_us
        # Only public functions have host times.
        if ours and not workload.through and (smallest is None or _size(workload) < _size(smallest[0])):
            smallest = workload, ours.p50
    if not options.no_host and smallest is not None:
        times = list(measure.hosts(machine, *smallest))
        record.add(*times)
        console.line(host_line(times))
    return True


def _size(workload: Workload) -> tuple[bool, int]:
    """The key that workloads are ordered by: workloads that other libraries have, too, come first."""
    return not workload.is_common, workload.bytes_moved


def machine_lines(header: Header, clocks: str, missing: dict[str, str]) -> Iterator[str]:
    """The lines above everything: the machine, and the libraries beside cuconv."""
    clock = f", multiprocessors at {clocks}" if clocks else ""
    yield f"{header.gpu}, sm_{header.compute_capability}, driver {header.driver}, CUDA {header.cuda}{clock}"
    torch = f", torch {header.torch}" if header.torch else ""
    code = f"device code {header.source_digest}"
    yield f"cuconv {header.cuconv}, {code}, CuPy {header.cupy}{torch}, Python {header.python}"
    here = ", ".join(f"{name} {version}".strip() for name, version in header.peers.items())
    absent = "; ".join(f"{name} ({why})" for name, why in missing.items())
    yield from textwrap.wrap(
        f"beside {here or 'no other library'}" + (f"; not here: {absent}" if absent else ""), COLUMNS
    )


def heading(header: Header, clocks: str, missing: dict[str, str]) -> Iterator[str]:
    """The lines above a table of functions: the machine, the libraries beside, and the names of the columns."""
    yield from machine_lines(header, clocks, missing)
    yield "us: median of replays of a CUDA graph, the L2 cache cold; of copy: 1 is as fast as a copy of as many bytes;"
    yield "of exp: 1 is all exponentials that the GPU can do; speed-up: of cuconv, in its own line over the best other"
    yield ""
    yield f"{'':<{LABEL}}{'us':>9}{'20 to 80 %':>21}{'GB/s':>8}{'of copy':>9}{'of exp':>8}{'speed-up':>10}"


def title(function: str) -> Iterator[str]:
    """The line above a function's rows: its name and the sizes that a row does not repeat."""
    known = inspect.signature(MAKERS[function]).parameters
    sizes = " ".join(f"{name}={each.default}" for name, each in known.items() if each.default != "")
    yield from textwrap.wrap(f"{function}, unless a line says otherwise: {sizes}", COLUMNS, subsequent_indent="    ")


def lines(workload: Workload, rows: Sequence[Kernel]) -> Iterator[str]:
    """The lines of one workload. cuconv's line has its speed-up over the best other library, the others' lines that
    over each of them."""
    ours = rows[0].kernel_us
    for row in rows:
        is_ours = row.library == OURS
        name = f"  {label(workload) or 'as above'}" if is_ours else f"    {row.library}"
        if len(name) > LABEL:
            yield clip(name)
            name = ""
        if row.kernel_us is None:
            yield clip(f"{name:<{LABEL}}  {row.note}")
            continue
        others = row.kernel_us.p50 / ours.p50 if ours else None
        speed_up = measure.speed_up(rows) if is_ours else others
        yield (f"{name:<{LABEL}}{figures(row)}" + (f"{speed_up:>9.2f}x" if speed_up else "")).rstrip()
        if row.note:
            yield clip(f"      {row.note}")


def figures(row: Kernel) -> str:
    """A row's numbers, aligned under the names of the columns."""
    assert row.kernel_us is not None and row.gb_per_s is not None and row.fraction_of_copy is not None
    spread = f"[{row.kernel_us.p20:.2f}, {row.kernel_us.p80:.2f}]"
    exponentials = "" if row.fraction_of_exponentials is None else f"{row.fraction_of_exponentials:.2f}"
    return f"{row.kernel_us.p50:>9.2f}{spread:>21}{row.gb_per_s:>8.0f}{row.fraction_of_copy:>9.2f}{exponentials:>8}"


def host_line(times: Sequence[Host]) -> str:
    """The line of host times: microseconds until a call returns, by kind of arrays."""
    kinds: dict[str, list[str]] = {}
    for row in times:
        kind = " bound" if row.bound else " with out" if row.out else ""
        kinds.setdefault(row.arrays, []).append(f"{row.host_us:.1f}{kind}")
    found = "; ".join(f"{arrays} {', '.join(texts)}" for arrays, texts in kinds.items())
    return clip(f"  us until a call returns: {found}")


def clip(text: str) -> str:
    """A text cut to the width of the table."""
    return text if len(text) <= COLUMNS else text[: COLUMNS - 1] + "…"
