"""Gradients of tensors with more than 2**32 elements: every element is written, and whole channels are right."""

from __future__ import annotations

import numpy as np
import pytest

from tests.causal_conv1d import cases_bwd as table
from tests.causal_conv1d.cases_bwd import Case
from tests.causal_conv1d.test_dense_big_memory import assert_all_written, fill, to_host, view
from tests.support.compare import check_call
from tests.support.gpu import CupyArrays
from tests.support.placement import POISON, Placed

pytestmark = [pytest.mark.gpu, pytest.mark.big_memory]

TOKENS = ("x", "dout", "dx")
PARAMETERS = ("weight", "bias", "dweight", "dbias")


@pytest.mark.parametrize("case", table.BIG, ids=lambda case: case.id)
def test_tensors_of_billions_of_elements(case: Case) -> None:
    cupy = pytest.importorskip("cupy")
    lies = case.placements()
    count = int(np.prod(lies["x"].shape, dtype=np.int64))
    assert count > 2**32
    uniform = np.random.default_rng(0).uniform
    small = {
        name: Placed(each, None if name in case.OUTPUTS else uniform(-1, 1, each.shape))
        for name, each in lies.items()
        if name not in TOKENS
    }
    words = {name: cupy.empty(lies[name].size, np.uint16) for name in TOKENS}
    for name in ("x", "dout"):
        fill(words[name], case.dtype)
    words["dx"].view(np.uint8).fill(POISON)
    large = {name: view(words[name], lies[name]) for name in TOKENS}
    arrays = {name: CupyArrays.upload(placed)[1] for name, placed in small.items()} | large
    case.call(arrays)

    assert_all_written(words["dx"], lies["dx"].first, count)
    for channel in (0, 1, case.dim // 2 + 3, case.dim - 1):
        kept = slice(channel, channel + 1)
        own = {name: to_host(array[kept] if name in PARAMETERS else array[:, kept]) for name, array in arrays.items()}
        written = {name: own.pop(name) for name in case.OUTPUTS}
        check_call("causal_conv1d_bwd", case.arguments(own), case.oracle(own), written)
