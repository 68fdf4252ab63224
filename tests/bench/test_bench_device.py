"""Arrays of workloads: random numbers, the memory of any strides, and on a GPU all of it."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from cuconv.bench import device
from cuconv.bench.workloads import SMALL, workloads
from cuconv.runtime.dtypes import FLOATS


@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (-7.0, -3.0)])
def test_random_numbers_are_uniform_and_have_no_order(low: float, high: float) -> None:
    count = 2**18
    values, others = (device.uniform(np, count, seed, low, high) for seed in (7, 8))
    assert values.dtype == np.float32 and low <= values.min() and values.max() <= high
    counts, _ = np.histogram(values, 64, (low, high))
    assert np.abs(counts - count / 64).max() < 6 * (count / 64) ** 0.5
    for pair in ((values[:-1], values[1:]), (values, others)):
        assert abs(np.corrcoef(*pair)[0, 1]) < 6 / count**0.5
    np.testing.assert_array_equal(device.uniform(np, count, 7, low, high), values)


@pytest.mark.parametrize("index", [np.s_[...], np.s_[::-1, 1::2], np.s_[1:, ::-3], np.s_[:0], np.s_[0]], ids=str)
def test_the_memory_of_an_array_is_all_that_it_spans(index: Any) -> None:
    whole = np.arange(40, dtype=np.float32).reshape(5, 8).astype(ml_dtypes.bfloat16)
    array = whole.T[index]
    memory, first_byte = device.memory_of(array)
    again = np.ndarray(array.shape, array.dtype, memory.tobytes(), first_byte, array.strides)
    np.testing.assert_array_equal(again, array)
    assert memory.size <= whole.nbytes


def test_the_memory_of_repeated_elements_holds_them_once() -> None:
    array = np.broadcast_to(np.arange(3, dtype=np.int32)[:, None], (3, 1000))
    memory, first_byte = device.memory_of(array)
    assert memory.size == 12 and first_byte == 0
    np.testing.assert_array_equal(np.ndarray(array.shape, array.dtype, memory, 0, array.strides), array)


@pytest.mark.gpu
@pytest.mark.parametrize("function", SMALL)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_arrays_on_a_gpu(function: str, dtype: Any) -> None:
    workload = next(workloads(SMALL, function, dtype=dtype.name))
    made, again, other = (device.arrays(workload, number) for number in (0, 0, 1))
    renewed, results = device.arrays(workload, 1), device.outs(workload)
    for out, result in zip(workload.outs.values(), results, strict=True):
        result.data.memset(0, out.nbytes)
    device.renew(workload, 0, renewed, results)
    for result, poisoned in zip(results, device.outs(workload), strict=True):
        assert device.fetch(result).tobytes() == device.fetch(poisoned).tobytes()
    host = workload.host()
    for name, array in workload.arrays.items():
        found = device.fetch(made[name])
        assert (found.shape, found.dtype) == (array.shape, array.dtype.numpy)
        assert [stride // found.itemsize for stride in made[name].strides] == list(array.strides)
        np.testing.assert_array_equal(found, device.fetch(again[name]))
        np.testing.assert_array_equal(found, device.fetch(renewed[name]))
        np.testing.assert_array_equal(workload.cut(name, found), device.cut(workload, name, made[name]))
        if array.values is None:
            assert (found != device.fetch(other[name])).any()
            values = found.astype(np.float64)
            assert array.low <= values.min() and values.max() <= array.high and values.std() > 0
        else:
            np.testing.assert_array_equal(found, host[name])
        uploaded = device.upload(host[name])
        np.testing.assert_array_equal(device.fetch(uploaded), host[name])
    for out, array in zip(device.outs(workload), workload.outs.values(), strict=True):
        assert np.isnan(device.fetch(out).astype(np.float64)).all()
        assert [stride // out.itemsize for stride in out.strides] == list(array.strides)
