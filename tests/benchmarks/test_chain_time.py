"""Time of the small kernels of a decode step one after the other, by dependent launches and without."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import cuconv
from cuconv.bench.timing import Replay, copy_time, sets_needed


@pytest.mark.gpu
@pytest.mark.parametrize("way", ["plain", "dependent"])
@pytest.mark.parametrize("batch", [1, 8, 64])
def test_time(benchmark: Any, report: Any, batch: int, way: str) -> None:
    cupy = pytest.importorskip("cupy")
    from tests.benchmarks import decode_chain

    norms = [decode_chain.load_norm(starts_early) for starts_early in (False, True)]
    layers = [decode_chain.layer(batch, 0)]
    count = sets_needed(layers[0].bytes_moved)
    layers += [decode_chain.layer(batch, number) for number in range(1, count)]
    pair = [decode_chain.layer(batch, 0) for _ in range(2)]
    cupy.cuda.Device().synchronize()
    for each, norm in zip(pair, norms, strict=True):
        with cuconv.dependent_launch() if norm is norms[1] else nullcontext():
            for _ in range(10):
                each.step(norm)
    plain, early = ({name: array.view(cupy.uint8).get() for name, array in each.written.items()} for each in pair)
    for name, expected in plain.items():
        np.testing.assert_array_equal(early[name], expected, err_msg=name)
    with cuconv.dependent_launch() if way == "dependent" else nullcontext():
        replay = Replay([lambda each=each: each.step(norms[way == "dependent"]) for each in layers])
    benchmark.pedantic(replay.run, rounds=5)
    seconds, nbytes = replay.seconds(), layers[0].bytes_moved
    report(kernel_us=seconds * 1e6, gb_per_s=nbytes / seconds * 1e-9, fraction_of_copy=copy_time(nbytes) / seconds)
