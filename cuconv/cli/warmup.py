"""`cuconv warmup`: kernels compiled ahead, many at a time, with or without a GPU."""

from __future__ import annotations

import argparse
import time
from collections.abc import Container, Iterator, Sequence
from dataclasses import asdict
from itertools import chain, product
from pathlib import Path
from typing import Any

from cuconv.bench import device
from cuconv.bench.compiling import MOST_JOBS, compile_each, default_jobs, kernels_of
from cuconv.bench.gpus import KNOWN, REFERENCE, Gpu, present
from cuconv.bench.makers import MAKERS, parse
from cuconv.bench.models import MODELS
from cuconv.bench.workloads import REPORT, SMALL, of_model, workloads
from cuconv.cli.arguments import capability, whole
from cuconv.cli.console import OK, WRONG, CannotRun, Console
from cuconv.jit import cache
from cuconv.jit.cache import Artifact
from cuconv.runtime.dtypes import BFLOAT16, FLOATS
from cuconv.runtime.errors import message
from cuconv.runtime.kernel import Kernel
from cuconv.runtime.launch import ceil_div
from cuconv.runtime.workload import CHANNELS, Workload
from cuconv.selective_scan.plan_varlen import PROMPT

MOST_TOKENS, MOST_BATCH = 65536, 4096
"""Tokens of the longest prefill, and sequences of the largest decode step, that a model is compiled for."""

TOKENS = (
    *range(1, 65),
    *(
        size + rest
        for sizes in (range(64, 512, 16), range(512, 4096, 128), range(4096, MOST_TOKENS, 4096))
        for size in sizes
        for rest in (1, 2, 4, 8)
    ),
    MOST_TOKENS,
)
"""Tokens of prefills: the kernel depends on their alignment, on thresholds of up to 512 tokens, on how evenly vectors
fill tiles of up to 4096 tokens, and on how many long sequences there may be among packed ones.
"""

SHORT = 64
"""Tokens of each of many packed sequences: few enough for every kernel of short ones."""

LESS_SHORT = 256
"""Tokens of each of many packed sequences: too many for convolutions with states in shared memory."""

AVERAGES, COUNTS = (12, 24, 40, 72, 100, 150, 250, 400), (*range(1, 17), 24, 32, 48, 64, 128, 256)
"""Mean tokens of packed sequences, and numbers of sequences: a scan's kernel depends on both."""

BATCHES = (*range(1, 65), *(2**power * part // 8 for power in range(6, 12) for part in range(9, 17)))
"""Sequences of decode steps: each number up to 64, and 8 numbers between each power of two and the next."""

COVERED = """\
Which kernel a call takes depends on its dtypes, widths, sizes, strides and alignments. Compiled is what the shapes
asked for take, as dense tensors without seq_idx and the like. With --model: every prefill of up to 65536 tokens, of one
sequence or packed, and every decode step of up to 4096 sequences of that model's layers, states in the dtype and in
float32. Layers of Mamba prefill as those of mamba_ssm, transformers and vLLM do. Else: these of all models, the shapes
of the README's tables and small odd ones, for --op alone those of this function. Whatever else a program calls is
compiled at its first call, as ever.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = COVERED
    add = parser.add_argument
    add("--op", action="append", choices=list(MAKERS), metavar="NAME", help="only this function; repeatable")
    add("--model", action="append", choices=list(MODELS), metavar="NAME", help=f"repeatable: {', '.join(MODELS)}")
    add("--dtype", action="append", choices=list(map(str, FLOATS)), help="repeatable; bfloat16 unless said otherwise")
    add("--width", action="append", type=whole(1), help="of the filters, instead of the tables' own; repeatable")
    add("--shape", action="append", metavar="NAME=VALUE,...", help="with one --op: these sizes only; repeatable")
    add(
        "--arch", action="append", type=capability, metavar="SM",
        help="90 or sm_90; repeatable; those of this machine's GPUs unless said otherwise",
    )  # fmt: skip
    add("--jobs", type=whole(1), help=f"kernels at a time; a processor each, but {MOST_JOBS}, unless said otherwise")


def run(options: argparse.Namespace, console: Console) -> int:
    """Compile, or find on disk, every kernel for every architecture. Returns WRONG when one fails."""
    from cuconv.jit import nvrtc

    kernels = kernels_of(choose(options))
    if not kernels:
        raise ValueError(message("op", ", ".join(options.op), f"a function that {', '.join(options.model)} calls"))
    here = [] if options.arch else _present()
    capabilities = options.arch or sorted({gpu.capability for gpu in here})
    try:
        targets = {nvrtc.target(capability).arch: capability for capability in capabilities}
        nvrtc.toolkit_include_dirs()
    except RuntimeError as error:
        raise CannotRun(str(error)) from None
    root = cache.folder()
    for arch in targets:
        try:
            for folder in (root, root / arch):
                cache.check_writable(folder)
        except cache.Untrusted as error:
            raise CannotRun(
                f"the kernel cache {root} is not used where other users could change it: "
                f"{error.filename}: {error.strerror}. {cache.remedy(error)}"
            ) from None
        except OSError as error:
            raise CannotRun(
                f"the kernel cache {root} cannot be written ({error}): set CUCONV_CACHE_DIR to a folder that can be"
            ) from None
    jobs = options.jobs or default_jobs()
    archs = {capability: arch for arch, capability in sorted(targets.items())}
    wanted = [
        (kernel, capability) for capability in archs for kernel in _kernels_on(capability, here, kernels, options)
    ]
    count = len({kernel for kernel, _ in wanted})
    console.line(f"kernels: {count}, for {', '.join(sorted(targets))}, {jobs} at a time")
    start = time.perf_counter()
    found = compile_each(wanted, console.progress, jobs).items()
    seconds = time.perf_counter() - start
    rows = [_row(kernel, archs[capability], each, root) for (kernel, capability), each in found]
    return _tell(sorted(rows, key=lambda row: (row["arch"], row["file"], row["kernel"])), seconds, root, console)


def _kernels_on(
    capability: int, here: Sequence[Gpu], kernels: Sequence[Kernel], options: argparse.Namespace
) -> list[Kernel]:
    """The kernels that the calls asked for launch on known GPUs of a capability and on those that are here.

    Kernels depend on the number of multiprocessors; `kernels` are those of the reference GPU.
    """
    gpus = [gpu for gpu in (*KNOWN.values(), *here) if gpu.capability == capability] or [REFERENCE]
    found: dict[Kernel, None] = {}
    for count, gpu in {gpu.multiprocessors: gpu for gpu in gpus}.items():
        is_reference = count == REFERENCE.multiprocessors
        found |= dict.fromkeys(kernels if is_reference else kernels_of(choose(options), gpu))
    return list(found)


def _present() -> list[Gpu]:
    """The GPUs of this machine."""
    if (reason := device.missing()) is not None:
        raise CannotRun(f"there is no GPU here to compile for ({reason}): name an architecture, as in --arch 90")
    from cupy import cuda

    return [present(number) for number in range(cuda.runtime.getDeviceCount())]


def choose(options: argparse.Namespace) -> Iterator[Workload]:
    """The workloads that the options name."""
    if options.model and (options.width or options.shape):
        raise ValueError(message("options", "--model beside --width or --shape", "one: a model has its own"))
    functions = options.op or list(MAKERS)
    for dtype in options.dtype or [BFLOAT16.name]:
        if options.shape:
            yield from _shaped(options, dtype)
            continue
        if not options.width:
            # Several models have layers of the same shape.
            for model in {MODELS[name]: name for name in options.model or MODELS}.values():
                yield from calls_of(model, dtype, functions)
        if not options.model:
            for function in functions:
                for sizes in _widths(options, function):
                    for table in (SMALL, REPORT):
                        yield from workloads(table, function, dtype=dtype, **sizes)


def _shaped(options: argparse.Namespace, dtype: str) -> Iterator[Workload]:
    if len(options.op or ()) != 1:
        raise ValueError(message("options", f"--shape and {len(options.op or ())} --op", "the one --op that has it"))
    (function,) = options.op
    for shape in options.shape:
        for sizes in _widths(options, function):
            # A dtype or width in the shape replaces that of the option.
            yield parse(function, shape, dtype=dtype, **sizes)


def _widths(options: argparse.Namespace, function: str) -> list[dict[str, Any]]:
    """The widths that the options name, as sizes of a function's workloads; no size for a function without filters."""
    has_width = "width" in MAKERS[function]().sizes
    return [{"width": width} for width in options.width] if options.width and has_width else [{}]


def calls_of(model: str, dtype: str, functions: Container[str] = MAKERS) -> Iterator[Workload]:
    """Calls that together launch every kernel of these functions in a model's prefills and decode steps."""
    for workload in chain(_prefills(model, dtype, functions), _steps(model, dtype, functions)):
        yield workload
        if (state_dtype := _other_state(workload, dtype)) is not None:
            yield MAKERS[workload.function](**{**workload.sizes, "state_dtype": state_dtype})


def _other_state(workload: Workload, dtype: str) -> str | None:
    """The dtype of states in further calls that are otherwise like this one."""
    if "state_dtype" in workload.sizes:
        return "float32"
    # vLLM scans in this way, and has states in the dtype of the model.
    is_by_channel = workload.sizes.get("contiguous") == CHANNELS
    return dtype if workload.function == "selective_scan_varlen_fn" and is_by_channel else None


def _prefills(model: str, dtype: str, functions: Container[str]) -> Iterator[Workload]:
    packed = [function for function in MAKERS if function in functions and "sequences" in MAKERS[function]().sizes]
    convolutions = [function for function in packed if function.startswith("causal_conv1d")]
    for tokens in TOKENS:
        yield from of_model(model, dtype, tokens, (), str(tokens), functions)
        yield from of_model(model, dtype, tokens, (), _lengths(tokens, ceil_div(tokens, SHORT)), packed)
        # Convolutions have separate kernels for longer sequences, for sequences of a few tokens and for single tokens.
        for length in (LESS_SHORT, 3, 1):
            yield from of_model(model, dtype, tokens, (), _lengths(tokens, ceil_div(tokens, length)), convolutions)
    scans = [function for function in packed if function.startswith("selective_scan")]
    divided = [*product(AVERAGES, COUNTS, (0, 1, 2, 4))]
    # The tile shape of long sequences depends on their number, and not monotonically; and the total may not be a
    # multiple of a vector.
    divided += [(PROMPT, count, rest) for count in range(1, MOST_TOKENS // PROMPT + 1) for rest in (0, 1)]
    for average, count, rest in divided:
        tokens = average * count + rest
        yield from of_model(model, dtype, tokens, (), _lengths(tokens, count), scans)


def _steps(model: str, dtype: str, functions: Container[str]) -> Iterator[Workload]:
    decode = [function for function in MAKERS if function in functions and "batch" in MAKERS[function]().sizes]
    yield from of_model(model, dtype, 1, BATCHES, functions=decode)


def _lengths(tokens: int, count: int) -> str:
    """`count` packed sequences with `tokens` tokens in all. The last one has all of them, because no kernel depends on
    how tokens are divided."""
    return f"{count - 1}x0+{tokens}" if count > 1 else str(tokens)


def _row(kernel: Kernel, arch: str, found: Artifact | Exception, root: Path) -> dict[str, Any]:
    """The outcome of one kernel as JSON."""
    row: dict[str, Any] = {"file": kernel.file, "kernel": kernel.expression, "arch": arch, "error": None}
    if isinstance(found, Exception):
        return row | {"error": str(found)}
    row |= {"from_cache": found.from_cache, "path": str(found.path)}
    row["resources"] = None if found.resources is None else asdict(found.resources)
    if root not in found.path.parents:
        row["error"] = f"{root} could not be written"
    return row


def _tell(found: list[dict[str, Any]], seconds: float, root: Path, console: Console) -> int:
    failed = [row for row in found if row["error"] is not None]
    done = [row for row in found if row["error"] is None]
    count = {"compiled": sum(not row["from_cache"] for row in done), "found": sum(row["from_cache"] for row in done)}
    for row in failed:
        console.line(f"failed for {row['arch']}: {row['kernel']}")
        console.line("\n".join(f"  {line}" for line in row["error"].splitlines()))
    counted = f"compiled {count['compiled']}, found {count['found']} on disk, failed {len(failed)}"
    console.line(f"{counted}, in {seconds:.1f} s: {root}")
    console.finish({"folder": str(root), **count, "failed": len(failed), "seconds": seconds, "kernels": found})
    return WRONG if failed else OK
