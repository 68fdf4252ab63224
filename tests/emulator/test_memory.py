"""Accesses outside the tensors of a launch, which the emulator must find."""

from __future__ import annotations

import re

import numpy as np
import pytest

from cuconv.runtime.launch import LaunchConfig
from tests import emulator
from tests.emulator import broken
from tests.emulator.broken import finding, frame, row, run

pytestmark = pytest.mark.skipif(emulator.available() is not None, reason=str(emulator.available()))


@pytest.fixture(scope="module", autouse=True)
def prebuilt() -> None:
    emulator.prebuild(broken.KERNELS)


@pytest.mark.parametrize("count", [64, 61])
@pytest.mark.parametrize("first", [0, 1, 3])
@pytest.mark.parametrize("is_sliced", [False, True], ids=["alone", "sliced"])
def test_one_element_past_a_row_is_found(count: int, first: int, is_sliced: bool) -> None:
    """The store is found at any alignment, and also where a wider tensor has an element."""
    kernel = broken.kernel("past_the_row")
    x = row(first + count + (4 if is_sliced else 0))[first : first + count]
    lines = finding(kernel, x, row(64), length=count)
    assert lines[0].startswith("AddressSanitizer: use-after-poison")
    assert lines[1:] == [
        "    0 bytes past the end of x",
        "    READ of size 4",
        frame(kernel, "x + 1"),
        f"emulator: in block (0, 0, 0), thread ({count - 1}, 0, 0)",
    ]


def test_one_element_past_one_of_many_rows_is_found() -> None:
    x = np.zeros((3, 68), np.float32)[:, :64]
    assert finding(broken.kernel("past_the_row"), x, row(64))[1] == "    in a gap of x, 256 bytes from its beginning"


def test_an_access_gigabytes_away_is_found() -> None:
    kernel = broken.kernel("short_offset")
    lines = finding(kernel, row(64), row(64), step=-(2**25))
    assert lines[0].startswith("AddressSanitizer: SEGV")
    assert re.fullmatch(r"    \d{9,} bytes before x", lines[1])
    assert lines[2] == frame(kernel, "row * p.step")


def test_a_store_to_a_gap_is_found() -> None:
    lines = finding(broken.kernel("stray_store"), row(32), row(66)[2:][::2], length=32, step=2)
    assert lines[1:3] == ["    in a gap of out, 4 bytes from its beginning", "    WRITE of size 4"]


def test_a_store_to_a_gap_that_the_sanitizer_cannot_see_is_found() -> None:
    """AddressSanitizer knows memory by 8 bytes, of which it can only close the last ones."""
    out = row(66)
    out = out[1 + out.ctypes.data // 4 % 2 :][:63:2]
    assert out.ctypes.data % 8 == 4
    lines = finding(broken.kernel("stray_store"), row(32), out, length=32, step=2)
    assert lines == ["a store where no tensor has an element: in a gap of out, 4 bytes from its beginning"]


def test_a_store_to_a_read_only_tensor_is_found() -> None:
    out = row(64) + 1
    out.flags.writeable = False
    assert finding(broken.kernel("null_pointer"), row(64), out) == ["a store to out, which is read-only"]


def test_tensors_that_share_elements_share_them() -> None:
    """Tensors of an operation in place share elements; two interleaved halves of one tensor share none."""
    x = row(65)
    run(broken.kernel("null_pointer"), x[1:], x[:64])
    assert (np.diff(x) >= 0).all() and x[63] == 64 and (x[:64] != row(65)[1:]).any()
    pairs = row(128).reshape(64, 2)
    assert "x" in finding(broken.kernel("null_pointer"), pairs[:, 0], pairs[:, 1])[1]


@pytest.mark.parametrize("first", [1, 2, 3])
def test_a_misaligned_vector_is_found(first: int) -> None:
    kernel = broken.kernel("misaligned_vector")
    x = row(264)
    x = x[-x.ctypes.data // 4 % 4 + first :][:256]
    lines = finding(kernel, x, row(64))
    assert "misaligned address" in lines[0] and "'const struct float4', which requires 16 byte" in lines[0]
    assert "of x" in lines[1]
    assert lines[2] == frame(kernel, "__ldg")


def test_an_aligned_vector_is_not_mistaken() -> None:
    x = row(264)
    x = x[-x.ctypes.data // 4 % 4 :][:256]
    assert np.array_equal(run(broken.kernel("misaligned_vector"), x, row(64)), x.reshape(64, 4).sum(1))


@pytest.mark.parametrize("is_dynamic", [False, True], ids=["static", "dynamic"])
def test_one_element_past_shared_memory_is_found(is_dynamic: bool) -> None:
    kernel = broken.kernel("past_shared")
    lines = finding(kernel, row(64), row(64), step=int(is_dynamic), shared_mem=256)
    assert lines[0].startswith("AddressSanitizer: use-after-poison")
    assert lines[1:5] == [
        "    not near any tensor: in shared memory, a local variable or no memory at all",
        "    WRITE of size 4",
        frame(kernel, "p[i] = v", "put"),
        frame(kernel, "put(row"),
    ]


def test_more_shared_memory_than_a_block_has_is_found() -> None:
    kernel = broken.kernel("past_shared")
    lines = finding(kernel, row(64), row(64), shared_mem=227 * 1024)
    assert lines[:2] == [
        f"emulator: {227 * 1024 + 256} bytes of shared memory, 227 KiB is the most",
        frame(kernel, "__shared__ float fixed"),
    ]


def test_more_threads_than_a_block_has_are_found() -> None:
    lines = finding(broken.kernel("null_pointer", 1025), row(1025), row(1025))
    assert lines[0] == "emulator: 1025 x 1 x 1 threads in a block, 1024 is the most"


def test_one_element_past_a_local_array_is_found() -> None:
    kernel = broken.kernel("past_local")
    assert finding(kernel, row(64), row(64), length=5)[:2] == [
        "index 4 out of bounds for type 'float [4]'",
        frame(kernel, "taps[i] ="),
    ]


def test_one_element_past_a_local_array_is_found_by_a_pointer() -> None:
    """The guards on a thread's stack are kept when threads switch."""
    kernel = broken.kernel("past_local")
    lines = finding(kernel, row(64), row(64), length=4, step=5)
    assert lines[0].startswith("AddressSanitizer: stack-buffer-overflow")
    assert lines[2:5] == ["    WRITE of size 4", frame(kernel, "p[i] = v", "put"), frame(kernel, "put(taps")]
    assert "'taps'" in lines[5] and "overflows this variable" in lines[5]


def test_an_offset_that_overflows_is_found() -> None:
    kernel = broken.kernel("short_offset")
    lines = finding(kernel, row(64), row(64), step=2**30)
    assert "signed integer overflow" in lines[0]
    assert lines[1] == frame(kernel, "row * p.step")


def test_reading_an_absent_tensor_is_found() -> None:
    kernel = broken.kernel("null_pointer")
    assert frame(kernel, "p.x[threadIdx.x]") in finding(kernel, None, row(64))


def test_a_tensor_without_elements_has_none() -> None:
    assert re.fullmatch(r"    \d+ bytes past the end of x", finding(broken.kernel("null_pointer"), row(0), row(64))[1])


def test_tensors_must_be_the_kernel_s() -> None:
    kernel = broken.kernel("null_pointer")
    config = LaunchConfig((1, 1, 1), (64, 1, 1))
    numbers = kernel.params.pack_numbers(length=0, step=0)
    with pytest.raises(TypeError, match="tensors are out, x, want x, out"):
        emulator.run(kernel, config, numbers, {"out": row(64), "x": row(64)})
    with pytest.raises(TypeError, match="numbers has 7 bytes, want 8"):
        emulator.run(kernel, config, numbers[:-1], {"x": row(64), "out": row(64)})
