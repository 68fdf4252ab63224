"""A kernel's arguments as bytes: the layout that C++ gives the same struct."""

from __future__ import annotations

import struct

import pytest

from cuconv.runtime.kernel import MAX_ARGUMENT_BYTES, Kernel, Params
from tests.support.discovery import all_kernels

PARAMS = Params(("x", "out"), ("stride", "i8", 3), ("count", "i4"), ("flag", "u4"))


def test_numbers_are_packed_as_in_cpp() -> None:
    numbers = PARAMS.pack_numbers(stride=(1, -(2**40), 3), count=-5, flag=2**32 - 1)
    assert numbers == struct.pack("=3q i I", 1, -(2**40), 3, -5, 2**32 - 1)
    assert PARAMS.packing[2].pack(2**63 + 1, 0, numbers) == struct.pack("=2Q", 2**63 + 1, 0) + numbers


@pytest.mark.parametrize("given", [0, 1, 2])
def test_pointers_that_are_left_out_are_null(given: int) -> None:
    numbers = PARAMS.pack_numbers(stride=(1, 2, 3), count=4, flag=5)
    buffer = bytearray(b"x" * (PARAMS.dtype.itemsize + 1))
    PARAMS.packing[given].pack_into(buffer, 0, *(7, 8)[:given], numbers)
    assert buffer == struct.pack("=2Q", *(*(7, 8)[:given], 0, 0)[:2]) + numbers + b"x"


def test_fields_follow_the_pointers_without_a_gap() -> None:
    assert PARAMS.dtype.itemsize == 2 * 8 + 3 * 8 + 2 * 4
    offsets = {name: field[1] for name, field in (PARAMS.dtype.fields or {}).items()}
    assert offsets == {"x": 0, "out": 8, "stride": 16, "count": 40, "flag": 44}


def test_the_end_is_padded_as_in_cpp() -> None:
    odd = Params(("x",), ("stride", "i8"), ("count", "u4"))
    assert odd.dtype.itemsize == 24
    assert odd.pack_numbers(stride=1, count=2) == struct.pack("=q I 4x", 1, 2)


def test_padding_between_fields_is_zero() -> None:
    gap = Params(("x",), ("count", "u4"), ("stride", "i8"))
    assert gap.pack_numbers(count=1, stride=2) == struct.pack("=I 4x q", 1, 2)


def test_a_missing_field_is_refused() -> None:
    with pytest.raises(KeyError, match="flag"):
        PARAMS.pack_numbers(stride=(1, 2, 3), count=1)


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(TypeError, match="no such fields: width"):
        PARAMS.pack_numbers(stride=(1, 2, 3), count=1, flag=0, width=4)


@pytest.mark.parametrize("field", ["count", "flag"])
def test_a_number_that_does_not_fit_is_refused(field: str) -> None:
    with pytest.raises(OverflowError):
        PARAMS.pack_numbers(**{"stride": (1, 2, 3), "count": 0, "flag": 0, field: 2**32})


@pytest.mark.parametrize("cls", all_kernels())
def test_every_kernel_has_arguments_that_a_launch_takes(cls: type[Kernel]) -> None:
    params = cls.params
    assert params.dtype.itemsize <= MAX_ARGUMENT_BYTES
    # The struct's end is aligned to its pointers: bytes that are not packed would be another launch's.
    assert params.dtype.itemsize == params.pointers.size + params.numbers.itemsize
    assert params.dtype.itemsize % 8 == 0
