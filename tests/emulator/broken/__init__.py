"""Small kernels that each do one thing that a kernel must not do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from cuconv.jit import source
from cuconv.jit.structs import argument_struct
from cuconv.runtime.kernel import Kernel, Params, PerClass
from cuconv.runtime.launch import LaunchConfig
from tests import emulator

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Broken(Kernel):
    """A kernel of tests/emulator/broken. Its block has as many threads as its template parameter says."""

    source_folder: ClassVar[Path] = Path(__file__).parent
    file = PerClass(lambda cls: f"{cls.unit}.cu")
    params = PerClass(lambda cls: Params.declared(argument_struct(source.read(cls.source_folder), cls.file, "Row")))

    block: int


@dataclass(frozen=True)
class Endless(Broken):
    is_atomic: bool = False


UNITS = sorted(path.stem for path in Broken.source_folder.glob("*.cu"))
CLASSES = {unit: type(unit, (Broken,), {"unit": unit}) for unit in UNITS} | {"endless": Endless}
CLASSES |= {
    unit: type(unit, (Broken,), {"unit": unit, "EARLY": early})
    for unit, early in {"read_before_wait": (), "store_before_wait": ("x", "out"), "left_before_wait": ("x",)}.items()
}


def kernel(unit: str, block: int = 64) -> Broken:
    """The kernel of a file, with blocks of this size."""
    made: Broken = CLASSES[unit](block)
    return made


KERNELS = [kernel(unit, 32 if unit == "syncwarp_missing" else 64) for unit in UNITS]


def row(count: int) -> Array:
    """The numbers 0, 1, ... as float32."""
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
    """Launch a kernel and return `out`, which it may have written."""
    config = LaunchConfig((blocks, 1, 1), (kernel.block, 1, 1), shared_mem)
    numbers = kernel.params.pack_numbers(length=length, step=step)
    emulator.run(kernel, config, numbers, {"x": x, "out": out}, **how)
    return out


def finding(*arguments: Any, **how: Any) -> list[str]:
    """Launch a kernel that must fail. Returns the lines of the error without the first, which names the kernel."""
    with pytest.raises(emulator.EmulationError) as caught:
        run(*arguments, **how)
    kernel, *lines = str(caught.value).splitlines()
    assert kernel == arguments[0].expression
    return lines


def frame(kernel: Broken, code: str, function: str = "") -> str:
    """The stack frame that a finding shows for the one line of the kernel's file with this code."""
    lines = (kernel.source_folder / f"{kernel.unit}.cu").read_text().splitlines()
    (number,) = (number for number, line in enumerate(lines, start=1) if code in line)
    return f"    {kernel.unit}.cu:{number} in {function or kernel.unit + '_kernel'}"
