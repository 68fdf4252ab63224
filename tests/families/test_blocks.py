"""Prefix caches that keep the state at the end of every block: bad arguments, contents, and decode steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cuconv
from cuconv.causal_conv1d import update, varlen
from tests.causal_conv1d.cases_by_blocks import INDICES
from tests.families.test_sequences import EACH_CALLER, Caller, uniform
from tests.support.blocks import NULL, USUAL, Cache

DIM, WIDTH = 12, 4


class Usual(Cache):
    """The arrays of usual sequences in blocks of 16."""

    lengths, computed, size, behind = USUAL["lengths"], USUAL["computed"], 16, 0


def convolution(**changes: Any) -> None:
    cache = Usual()
    known = {name: cache.known[name] for name in INDICES}
    named = {**known, "conv_states": np.zeros((cache.slots, DIM, WIDTH - 1), "f"), "block_size": 16, **changes}
    options = {"activation": None, "null_slot": NULL, "first_column": None}
    varlen.convolve_by_blocks(np.zeros((DIM, cache.total), "f"), np.zeros((DIM, WIDTH), "f"), None, **options, **named)


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
    table = Usual().table
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
