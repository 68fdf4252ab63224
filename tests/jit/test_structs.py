"""What the host reads of the device code: argument structs and constants, and what it cannot read."""

from __future__ import annotations

import pytest

from cuconv.jit import source, structs
from cuconv.jit.source import Source
from cuconv.jit.structs import DeclarationError, Field
from cuconv.runtime.kernel import Params
from tests.support.discovery import all_kernels

FASTDIV = """
struct FastDiv {
    unsigned divisor;
    unsigned multiplier;
    unsigned shift;
    __device__ int quotient(int n) const { return n; }
};
"""
POOL = """
#include "common/fastdiv.cuh"
struct Pool {
    void* states;
    const index_t* slots[2];
    index_t stride[3];
};
"""
UNIT = """
#include "toy/pool.cuh"
/* struct ToyParams { int old; }; */
struct ToyParams {
    const void* x;  // (batch, dim)
    Pool pool;
    void* out[3];
    index_t x_stride[2];
    float eps;
    int   count;
    unsigned
        flag;
    FastDiv rows[2];
};
template <int kVec>
struct ToyTraits {
    static constexpr int kThreads = 128;
    // static constexpr int kOld = 1;
    static constexpr int kMinBlocks = 4;
    static constexpr int kTile = kThreads * kVec;
    static constexpr bool kFlag = true;
};
"""


def toy(unit: str = UNIT, **more: str) -> Source:
    return Source({"toy/toy.cu": unit, "toy/pool.cuh": POOL, "common/fastdiv.cuh": FASTDIV, **more})


def test_members_are_read_in_order_through_headers_and_structs() -> None:
    pointers = [Field("x", "", 1), Field("states", "", 1), Field("slots", "", 2)]
    assert structs.argument_struct(toy(UNIT.replace("    Pool pool;\n", "")), "toy/toy.cu", "ToyParams") == (
        Field("x", "", 1),
        Field("out", "", 3),
        Field("x_stride", "i8", 2),
        Field("eps", "f4", 1),
        Field("count", "i4", 1),
        Field("flag", "u4", 1),
        Field("rows", "u4", 6),
    )
    fields = structs.argument_struct(toy(), "toy/toy.cu", "ToyParams")
    assert list(fields[:4]) == [*pointers, Field("stride", "i8", 3)], "a struct with pointers counts as its members"
    assert [field.is_pointer for field in fields[:4]] == [True, True, True, False]


def test_pointers_come_before_numbers() -> None:
    """The packing of arguments takes them so; a struct in another order would be filled wrongly."""
    x, count, out = Field("x", "", 1), Field("count", "i8", 1), Field("out", "", 2)
    assert Params.declared([x, out, count]).pointer_names == ("x", "out[0]", "out[1]")
    with pytest.raises(TypeError, match="out of an argument struct is a pointer behind numbers"):
        Params.declared([x, count, out])


def test_constants_are_the_literal_ones_of_the_unit() -> None:
    assert structs.constants(toy(), "toy/toy.cu", "ToyTraits") == {"kThreads": 128, "kMinBlocks": 4}


@pytest.mark.parametrize(
    ("unit", "wanted"),
    [
        ("struct Other {\n};", "the device code declares 0 structs ToyParams; wanted one"),
        (UNIT + UNIT[UNIT.index("struct ToyParams") :], "the device code declares 2 structs ToyParams; wanted one"),
        ("struct ToyParams {\n    int a, b;\n};", "struct ToyParams: the host cannot read the member 'int a, b'"),
        (
            "struct ToyParams {\n    int a[kN];\n};",
            "struct ToyParams: the host cannot read the member 'int a[kN]'",
        ),
        ("struct ToyParams {\n    Vec<4> a;\n};", "struct ToyParams: the host cannot read the member 'Vec<4> a'"),
        ("struct ToyParams {\n    double a;\n};", "the device code declares 0 structs double; wanted one"),
        (
            "struct Mixed {\n    int a;\n    float b;\n};\nstruct ToyParams {\n    Mixed mixed;\n};",
            "struct Mixed in ToyParams: got ['f4', 'i4']; wanted pointers or one type",
        ),
    ],
)
def test_what_the_host_cannot_read_is_an_error_that_says_so(unit: str, wanted: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        structs.argument_struct(toy(unit), "toy/toy.cu", "ToyParams")
    assert str(caught.value) == wanted


def test_lengths_and_limits_are_constants_of_the_device_code() -> None:
    unit = "inline constexpr int kMany = 3;\nstruct ToyParams {\n    void* out[kMany];\n    int ends[2 * kMany];\n};"
    assert structs.argument_struct(toy(unit), "toy/toy.cu", "ToyParams") == (
        Field("out", "", 3),
        Field("ends", "i4", 6),
    )
    assert structs.constant(toy(unit), "toy/toy.cu", "kMany") == 3
    with pytest.raises(DeclarationError) as caught:
        structs.constant(toy(unit), "toy/toy.cu", "kFew")
    assert str(caught.value) == "toy/toy.cu declares no literal constant kFew"


def test_a_struct_of_another_unit_is_not_found() -> None:
    other = toy(**{"toy/other.cu": "struct OtherParams {\n    int a;\n};"})
    with pytest.raises(DeclarationError, match="declares 0 structs OtherParams"):
        structs.argument_struct(other, "toy/toy.cu", "OtherParams")
    with pytest.raises(DeclarationError, match="declares 0 structs FastDiv"):
        structs.constants(toy(), "toy/toy.cu", "FastDiv")


@pytest.mark.parametrize("cls", all_kernels())
def test_every_kernel_declares_its_threads_in_warps(cls: type) -> None:
    constants = structs.constants(source.load(), cls.file, f"{cls.__name__}Traits")
    # A class with blocks of several sizes says itself which the largest is.
    assert cls.threads == constants.get("kThreads", cls.threads) == 32 * cls.warps and 32 <= cls.threads <= 1024
    assert f"{cls.unit}_kernel" in source.load().files[cls.file]
