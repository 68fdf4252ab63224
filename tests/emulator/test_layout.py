"""Assertions of the emulator's build that the argument struct in C++ is the record that the host packs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cuconv.causal_conv1d.kernels import CausalConv1dFwd
from cuconv.runtime.kernel import Params
from tests import emulator
from tests.emulator import broken, compiler
from tests.emulator.broken import Broken

pytestmark = pytest.mark.skipif(emulator.available() is not None, reason=str(emulator.available()))


LENGTH, STEP = ("length", "i4"), ("step", "i4")


@pytest.mark.parametrize(
    ("params", "complaint"),
    [
        (Params(("x", "out"), STEP, LENGTH), "step in the argument struct of null_pointer is at 16 in NumPy"),
        (Params(("x", "out"), LENGTH, STEP, ("more", "i8")), "struct of null_pointer has 32 bytes in NumPy"),
        (Params(("x", "out"), ("length", "i2"), STEP), "length in the .* null_pointer has 2 bytes in NumPy"),
        (Params(("x", "out", "length")), "length in the argument struct of null_pointer is a pointer in NumPy"),
        (Params(("out", "x"), LENGTH, STEP), "out in the argument struct of null_pointer is at 0 in NumPy"),
    ],
)
def test_an_argument_struct_that_differs_does_not_build(params: Params, complaint: str) -> None:
    differing = {"unit": "null_pointer", "params": params}
    kernel: Broken = type("Other", (Broken,), differing)(64)
    with pytest.raises(emulator.BuildError, match=complaint):
        emulator.prebuild([kernel])


def test_operands_in_a_struct_of_their_own_are_checked_too() -> None:
    """Convolutions declare operands in a struct inside of their parameters; the record on the host is flat."""
    kernel = next(CausalConv1dFwd.variants())
    names = {"batch": "dim", "dim": "batch"}
    fields = [(names.get(name, name), *rest) for name, *rest in kernel.params.dtype.descr]
    count = len(kernel_pointers := emulator.pointer_names(kernel))
    params: Any = Params(kernel_pointers, *((name, code[1:], *shape) for name, code, *shape in fields[count:]))
    same: dict[str, Any] = {"unit": kernel.unit, "file": kernel.file}
    swapped = type("Swapped", (CausalConv1dFwd,), same | {"params": params})(**vars(kernel))
    with pytest.raises(emulator.BuildError) as caught:
        emulator.prebuild([swapped])
    for name in names:
        assert f"{name} in the argument struct of causal_conv1d_fwd is at" in str(caught.value)
    assert "seqlen in" not in str(caught.value)


MANY_OUTPUTS = """
struct Operands {
    const float* x;
    %s
    int length;
    int step;
};

struct ManyParams {
    Operands operands;
};

template <int kThreads>
__global__ void many_outputs_kernel(const ManyParams p) {
    if (p.operands.length < 0) __trap();
}
"""
THREE = ("x", "out[0]", "out[1]", "out[2]")


def many_outputs(folder: Path, declared: str, pointers: tuple[str, ...]) -> Broken:
    """A kernel with an array of pointers, declared so in C++ and named so on the host."""
    (folder / "many_outputs.cu").write_text(MANY_OUTPUTS % declared)
    params = Params(pointers, ("length", "i4"), ("step", "i4"))
    named = {"unit": "many_outputs", "source_folder": folder, "params": params}
    kernel: Broken = type("ManyOutputs", (broken.CLASSES["null_pointer"],), named)(64)
    return kernel


@pytest.mark.parametrize(
    ("declared", "pointers", "complaint"),
    [
        ("float* out[2];", THREE, "out in the argument struct of many_outputs has 24 bytes in NumPy"),
        ("float* out[4];", THREE, "out in the argument struct of many_outputs has 24 bytes in NumPy"),
        ("long out[3];", THREE, "out in the argument struct of many_outputs is an array of pointers in NumPy"),
        ("float* out[1][3];", THREE, "out in the argument struct of many_outputs is an array of pointers in NumPy"),
        ("float* out;", THREE[:2], "out in the argument struct of many_outputs is an array of pointers in NumPy"),
        ("float* out[1];", ("x", "out"), "out in the argument struct of many_outputs is a pointer in NumPy"),
        ("float* y; float* out[3];", THREE, "out in the argument struct of many_outputs is at 8 in NumPy"),
    ],
)
def test_an_array_of_pointers_that_differs_does_not_build(
    tmp_path: Path, declared: str, pointers: tuple[str, ...], complaint: str
) -> None:
    with pytest.raises(emulator.BuildError, match=complaint):
        emulator.prebuild([many_outputs(tmp_path, declared, pointers)])


def test_pointers_with_an_index_are_one_array(tmp_path: Path) -> None:
    kernel = many_outputs(tmp_path, "float* out[3];", THREE)
    emulator.prebuild([kernel])
    assert compiler.library(kernel).is_file()
