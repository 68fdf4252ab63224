"""Pools of more than 2**32 elements: decode steps find their slots there, and write nowhere else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import cuconv
from tests.causal_conv1d.cases_update import BIG, Case
from tests.causal_conv1d.test_dense_big_memory import CHUNK, view
from tests.support.compare import check_values
from tests.support.gpu import CupyArrays
from tests.support.placement import POISON, Placed

pytestmark = [pytest.mark.gpu, pytest.mark.big_memory]


@pytest.mark.parametrize("case", BIG, ids=lambda case: case.id)
def test_slots_of_a_pool_of_billions_of_elements(case: Case) -> None:
    cupy = pytest.importorskip("cupy")
    lies = case.placements()
    count, *state = lies["conv_state"].shape
    size = int(np.prod(state))
    assert count * size > 2**32
    slots = np.array([count - 1, 2**31 // size, 0, 2**32 // size])
    # The same call on a pool of nothing but these slots.
    small = replace(case, slots=None, spare=0)
    values = small.inputs()
    words = cupy.empty(lies["conv_state"].size, np.uint16)
    words.view(np.uint8).fill(POISON)
    pool = view(words, lies["conv_state"])
    for slot, columns in zip(slots, values["conv_state"], strict=True):
        pool[slot].view(np.uint16)[...] = cupy.asarray(np.ascontiguousarray(columns).view(np.uint16))
    given = {name: values.get(name) for name in lies if name != "conv_state"} | {"conv_state_indices": slots}
    arrays = {name: CupyArrays.upload(Placed(lies[name], each))[1] for name, each in given.items()}
    cuconv.causal_conv1d_update(**case.arguments({**arrays, "conv_state": pool}))

    states = np.stack([CupyArrays.fetch(pool[slot]) for slot in slots])
    check_values(small, values, {"out": CupyArrays.fetch(arrays["out"]), "conv_state": states})
    written = sum(int(cupy.count_nonzero(words[i : i + CHUNK] != 0xFFFF)) for i in range(0, words.size, CHUNK))
    assert written == slots.size * size, "elements of other slots were written"
