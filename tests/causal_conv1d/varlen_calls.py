"""Good calls on packed sequences, small and with every array given, and how a changed one must be refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cuconv
from tests.causal_conv1d.test_dense_bad_input import Change, module_of, snapshot
from tests.support.placement import POISON

Row = tuple[Change, type[Exception], str]
"""How a good call's arguments change, and the error that this must raise."""

DIM, TOTAL, WIDTH, SLOTS = 6, 9, 4, 5
SIZES = (1, 2, 3)
HEADS = {"num_q_heads": 1, "num_k_heads": 1, "num_v_heads": 2, "head_q": 1, "head_k": 1, "head_v": 2}


def poisoned(xp: Any, *shape: int) -> Any:
    array = xp.empty(shape, np.float32)
    array.view(np.uint8)[...] = POISON
    return array


def good(xp: Any) -> dict[str, Any]:
    """What all calls have, every array given."""
    return {
        "x": xp.ones((DIM, TOTAL), np.float32),
        "weight": xp.ones((DIM, WIDTH), np.float32),
        "bias": xp.ones(DIM, np.float32),
        "conv_states": xp.ones((SLOTS, DIM, WIDTH - 1), np.float32),
        "query_start_loc": xp.asarray([0, 4, 4, 9], np.int32),
        "cache_indices": xp.asarray([3, 0, 1], np.int32),
        "has_initial_state": xp.asarray([True, False, True]),
    }


def good_whole(xp: Any) -> dict[str, Any]:
    return {**good(xp), "out": poisoned(xp, DIM, TOTAL)}


def good_split(xp: Any) -> dict[str, Any]:
    return {**good(xp), "sizes": SIZES, "out": tuple(poisoned(xp, size, TOTAL) for size in SIZES)}


def good_qkv(xp: Any) -> dict[str, Any]:
    return {**good(xp), **HEADS, "out": tuple(poisoned(xp, 1, TOTAL, *heads) for heads in ((1, 1), (1, 1), (2, 2)))}


def good_states(xp: Any) -> dict[str, Any]:
    return {
        "x": xp.ones((TOTAL, DIM), np.float32),
        "cu_seqlens": xp.asarray([0, 4, 4, 9], np.int64),
        "state_len": 3,
        "out": poisoned(xp, 3, DIM, 3),
    }


GOOD: dict[str, Any] = {
    "causal_conv1d_varlen_fn": good_whole,
    "causal_conv1d_split": good_split,
    "causal_conv1d_qkv_split": good_qkv,
    "causal_conv1d_varlen_states": good_states,
}


def ints(name: str, values: list[int], dtype: Any = np.int32) -> Change:
    return lambda xp, a: {name: xp.asarray(values, dtype)}


def refuse(name: str, row: Row, kind: str, calls: dict[str, Any] = GOOD) -> None:
    """The call, one of `calls` but for the row's change, raises this error, and all arrays hold what they held."""
    xp = module_of(kind)
    change, error, wanted = row
    arguments = calls[name](xp)
    arguments |= change(xp, arguments)
    before = snapshot(arguments)
    with pytest.raises(error) as caught:
        getattr(cuconv, name)(**arguments)
    assert type(caught.value) is error
    assert str(caught.value) == wanted.format(kind=kind)
    assert snapshot(arguments) == before


def assert_good(name: str, arguments: dict[str, Any]) -> None:
    """The call gives back the arrays it was given for its results, and no NaN in them."""
    results = getattr(cuconv, name)(**arguments)
    outs = arguments["out"] if isinstance(arguments["out"], tuple) else (arguments["out"],)
    returned = results if isinstance(results, tuple) else (results,)
    assert all(result is out for result, out in zip(returned, outs, strict=True))
    assert not any(bool((out != out).any()) for out in outs)
