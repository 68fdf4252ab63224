"""A pool of more than 2**32 elements and tokens of more than 2**31: the right ones are used, and no others."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import cuconv
from tests.causal_conv1d.test_dense_big_memory import assert_all_written, fill, view
from tests.selective_state_update import call as calls
from tests.selective_state_update import cases as table
from tests.selective_state_update.call import Case
from tests.support.compare import check_values
from tests.support.gpu import CupyArrays
from tests.support.placement import POISON, Placed

pytestmark = [pytest.mark.gpu, pytest.mark.big_memory]

SAMPLES = 40


def sequences(case: Case, slots: list[int]) -> list[int]:
    """The sequences at elements 2**31 and 2**32 of any array, the first, the last, and many random ones."""
    choose, chosen = random.Random(case.id), {0, len(slots) - 1}
    for name, shape in calls.shapes(case).items():
        edges = {element // int(np.prod(shape[1:])) for element in (2**31, 2**32)}
        edges |= {edge - 1 for edge in edges}
        if name == "state":
            chosen |= {sequence for sequence, slot in enumerate(slots) if slot in edges}
        elif len(shape) > 2 and shape[0] == len(slots):
            chosen |= {edge for edge in edges if edge < len(slots)}
    return sorted(chosen | {choose.randrange(len(slots)) for _ in range(SAMPLES)})


@pytest.mark.parametrize("case", table.BIG, ids=lambda case: case.id)
def test_billions_of_elements(case: Case) -> None:
    cupy = pytest.importorskip("cupy")
    lies, uniform = table.placements(case), np.random.default_rng(0).uniform
    assert max(lie.size for lie in lies.values()) > 2**31
    per_slot = int(np.prod(lies["state"].shape[1:]))
    # The last slot, and those before and behind elements 2**31 and 2**32.
    last = lies["state"].shape[0] - 1
    slots = table.integers(case)["state_batch_indices"]
    if len(slots) < last:
        slots = np.array([last, 2**32 // per_slot, 0, 2**31 // per_slot, 2**32 // per_slot - 1])
    words, arrays = {}, {}
    for name, lie in lies.items():
        if lie.dtype.itemsize == 2:
            words[name] = cupy.empty(lie.size, np.uint16)
            fill(words[name], case.dtype)
            arrays[name] = view(words[name], lie)
        else:
            values = slots if name == "state_batch_indices" else uniform(-1, 0.2, lie.shape)
            arrays[name] = CupyArrays.upload(Placed(lie, values))[1]
    words["out"].view(np.uint8).fill(POISON)
    unused = np.setdiff1d(np.arange(last + 1), slots)
    for slot in unused:
        arrays["state"][int(slot)].view(np.uint16).fill(0xFFFF)
    chosen = sequences(case, slots.tolist())
    before = {i: CupyArrays.fetch(arrays["state"], slice(int(slots[i]), int(slots[i]) + 1)) for i in chosen}

    cuconv.selective_state_update(**table.arguments(case, arrays))

    one = replace(case, batch=1, slots=None, spare=0)
    for i in chosen:
        inputs: Any = {name: CupyArrays.fetch(arrays[name]) for name in ("A", "D", "dt_bias") if name in arrays}
        inputs |= {name: CupyArrays.fetch(arrays[name], slice(i, i + 1)) for name in calls.BY_TOKENS if name in arrays}
        written = {
            "out": CupyArrays.fetch(arrays["out"], slice(i, i + 1)),
            "state": CupyArrays.fetch(arrays["state"], slice(int(slots[i]), int(slots[i]) + 1)),
        }
        check_values(table, one, {**inputs, "state": before[i]}, written)
    for slot in unused:
        assert bool((arrays["state"][int(slot)].view(np.uint16) == 0xFFFF).all())
    assert_all_written(words["out"], lies["out"].first, int(np.prod(lies["out"].shape)))
