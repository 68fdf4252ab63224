"""The sums that blocks leave are added up, however many blocks there are, on the emulator."""

from __future__ import annotations

import numpy as np
import pytest

from cuconv.causal_conv1d.kernels_backward import CausalConv1dBwdSum
from cuconv.runtime.dtypes import FLOAT32
from tests import emulator

pytestmark = pytest.mark.skipif(emulator.available() is not None, reason=str(emulator.available()))


@pytest.mark.parametrize("parts", [1, 9, 64, 65, 130, 528, 1100, 2049])
def test_all_parts_are_added_up(parts: int) -> None:
    width, dim = 3, 11
    kernel = CausalConv1dBwdSum(width, FLOAT32)
    config, share = kernel.launch_config(dim, parts)
    scratch = np.random.default_rng(parts).standard_normal((parts, width + 1, dim)).astype(np.float32)
    dweight, dbias = np.full((dim, width), np.nan, np.float32), np.full(dim, np.nan, np.float32)
    flags = dict.fromkeys(("dweight_is_float32", "dbias_is_float32"), True)
    numbers = kernel.params.pack_numbers(dweight_stride=(width, 1), dbias_stride=1, **flags, **share)
    emulator.run(kernel, config, numbers, {"dweight": dweight, "dbias": dbias, "scratch": scratch})
    sums = scratch.astype(np.float64).sum(axis=0)
    bound = 2.0**-24 * parts * np.abs(scratch).astype(np.float64).sum(axis=0)
    assert np.all(np.abs(dweight.T - sums[:width]) <= bound[:width])
    assert np.all(np.abs(dbias - sums[width]) <= bound[width])
