"""`cuconv` without a command: the doctor, the checks and a short benchmark, one after the other."""

from __future__ import annotations

import argparse
import io
import json
import time
from dataclasses import asdict
from typing import Any

from cuconv.bench import device
from cuconv.bench.compiling import compile_all, kernels_of
from cuconv.bench.workloads import of_model
from cuconv.cli import options_for
from cuconv.cli.console import CANNOT, OK, WRONG, CannotRun, Console
from cuconv.jit.cache import Artifact
from cuconv.runtime.kernel import Kernel

MODELS = ("mamba2-130m", "qwen3-next-80b")
"""The models that have their layers timed, or compiled where there is no GPU."""

ARCH = 90
"""The architecture to compile for where there is no GPU."""

NEXT = {
    "cuconv explain causal_conv1d_fn --shape batch=8,dim=4096": "what a call launches, and what it can at best take",
    "cuconv warmup --help": "kernels compiled ahead, for a container or a cluster",
    "README.md": "the functions, their arguments and their times",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add nothing: the tour has only the options of every command."""


def run(options: argparse.Namespace, console: Console) -> int:
    """Run doctor, check and bench; without a GPU doctor, and then compile some models' kernels."""
    code, found = _part(["doctor"], console)
    parts, codes = {"doctor": found}, [code]
    console.line()
    if device.missing() is not None:
        code, parts["compiled"] = _compile(console)
        codes.append(code)
    else:
        code, parts["check"] = _part(["check"], console)
        codes.append(code)
        # The speed of wrong results does not matter.
        if code == OK:
            console.line()
            models = [word for model in MODELS for word in ("--model", model)]
            code, parts["bench"] = _part(["bench", "--quick", *models], console)
            codes.append(code)
    console.line()
    console.line("next:")
    for command, text in NEXT.items():
        console.line(f"  {command:<58}{text}")
    console.finish(parts)
    return max(codes)


def _part(words: list[str], console: Console) -> tuple[int, Any]:
    """Run another command. Returns its exit code, and its JSON value if one is wanted."""
    options = options_for(words)
    out = io.StringIO()
    try:
        code = int(options.run(options, Console(True, out) if console.is_json else console))
    except CannotRun as error:
        console.line(str(error))
        return CANNOT, {"cannot": str(error)}
    return code, json.loads(out.getvalue()) if console.is_json else None


def _compile(console: Console) -> tuple[int, Any]:
    """Compile the kernels of some models' layers, and print the registers that each takes."""
    kernels = kernels_of(workload for model in MODELS for workload in of_model(model))
    console.line(f"Without a GPU nothing runs, but it compiles: layers of {' and '.join(MODELS)} for sm_{ARCH}.")
    start = time.perf_counter()
    found = compile_all(kernels, ARCH, console.progress)
    seconds = time.perf_counter() - start
    console.line(f"{'registers':>9}{'spilt':>7}  kernel")
    rows = [_row(kernel, artifact, console) for kernel, artifact in found.items()]
    errors = [row["error"] for row in rows if row["error"] is not None]
    cached = sum(row["from_cache"] for row in rows)
    compiled = len(rows) - len(errors) - cached
    console.line(f"compiled {compiled}, found {cached} on disk, failed {len(errors)}, in {seconds:.1f} s")
    if errors:
        console.line(f"The first that failed: {errors[0]}")
    return WRONG if errors else OK, {"arch": ARCH, "seconds": seconds, "kernels": rows}


def _row(kernel: Kernel, artifact: Artifact | Exception, console: Console) -> dict[str, Any]:
    """Print one kernel's line, and return it as JSON."""
    if isinstance(artifact, Exception):
        console.line(f"{'failed':>16}  {kernel.expression}")
        return {"kernel": kernel.expression, "error": str(artifact), "from_cache": False, "resources": None}
    resources = None if artifact.resources is None else asdict(artifact.resources)
    figures = resources or {"registers": "?", "spill_store_bytes": "?"}
    console.line(f"{figures['registers']:>9}{figures['spill_store_bytes']:>7}  {kernel.expression}")
    return {"kernel": kernel.expression, "error": None, "from_cache": artifact.from_cache, "resources": resources}
