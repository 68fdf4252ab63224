"""Operations of threads give the same numbers under emulation and on a GPU: those that NumPy gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from cuconv.jit import nvrtc, source
from cuconv.runtime.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT32, DType
from cuconv.runtime.kernel import Kernel, LoadedKernel
from cuconv.runtime.launch import LaunchConfig
from tests import emulator
from tests.emulator.primitives import Arithmetic, Atomics, Conversions, Masks, Primitive, SharedMemory, Shuffles

Array = np.ndarray[Any, Any]
Run = Callable[..., None]

FLOAT64 = DType("float64", "double", 8, np.dtype(np.float64))
SHUFFLES = [Shuffles(dtype, 32) for dtype in (INT32, FLOAT16, BFLOAT16, FLOAT64)]
SHUFFLES += [Shuffles(FLOAT32, width) for width in (1, 4, 16, 32)]
KERNELS = [
    *SHUFFLES,
    *(Masks(odd_first) for odd_first in (False, True)),
    Atomics(64),
    *(Conversions(dtype) for dtype in (FLOAT16, BFLOAT16)),
    SharedMemory(5, 7),
    Arithmetic(256),
]


@pytest.fixture(scope="module")
def prebuilt() -> None:
    emulator.prebuild(KERNELS)


@pytest.fixture(
    params=[
        *(pytest.param(seed, id=f"seed{seed}") for seed in (0, 1)),
        pytest.param("gpu", marks=pytest.mark.gpu),
    ]
)
def run(request: pytest.FixtureRequest) -> Run:
    """A function that launches a kernel on the emulator or a GPU: (kernel, config, tensors, numbers by name)."""
    if request.param == "gpu":
        return run_on_gpu
    if (reason := emulator.available()) is not None:
        pytest.skip(reason)
    request.getfixturevalue("prebuilt")

    def run_emulated(kernel: Kernel, config: LaunchConfig, tensors: Mapping[str, Array], **numbers: int) -> None:
        emulator.run(kernel, config, kernel.params.pack_numbers(**numbers), tensors, seed=request.param)

    return run_emulated


def run_on_gpu(kernel: Primitive, config: LaunchConfig, tensors: Mapping[str, Array], **numbers: int) -> None:
    import cupy

    code = source.read(kernel.source_folder)
    arch = nvrtc.target(int(cupy.cuda.Device().compute_capability)).arch
    compiled = nvrtc.compile(code, kernel.file, (kernel.expression,), arch)
    module = cupy.cuda.function.Module()
    module.load(compiled.image)
    function = module.get_function(compiled.symbols[kernel.expression])
    uploaded = [cupy.asarray(array.view(np.uint8)) for array in tensors.values()]
    pointers = [array.data.ptr for array in uploaded]
    loaded = LoadedKernel(module, function.ptr, cupy.cuda.Device().id, kernel.params)
    enqueue = loaded.bound(config, kernel.params.pack_numbers(**numbers))
    enqueue(pointers, cupy.cuda.get_current_stream().ptr)
    for array, on_gpu in zip(tensors.values(), uploaded, strict=True):
        array.view(np.uint8)[...] = cupy.asnumpy(on_gpu)


def block(
    x: int, y: int = 1, z: int = 1, *, grid: tuple[int, int, int] = (1, 1, 1), shared_mem: int = 0
) -> LaunchConfig:
    return LaunchConfig(grid, (x, y, z), shared_mem)


@pytest.mark.parametrize("kernel", SHUFFLES, ids=lambda kernel: kernel.expression)
@pytest.mark.parametrize("distance", [0, 1, 3, 17, 31])
def test_shuffles(run: Run, kernel: Shuffles, distance: int) -> None:
    x = (np.arange(64) + 1).astype(kernel.dtype.numpy)
    out = np.zeros((4, 64), kernel.dtype.numpy)
    run(kernel, block(64), {"x": x, "out": out}, distance=distance, padding=0)
    lane = np.arange(64)
    place, first = lane % kernel.width, lane - lane % kernel.width
    inside = kernel.width - 1
    sources = [
        first + distance % kernel.width,
        np.where(place >= distance, lane - distance, lane),
        np.where(place + distance <= inside, lane + distance, lane),
        np.where((lane % 32 ^ distance) <= first % 32 + inside, lane ^ distance, lane),
    ]
    for row, chosen in zip(out, sources, strict=True):
        assert np.array_equal(row, x[chosen])


def test_the_last_warp_may_lack_lanes(run: Run) -> None:
    x = np.arange(40, dtype=np.int32)
    out = np.zeros((4, 40), np.int32)
    run(Shuffles(INT32, 32), block(40), {"x": x, "out": out}, distance=1, padding=0)
    assert np.array_equal(out[1], np.where(x % 32 == 0, x, x - 1))
    assert np.array_equal(out[2][:39], np.where(x % 32 == 31, x, x + 1)[:39])


@pytest.mark.parametrize("odd_first", [False, True])
@pytest.mark.parametrize("threshold", [0, 17, 40, 99])
def test_masks_and_votes(run: Run, odd_first: bool, threshold: int) -> None:
    x = (np.arange(64, dtype=np.uint32) * 37) % 64 + 1
    out = np.zeros((4, 64), np.uint32)
    run(Masks(odd_first), block(64), {"x": x, "out": out}, threshold=threshold, padding=0)
    pairs = x.reshape(2, 16, 2)
    sums = np.repeat(pairs.sum(1)[:, None], 16, axis=1)
    products = np.repeat(pairs.reshape(2, 4, 4, 2).prod(2), 4, axis=1)
    results = np.where(np.arange(2) == odd_first, sums, products)
    above = (x > threshold).reshape(2, 32)
    ballots = (above * 2 ** np.arange(32, dtype=np.uint64)).sum(1)
    for row, expected in zip(
        out.reshape(4, 2, 32),
        [
            results.reshape(2, 32),
            ballots[:, None],
            above.any(1, keepdims=True),
            np.where(np.arange(32) < 16, ballots[:, None] & 0xFFFF, 0),
        ],
        strict=True,
    ):
        assert np.array_equal(row, np.broadcast_to(expected, (2, 32)))


def test_atomics(run: Run) -> None:
    x = np.random.default_rng(0).integers(1, 1000, 5 * 64).astype(np.int32)
    cells = np.zeros(3, np.int32)
    sums = np.zeros(2, np.float32)[:1]
    run(Atomics(64), block(64, grid=(5, 1, 1)), {"x": x, "cells": cells, "sums": sums})
    bits = np.bitwise_or.reduce(np.int64(1) << (x & 31)).astype(np.uint32).astype(np.int32)
    assert tuple(cells) == (x.sum(), x.max(), bits)
    assert sums == x.sum()


def interesting_floats(dtype: DType) -> Array:
    """All values of a 16-bit dtype, midpoints between neighbours, and float32 numbers next to both, of both signs."""
    patterns = np.arange(2**15, dtype=np.uint16)
    with np.errstate(all="ignore"):
        values = patterns.view(dtype.numpy).astype(np.float32)
        finite = np.sort(values[np.isfinite(values)]).astype(np.float64)
        middles = ((finite[1:] + finite[:-1]) / 2).astype(np.float32)
        at = np.concatenate([values, middles])
        below, above = (np.nextafter(at, np.float32(limit)) for limit in (-np.inf, np.inf))
    random = np.random.default_rng(0).integers(0, 2**32, 2**12, np.uint32).view(np.float32)
    nans = np.array([0x7F800001, 0x7FC00000, 0x7FFFFFFF], np.uint32).view(np.float32)
    limits = np.array([65504, 65519.996, 65520, 3.3895314e38, 3.3961775e38, 3.4028235e38, 1e-45], np.float32)
    positive = np.concatenate([at, below, above, random, nans, limits])
    return np.concatenate([positive, -positive])


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16], ids=str)
def test_conversions_are_exact(run: Run, dtype: DType) -> None:
    floats = interesting_floats(dtype)
    count = floats.size
    patterns = np.resize(np.arange(2**16, dtype=np.uint16), count)
    widened = np.zeros(count, np.float32)
    narrowed = np.zeros(count, np.uint16)
    paired = np.zeros((count, 2), np.uint16)
    tensors = {"patterns": patterns, "floats": floats, "widened": widened, "narrowed": narrowed, "paired": paired}
    run(Conversions(dtype), block(512, grid=(-(-count // 512), 1, 1)), tensors, count=count, padding=0)
    assert np.array_equal(widened, patterns.view(dtype.numpy).astype(np.float32), equal_nan=True)
    with np.errstate(all="ignore"):
        expected = floats.astype(dtype.numpy).view(np.uint16)
    expected[np.isnan(floats)] = 0x7FFF  # a GPU makes no other NaN
    assert np.array_equal(narrowed, expected)
    assert np.array_equal(paired, np.stack([expected, expected[::-1]], axis=1))


def test_shared_memory(run: Run) -> None:
    x = np.random.default_rng(0).integers(1, 10, (2, 3, 2, 35)).astype(np.float32)
    out = np.zeros_like(x)
    config = block(5, 7, grid=(2, 3, 2), shared_mem=35 * 4)
    run(SharedMemory(5, 7), config, {"x": x.reshape(-1), "out": out.reshape(-1)})
    transposed = x.reshape(2, 3, 2, 7, 5).swapaxes(-1, -2).reshape(x.shape)
    backward = x[..., ::-1]
    copies = (backward + 1) * 100 + (backward + 2) * 10000
    assert np.array_equal(out, transposed + copies + x[..., :3].sum(-1, keepdims=True) * 1000000)


def test_arithmetic(run: Run) -> None:
    random = np.random.default_rng(0)
    a, b = (random.integers(-(2**31), 2**31, 256).astype(np.int32) for _ in range(2))
    a[:4], b[:4] = [0, -1, 1, -(2**31)], [0, -(2**31), 2**31 - 1, -1]
    u, v = (random.uniform(-90, 90, 256).astype(np.float32) for _ in range(2))
    u[:4], v[:4] = [np.nan, 1.0, np.inf, 3.0], [2.0, np.nan, 2.0**127, 1.5 * 2.0**126]
    integers, floats = np.zeros((7, 256), np.int32), np.zeros((6, 256), np.float32)
    run(Arithmetic(256), block(256), {"a": a, "b": b, "u": u, "v": v, "integers": integers, "floats": floats})
    ua, ub = a.view(np.uint32), b.view(np.uint32)
    expected: list[Any] = [
        ((ua.astype(np.uint64) * ub) >> np.uint64(32)).astype(np.uint32).view(np.int32),
        [int(n).bit_count() for n in ua],
        [32 - int(n).bit_length() for n in ua],
        [(int(n) & -int(n)).bit_length() for n in ua],
        np.minimum(a, b),
        np.maximum(a, b),
        np.minimum(ua, ub).view(np.int32),
    ]
    assert np.array_equal(integers, expected)
    with np.errstate(all="ignore"):
        quotients = u / v
        # A divisor above 2**126 makes __fdividef give 0, or NaN of infinity.
        quotients[2:4] = [np.nan, 0.0]
        assert np.array_equal(floats[0], np.fmin(u, v)) and np.array_equal(floats[1], np.fmax(u, v))
        np.testing.assert_allclose(floats[2], quotients, rtol=3e-7)
        fused = (u.astype(np.float64) * v + u).astype(np.float32)
        np.testing.assert_allclose(floats[3], fused, rtol=1e-7)
        np.testing.assert_allclose(floats[4], np.exp(np.fmin(u, 80).astype(np.float64)), rtol=2e-5)
        np.testing.assert_allclose(floats[5], 1 / np.sqrt(np.abs(u.astype(np.float64))), rtol=3e-7)
