"""`cuconv explain`: the kernels that a call launches, and a lower bound of its time."""

from __future__ import annotations

import argparse
from dataclasses import asdict, fields
from typing import Any

from cuconv.bench import device
from cuconv.bench.gpus import EMPTY_KERNEL, KNOWN, REFERENCE, Gpu, present
from cuconv.bench.makers import MAKERS, called, parse
from cuconv.bench.occupancy import occupancy
from cuconv.cli.arguments import capability
from cuconv.cli.console import OK, CannotRun, Console
from cuconv.runtime.abstract import launches_of
from cuconv.runtime.errors import message, one_of
from cuconv.runtime.machine import assuming
from cuconv.runtime.plan import Launch
from cuconv.runtime.workload import Workload


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("op", choices=list(MAKERS), metavar="op", help=f"one of {', '.join(MAKERS)}")
    parser.add_argument("--shape", metavar="NAME=VALUE,...", help="sizes, dtype and layout, such as batch=8,dim=4096")
    parser.add_argument("--arch", type=capability, metavar="SM", help="compile for this, 90 or sm_90; else for the GPU")
    parser.add_argument("--gpu", choices=list(KNOWN), help="predict for this GPU; else the present one, or H200")


def run(options: argparse.Namespace, console: Console) -> int:
    """Print the launches of one workload and the bound of its time."""
    workload = MAKERS[options.op]() if options.shape is None else parse(options.op, options.shape)
    gpu = _gpu(options.gpu)
    with assuming(gpu.multiprocessors):
        launches = launches_of(called(workload), **workload.abstract())
    arch = _arch(options.arch, gpu)
    launched = [_launch(launch, gpu, arch) for launch in launches]
    predicted = _predict(workload, len(launches), gpu)
    console.line(f"{workload.function}  {workload.title}")
    console.line(f"for {gpu.name}, sm_{arch}, {gpu.multiprocessors} multiprocessors")
    if not launched:
        console.line("There is nothing to compute: nothing is launched.")
    for number, found in enumerate(launched, start=1):
        console.line()
        console.line(f"launch {number} of {len(launched)}: {found['kernel']}")
        for name, text in _described(found, gpu):
            console.line(f"  {name:<14}{text}")
    console.line()
    for name, text in _costs(workload, predicted, gpu):
        console.line(f"{name:<16}{text}")
    shape = {"function": workload.function, "sizes": dict(workload.sizes), "arch": arch, "gpu": asdict(gpu)}
    console.finish({**shape, "launches": launched, "predicted": predicted})
    return OK


def _gpu(name: str | None) -> Gpu:
    if name is not None:
        return KNOWN[name]
    return REFERENCE if device.missing() else present()


def _arch(asked: int | None, gpu: Gpu) -> int:
    from cuconv.jit import nvrtc

    if asked is None:
        return gpu.capability
    try:
        supported = nvrtc.supported_archs()
    except (ImportError, RuntimeError) as error:
        raise CannotRun(str(error)) from error
    if asked not in supported:
        raise ValueError(message("arch", asked, one_of(supported)))
    return asked


def _launch(launch: Launch, gpu: Gpu, arch: int) -> dict[str, Any]:
    """One launch as JSON: the kernel, its configuration, its resources and occupancy."""
    from cuconv.jit.build import build

    kernel, config = launch.kernel, launch.config
    try:
        resources = build(kernel.file, kernel.expression, arch).resources
    except (ImportError, RuntimeError) as error:
        raise CannotRun(f"{kernel.expression} was not compiled: {error}") from error
    found = {
        "kernel": kernel.expression,
        "file": kernel.file,
        "parameters": {each.name: _plain(getattr(kernel, each.name)) for each in fields(kernel)},
        "grid": config.grid,
        "block": config.block,
        "dynamic_shared_bytes": config.shared_mem,
        # Resources of PTX are not known: the driver compiles it when it is loaded.
        "resources": None if resources is None else asdict(resources),
        "occupancy": None,
    }
    if resources is None:
        return found
    threads = config.block[0] * config.block[1] * config.block[2]
    room = occupancy(arch, threads, resources.registers, resources.shared_bytes + config.shared_mem)
    if room is not None:
        blocks = config.grid[0] * config.grid[1] * config.grid[2]
        found["occupancy"] = {
            "blocks": room.blocks,
            "warps": room.warps,
            "most_warps": room.most_warps,
            "limited_by": room.limited_by,
            "allowed_blocks": dict(room.allowed),
            "waves": blocks / (room.blocks * gpu.multiprocessors) if room.blocks else None,
        }
    return found


def _plain(value: Any) -> Any:
    """A template parameter as a value that JSON has."""
    return value if isinstance(value, bool | int) else str(value)


def _predict(workload: Workload, launches: int, gpu: Gpu) -> dict[str, Any]:
    """Lower bounds of the call's time in seconds, None where the GPU's numbers are not known."""
    copy, exponentials = gpu.copy_seconds(workload.bytes_moved), None
    # Every launch except the first waits for the one before it.
    waiting = EMPTY_KERNEL * max(0, launches - 1)
    if workload.exponentials:
        exponentials = gpu.exponential_seconds(workload.exponentials)
    known = [
        (seconds, name) for seconds, name in ((copy, "memory"), (exponentials, "exponentials")) if seconds is not None
    ]
    least, bound = max(known, default=(None, None))
    return {
        "bytes": workload.bytes_moved,
        "copy_seconds": copy,
        "exponentials": workload.exponentials,
        "exponential_seconds": exponentials,
        "seconds": None if least is None or not launches else least + waiting,
        "bound_by": bound if launches else None,
    }


def _described(found: dict[str, Any], gpu: Gpu) -> list[tuple[str, str]]:
    """One launch as pairs of a heading and a text."""
    grid, block = (" x ".join(map(str, found[name])) for name in ("grid", "block"))
    shared = f"{found['dynamic_shared_bytes']} bytes of dynamic shared memory"
    lines = [
        ("parameters", "  ".join(f"{name}={value}" for name, value in found["parameters"].items())),
        ("launched", f"grid {grid}, block {block}, {shared}"),
    ]
    resources, room = found["resources"], found["occupancy"]
    if resources is None:
        return [*lines, ("compiled", "to PTX, which the driver compiles: registers are not known")]
    spilt = f"{resources['spill_store_bytes']} bytes spilt and {resources['spill_load_bytes']} read back"
    thread = f"{resources['registers']} registers, {resources['stack_bytes']} bytes of stack, {spilt}"
    lines += [("a thread", thread), ("a block", f"{resources['shared_bytes']} bytes of static shared memory")]
    if room is None:
        return [*lines, ("occupancy", "not known for this compute capability")]
    allowed = ", ".join(f"{name} {blocks}" for name, blocks in room["allowed_blocks"].items())
    held = f"{room['blocks']} blocks, {room['warps']} of {room['most_warps']} warps a multiprocessor"
    lines.append(("occupancy", f"{held}; limited by {' and '.join(room['limited_by'])}"))
    lines.append(("", f"blocks that there is room for: {allowed}"))
    if room["waves"] is not None:
        lines.append(("waves", f"{room['waves']:.2f} over {gpu.multiprocessors} multiprocessors"))
    return lines


def _costs(workload: Workload, predicted: dict[str, Any], gpu: Gpu) -> list[tuple[str, str]]:
    """The prediction as pairs of a heading and a text."""
    moved = f"{workload.bytes_moved / 1e6:,.3f} MB at least"
    if predicted["copy_seconds"] is None:
        return [("memory", f"{moved}; how fast the memory of {gpu.name} is, is not known, so nothing is predicted")]
    copied = f"a copy of as many takes {_microseconds(predicted['copy_seconds'])}"
    lines = [("memory", f"{moved}; {copied}")]
    if predicted["exponential_seconds"] is not None:
        taken = _microseconds(predicted["exponential_seconds"])
        lines.append(("exponentials", f"{workload.exponentials:,}, which take {taken}"))
    if predicted["seconds"] is not None:
        by = f"bound by {predicted['bound_by']}"
        lines.append(("at best", f"{_microseconds(predicted['seconds'])}, {by}: predicted, not measured"))
    return lines


def _microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:,.1f} us"
