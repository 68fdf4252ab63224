"""What calls do to pools of states on NumPy arrays and under the emulator: they touch the slots that they name."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cuconv
from tests.emulator.family import emulated
from tests.support.placement import Array

BATCH, DIM, WIDTH, HEADS, STATES = 2, 8, 4, 2, 4
Maker = Callable[[Array | None, Array | None], dict[str, Any]]
"""Makes the arguments of a call from a pool, or a new small one, and from slot numbers."""


def numbers(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).uniform(-1, 1, shape).astype(np.float32)


def pool_or(pool: Array | None, *state: int) -> Array:
    return numbers(BATCH, *state) if pool is None else pool


def prefill(pool: Array | None, slots: Array | None) -> dict[str, Any]:
    return {
        **{"x": numbers(DIM, 9), "weight": numbers(DIM, WIDTH), "conv_states": pool_or(pool, DIM, WIDTH - 1)},
        **{"query_start_loc": np.array([0, 4, 9]), "cache_indices": slots, "has_initial_state": np.array([True] * 2)},
    }


def prefill_split(pool: Array | None, slots: Array | None) -> dict[str, Any]:
    return {**prefill(pool, slots), "sizes": (3, 5)}


def convolve(pool: Array | None, slots: Array | None) -> dict[str, Any]:
    state = pool_or(pool, DIM, WIDTH)
    return {
        **{"x": numbers(BATCH, DIM, 2), "conv_state": state, "weight": numbers(DIM, WIDTH)},
        "conv_state_indices": slots,
    }


def convolve_ring(pool: Array | None, slots: Array | None) -> dict[str, Any]:
    return {**convolve(pool, slots), "cache_seqlens": np.array([5, 2])}


def convolve_accepted(pool: Array | None, slots: Array | None) -> dict[str, Any]:
    return {**convolve(pool, slots), "num_accepted_tokens": np.array([2, 1])}


def convolve_split(pool: Array | None, slots: Array | None) -> dict[str, Any]:
    return {**convolve(pool, slots), "sizes": (3, 5)}


def scan(pool: Array | None, slots: Array | None) -> dict[str, Any]:
    maps = {name: numbers(STATES, 9) for name in "BC"}
    return {
        **{"u": numbers(DIM, 9), "delta": numbers(DIM, 9) + 1, "A": -np.abs(numbers(DIM, STATES)), **maps},
        **{"ssm_states": pool_or(pool, DIM, STATES), "query_start_loc": np.array([0, 4, 9]), "cache_indices": slots},
        "has_initial_state": np.array([True] * 2),
    }


def update(pool: Array | None, slots: Array | None) -> dict[str, Any]:
    rows = (HEADS, DIM // HEADS)
    maps = {name: numbers(BATCH, 1, STATES) for name in "BC"}
    return {
        **{"state": pool_or(pool, *rows, STATES), "x": numbers(BATCH, *rows), "dt": numbers(BATCH, *rows) + 1},
        **{"A": -np.abs(numbers(*rows, STATES)), **maps, "state_batch_indices": slots},
    }


CALLS: dict[str, tuple[Callable[..., Any], Maker, str]] = {
    "prefill": (cuconv.causal_conv1d_varlen_fn, prefill, "conv_states"),
    "prefill_split": (cuconv.causal_conv1d_split, prefill_split, "conv_states"),
    "step": (cuconv.causal_conv1d_update, convolve, "conv_state"),
    "step_ring": (cuconv.causal_conv1d_update, convolve_ring, "conv_state"),
    "step_accepted": (cuconv.causal_conv1d_update, convolve_accepted, "conv_state"),
    "step_split": (cuconv.causal_conv1d_update_split, convolve_split, "conv_state"),
    "scan": (cuconv.selective_scan_varlen_fn, scan, "ssm_states"),
    "update": (cuconv.selective_state_update, update, "state"),
}
EACH_CALL = pytest.mark.parametrize(("function", "make", "pool"), CALLS.values(), ids=CALLS)


def large(make: Maker, pool: str, slots: int) -> Array:
    """A pool of ones with many slots, for the call that `make` makes."""
    small = make(None, None)[pool]
    return np.ones((slots, *small.shape[1:]), small.dtype)


@EACH_CALL
def test_a_call_costs_no_memory_for_the_slots_it_does_not_name(
    function: Callable[..., Any], make: Maker, pool: str
) -> None:
    states = large(make, pool, 2**17)
    arguments = make(states, np.array([2**17 - 5, 3]))
    function(**arguments)
    tracemalloc.start()
    function(**arguments)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert states.nbytes >= 2**23 and most < 2**18
    changed = np.flatnonzero((states != 1).reshape(len(states), -1).any(axis=1))
    assert changed.tolist() == [3, 2**17 - 5]


@EACH_CALL
def test_callers_of_different_slots_of_a_pool_lose_nothing(
    function: Callable[..., Any], make: Maker, pool: str
) -> None:
    """Threads step sequences of their own in one pool, which ends as if they had done so one after another."""
    threads, steps = 4, 20
    shared, alone = (large(make, pool, 2 * threads) for _ in range(2))
    barrier = threading.Barrier(threads)

    def run(states: Array, number: int, wait: Callable[[], Any]) -> None:
        arguments = make(states, np.array([2 * number, 2 * number + 1]))
        wait()
        for _ in range(steps):
            function(**arguments)

    callers = [threading.Thread(target=run, args=(shared, number, barrier.wait)) for number in range(threads)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    for number in range(threads):
        run(alone, number, lambda: None)
    np.testing.assert_array_equal(shared, alone)


def numpy_call(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    return function(**arguments)


@pytest.mark.parametrize("call", [numpy_call, emulated], ids=["numpy", "emulator"])
@EACH_CALL
def test_without_slot_numbers_none_is_padding(
    function: Callable[..., Any], make: Maker, pool: str, call: Callable[..., Any]
) -> None:
    def results(slots: Array | None, pad_slot_id: int) -> tuple[list[bytes], bytes]:
        arguments = make(None, slots)
        outs = call(function, {**arguments, "pad_slot_id": pad_slot_id})
        given = outs if isinstance(outs, tuple) else (outs,)
        return [as_numpy(out).tobytes() for out in given], arguments[pool].tobytes()

    wanted = results(None, -1)
    assert results(None, 0) == results(None, 1) == wanted
    assert results(np.arange(BATCH), -1) == wanted
    assert results(np.arange(BATCH), 0) != wanted


@pytest.mark.parametrize("call", [numpy_call, emulated], ids=["numpy", "emulator"])
@pytest.mark.parametrize("checked", ["0", "1"])
def test_a_pad_slot_is_a_target_that_is_not_written_beside_sources_without_numbers(
    call: Callable[..., Any], checked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUCONV_CHECK", checked)
    arguments, before = update(None, None), update(None, None)["state"]
    wanted = as_numpy(call(cuconv.selective_state_update, update(None, None)))
    targets = {"dst_state_batch_indices": np.array([0, 1]), "pad_slot_id": 0}
    out = as_numpy(call(cuconv.selective_state_update, {**arguments, **targets}))
    assert out.tobytes() == wanted.tobytes()
    assert (arguments["state"] != before).reshape(BATCH, -1).any(axis=1).tolist() == [False, True]


def as_numpy(array: Any) -> Array:
    host: Array = getattr(array, "array", array)
    return host


@pytest.mark.parametrize("indexed", [False, True])
def test_an_empty_state_update_passes_the_checks_of_contents(indexed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUCONV_CHECK", "1")
    arguments = {**update(None, np.array([0, 1])), "dst_state_batch_indices": np.array([1, 0])}
    names = ("x", "dt", "B", "C", "state_batch_indices", "dst_state_batch_indices")
    empty = {name: arguments[name][:0] for name in names}
    if not indexed:
        empty |= {"state_batch_indices": None, "dst_state_batch_indices": None}
    assert cuconv.selective_state_update(**{**arguments, **empty}).shape == (0, HEADS, DIM // HEADS)


def test_calls_with_ever_other_seeds_are_prepared_once() -> None:
    from cuconv.selective_state_update.update import _update

    arguments = update(None, None)
    arguments["state"] = arguments["state"].astype(np.float16)
    before = arguments["state"].copy()
    operation = _update
    found = set()
    calls = set()
    for seed in range(40):
        arguments["state"][...] = before
        cuconv.selective_state_update(**arguments, rand_seed=seed)
        found.add(arguments["state"].tobytes())
        calls.add(id(operation.recent[0]))
    assert len(calls) == 1 and len(found) > 30
