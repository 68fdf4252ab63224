"""Prefix caches that keep the state at the end of every block: the same as snapshots that are named one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cuconv
from cuconv.causal_conv1d import update, varlen
from cuconv.selective_scan import varlen as scan
from tests.families.test_sequences import EACH_CALLER, Caller, uniform

DIM, WIDTH, BLOCKS, D_STATE = 12, 4, 9, 4
LENGTHS = (45, 3, 0, 33, 16, 1, 40, 7)
COMPUTED = (20, 0, 32, 15, 16, 31, 3, 0)
NULL = 5
"""A slot for no state: that of a sequence, and of single blocks of others."""


class Cache:
    """The arrays of vLLM's mode "all" for these sequences, by its formulas, and the snapshots that they stand for."""

    def __init__(self, size: int, dtype: Any, behind: int = 0) -> None:
        count, computed = len(LENGTHS), np.array(COMPUTED)
        ends = computed + LENGTHS
        self.size, self.total = size, sum(LENGTHS) + behind
        self.table = np.random.default_rng(size).permutation(count * 60).astype(dtype).reshape(count, 60) + NULL + 1
        self.table[[0, 3], [ends[0] // size // 2, 0]] = NULL
        self.table[7] = NULL
        self.slots = int(self.table.max()) + 1
        self.first = ((computed + 1) - 1) // size
        self.last = np.maximum(-(-ends // size) - 1, 0)
        self.starts = np.cumsum([0, *LENGTHS])
        self.has = np.array(COMPUTED) > 0
        self.column = np.maximum(-(-computed // size) - 1, 0)
        self.snapshots = np.array(
            [
                (i, (block + 1) * size - COMPUTED[i], self.table[i, block])
                for i in range(count)
                for block in range(self.first[i], self.last[i])
            ]
        )
        self.finals = self.table[np.arange(count), self.last]
        # A chunk ends where a block does, and where the sequence does.
        self.chunks, self.last_chunks = [0], []
        for i, begin in enumerate(self.starts[:-1]):
            own = [position for sequence, position, _ in self.snapshots.tolist() if sequence == i]
            self.chunks += [begin + end for end in (*own, LENGTHS[i])]
            self.last_chunks.append(len(self.chunks) - 2)

    def arrays(self, dtype: Any, *names: str) -> dict[str, Any]:
        found = {
            "block_idx_first_scheduled_token": self.first,
            "block_idx_last_scheduled_token": self.last,
            "num_computed_tokens": COMPUTED,
            "cu_chunk_seqlen": self.chunks,
            "last_chunk_indices": self.last_chunks,
            "state_column": self.column,
        }
        return {name: np.asarray(found[name], dtype) for name in names}

    @property
    def named(self) -> dict[str, Any]:
        """The arguments of public functions."""
        arrays = {"snapshots": self.snapshots, "dst_state_indices": self.finals, "state_column": self.column}
        return {**arrays, "null_slot": NULL}


@EACH_CALLER
@pytest.mark.parametrize(("size", "dtype", "behind"), [(16, np.int32, 0), (5, np.int64, 9), (64, np.int32, 3)])
def test_a_convolution_keeps_the_state_at_every_block_end(call: Caller, size: int, dtype: Any, behind: int) -> None:
    cache = Cache(size, dtype, behind)
    x, weight = (uniform(i, DIM, n).astype(np.float32) for i, n in ((1, cache.total), (2, WIDTH)))
    pool = uniform(3, cache.slots, DIM, WIDTH - 1).astype(np.float32)
    shared = {"x": x, "weight": weight, "bias": None, "query_start_loc": cache.starts, "cache_indices": cache.table}
    shared |= {"has_initial_state": cache.has, "activation": "silu"}
    pools = pool.copy(), pool.copy()
    wanted = call(cuconv.causal_conv1d_varlen_fn, {**shared, "conv_states": pools[0], **cache.named})
    arrays = cache.arrays(dtype, "state_column", "block_idx_last_scheduled_token", "num_computed_tokens")
    options = {"null_slot": NULL, "first_column": None, "block_size": size}
    got = call(varlen.convolve_by_blocks, {**shared, "conv_states": pools[1], **options, **arrays})
    np.testing.assert_array_equal(got, wanted)
    np.testing.assert_array_equal(pools[1], pools[0])
    assert (pools[0] != pool).any(axis=(1, 2)).sum() >= len(cache.snapshots)


@EACH_CALLER
@pytest.mark.parametrize(("size", "dtype", "behind"), [(16, np.int32, 0), (5, np.int64, 9), (64, np.int32, 3)])
def test_a_scan_keeps_the_state_at_every_block_end(call: Caller, size: int, dtype: Any, behind: int) -> None:
    cache = Cache(size, dtype, behind)
    arrays = {"u": (DIM, cache.total), "delta": (DIM, cache.total), "A": (DIM, D_STATE)}
    arrays |= dict.fromkeys("BC", (D_STATE, cache.total))
    shared: dict[str, Any] = {name: uniform(i, *shape).astype("f") for i, (name, shape) in enumerate(arrays.items())}
    shared |= dict.fromkeys(("D", "z", "delta_bias")) | {"delta_softplus": True, "query_start_loc": cache.starts}
    shared |= {"cache_indices": cache.table, "has_initial_state": cache.has}
    pool = uniform(9, cache.slots, DIM, D_STATE).astype(np.float32)
    pools = pool.copy(), pool.copy()
    wanted = call(cuconv.selective_scan_varlen_fn, {**shared, "ssm_states": pools[0], **cache.named})
    named = cache.arrays(
        *(dtype, "state_column", "block_idx_first_scheduled_token", "block_idx_last_scheduled_token"),
        *("cu_chunk_seqlen", "last_chunk_indices"),
    )
    options = {"null_slot": NULL, "block_size": size, "out": None}
    got = call(scan.scan_by_blocks, {**shared, "ssm_states": pools[1], **options, **named})
    np.testing.assert_array_equal(got, wanted)
    np.testing.assert_array_equal(pools[1], pools[0])
    assert (pools[0] != pool).any(axis=(1, 2)).sum() >= len(cache.snapshots)


def convolution(**changes: Any) -> None:
    cache = Cache(16, np.int32)
    arrays = cache.arrays(np.int32, "state_column", "block_idx_last_scheduled_token", "num_computed_tokens")
    pool = np.zeros((cache.slots, DIM, WIDTH - 1), "f")
    given = np.zeros((DIM, cache.total), "f"), np.zeros((DIM, WIDTH), "f"), None
    named = {"conv_states": pool, "cache_indices": cache.table, "block_size": 16, **arrays, **changes}
    options = {"has_initial_state": cache.has, "activation": None, "null_slot": NULL, "first_column": None}
    varlen.convolve_by_blocks(*given, query_start_loc=cache.starts, **options, **named)


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"block_size": 0}, "block_size: got 0; wanted 1 to 2147483647"),
        ({"cache_indices": None, "state_column": None}, "cache_indices: got None; wanted an array beside block_idx_l"),
        ({"state_column": None}, "state_column: got None; wanted an array beside block_idx_last_scheduled_token"),
        ({"num_computed_tokens": None}, "num_computed_tokens: got None; wanted an array beside block_idx_last"),
        ({"num_computed_tokens": np.zeros(7, int)}, r"num_computed_tokens: got shape \(7,\); wanted \(8,\) or longer"),
    ],
)
def test_what_no_cache_has_is_refused(changes: dict[str, Any], wanted: str) -> None:
    with pytest.raises(ValueError, match=wanted):
        convolution(**changes)


def test_contents_are_those_of_the_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUCONV_CHECK", "1")
    convolution()
    table = Cache(16, np.int32).table
    table[0, 2] = table[0, 3]
    with pytest.raises(ValueError, match=r"snapshots: got slot .* for several sequences"):
        convolution(cache_indices=table)


@EACH_CALLER
@pytest.mark.parametrize(("tokens", "columns"), [(1, WIDTH - 1), (1, 2 * WIDTH), (3, WIDTH + 1)])
@pytest.mark.parametrize("contiguous", ["channels", "columns"])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_a_step_goes_from_block_to_block(call: Caller, tokens: int, columns: int, contiguous: str, dtype: Any) -> None:
    count = 6
    table = np.random.default_rng(1).permutation(count * 4).astype(dtype).reshape(count, 4) + NULL + 1
    start, last = np.array([0, 1, 3, 2, 1, 0], dtype), np.array([0, 2, -1, 3, 4, 1], dtype)
    table[3, 3], table[5, 0] = NULL, NULL
    pool = uniform(3, int(table.max()) + 1, DIM, columns).astype(np.float32)
    if contiguous == "channels":
        pool = np.ascontiguousarray(pool.transpose(0, 2, 1)).transpose(0, 2, 1)
    x, weight = uniform(1, count, DIM, tokens).astype(np.float32), uniform(2, DIM, WIDTH).astype(np.float32)
    shared = {"x": x, "weight": weight, "bias": None, "activation": None, "null_slot": NULL}
    shared |= {"conv_state_indices": table, "state_column": start}
    finals = np.where((last >= 0) & (last < 4), table[np.arange(count), last.clip(0, 3)], -1)
    pools = pool.copy(order="K"), pool.copy(order="K")
    named = {"conv_state": pools[0], "dst_state_indices": finals, "first_column": 0}
    wanted = call(cuconv.causal_conv1d_update, {**shared, **named})
    absent = dict.fromkeys(("query_start_loc", "max_query_len", "num_accepted_tokens", "out"))
    named = {"conv_state": pools[1], "block_idx_last_scheduled_token": last, "pad_output": "zero", **absent}
    got = call(update.step_by_blocks, {**shared, **named})
    np.testing.assert_array_equal(got, wanted)
    np.testing.assert_array_equal(pools[1], pools[0])
    assert (pools[0] != pool).any()
