"""Small kernels that each do one thing that no kernel may."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from cuconv.runtime.kernel import Kernel, Params
from cuconv.runtime.launch import LaunchConfig
from tests import emulator

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Broken(Kernel):
    """A kernel of tests/emulator/broken."""

    source_folder: ClassVar[Path] = Path(__file__).parent
    params: ClassVar[Params] = Params(("x", "out"), ("length", "i4"), ("step", "i4"))

    threads: int


class BarrierMissing(Broken):
    unit = "barrier_missing"


class BlockOrder(Broken):
    unit = "block_order"


class DivergentBarrier(Broken):
    unit = "divergent_barrier"


@dataclass(frozen=True)
class Endless(Broken):
    unit = "endless"

    is_atomic: bool = False


class LeftBeforeBarrier(Broken):
    unit = "left_before_barrier"


class LeftBeforeShuffle(Broken):
    unit = "left_before_shuffle"


class LocalUnwritten(Broken):
    unit = "local_unwritten"


class MisalignedVector(Broken):
    unit = "misaligned_vector"


class NullPointer(Broken):
    unit = "null_pointer"


class PastLocal(Broken):
    unit = "past_local"


class PastShared(Broken):
    unit = "past_shared"


class PastTheRow(Broken):
    unit = "past_the_row"


class SecondBarrierMissing(Broken):
    unit = "second_barrier_missing"


class SharedUnwritten(Broken):
    unit = "shared_unwritten"


class ShortOffset(Broken):
    unit = "short_offset"


class StrayStore(Broken):
    unit = "stray_store"


class SyncwarpMissing(Broken):
    unit = "syncwarp_missing"


class WarpsInLockstep(Broken):
    unit = "warps_in_lockstep"


class WrongMask(Broken):
    unit = "wrong_mask"


KERNELS = {cls(32 if cls is SyncwarpMissing else 64) for cls in Broken.__subclasses__()}


def row(count: int) -> Array:
    """The numbers from 0 on."""
    return np.arange(count, dtype=np.float32)


def run(
    kernel: Broken,
    x: Array | None,
    out: Array,
    *,
    length: int = 64,
    step: int = 1,
    blocks: int = 1,
    shared_mem: int = 0,
    **how: Any,
) -> Array:
    """What a launch leaves in `out`."""
    config = LaunchConfig((blocks, 1, 1), (kernel.threads, 1, 1), shared_mem)
    numbers = kernel.params.pack_numbers(length=length, step=step)
    emulator.run(kernel, config, numbers, {"x": x, "out": out}, **how)
    return out


def finding(*arguments: Any, **how: Any) -> list[str]:
    """The lines of the error that a launch must end in, without the first, which names the kernel."""
    with pytest.raises(emulator.EmulationError) as caught:
        run(*arguments, **how)
    kernel, *lines = str(caught.value).splitlines()
    assert kernel == arguments[0].expression
    return lines


def frame(kernel: Broken, code: str, function: str = "") -> str:
    """The line of a finding that names the line of the kernel's file that has this code."""
    lines = (kernel.source_folder / f"{kernel.unit}.cu").read_text().splitlines()
    (number,) = (number for number, line in enumerate(lines, start=1) if code in line)
    return f"    {kernel.unit}.cu:{number} in {function or kernel.unit + '_kernel'}"
