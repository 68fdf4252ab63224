"""What decode steps do to the caller's arrays, on NumPy and on a GPU: new ones, those in place, pools cut from others.

tests/families/test_fixed_calls.py has the graphs, streams, allocations and DLPack of all families' calls.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cuconv
from tests.support.bad_input import KINDS, module_of
from tests.support.gpu import byte_strides

EACH_KIND = pytest.mark.parametrize("kind", KINDS)
BATCH, DIM, SEQLEN = 3, 8, 5
HEADS: Any = {"num_q_heads": 1, "num_k_heads": 1, "num_v_heads": 2, "head_q": 2, "head_k": 2, "head_v": 2}


def inputs(xp: Any, *tokens: int, seed: int = 0) -> dict[str, Any]:
    """x, a pool with a slot a sequence, and a filter."""
    uniform = np.random.default_rng(seed).uniform
    shapes = {"x": (BATCH, DIM, *tokens), "conv_state": (BATCH, DIM, 4), "weight": (DIM, 4), "bias": (DIM,)}
    return {name: xp.asarray(uniform(-1, 1, shape), np.float32) for name, shape in shapes.items()}


@EACH_KIND
@pytest.mark.parametrize(
    ("shape", "order", "strides"),
    [
        ((BATCH, DIM), (0, 1), (DIM, 1)),
        ((BATCH, DIM, SEQLEN), (0, 1, 2), (DIM * SEQLEN, SEQLEN, 1)),
        ((BATCH, DIM, SEQLEN), (0, 2, 1), (DIM * SEQLEN, 1, DIM)),
        ((BATCH, DIM, 1), (0, 2, 1), (DIM, 1, 1)),
    ],
    ids=str,
)
def test_a_new_array_has_no_gaps_and_its_tokens_where_x_has_them(
    shape: tuple[int, ...], order: tuple[int, ...], strides: tuple[int, ...], kind: str
) -> None:
    arguments = inputs(module_of(kind), *shape[2:])
    x = arguments["x"].transpose(order).copy().transpose(np.argsort(order).tolist())
    out = cuconv.causal_conv1d_update(**{**arguments, "x": x})
    assert out.shape == shape and out.dtype == x.dtype and type(out) is type(x)
    counted = [axis for axis in range(len(shape)) if shape[axis] > 1]
    assert [byte_strides(out)[axis] for axis in counted] == [4 * strides[axis] for axis in counted]


@EACH_KIND
@pytest.mark.parametrize("tokens", [(), (SEQLEN,)], ids=["one", "several"])
def test_parts_are_new_arrays_without_gaps(tokens: tuple[int, ...], kind: str) -> None:
    xp = module_of(kind)
    whole = cuconv.causal_conv1d_update(**inputs(xp, *tokens))
    parts = cuconv.causal_conv1d_update_split(**inputs(xp, *tokens), sizes=[5, 3])
    assert [part.shape for part in parts] == [(BATCH, size, *tokens) for size in (5, 3)]
    assert bool((xp.concatenate(parts, axis=1) == whole).all())
    q, k, v = cuconv.causal_conv1d_update_qkv_split(**inputs(xp, *tokens), **HEADS)
    assert [part.shape for part in (q, k, v)] == [(BATCH, *tokens, heads, 2) for heads in (1, 1, 2)]
    by_token = xp.concatenate([part.reshape(BATCH, *tokens, -1) for part in (q, k, v)], axis=-1)
    assert bool((xp.moveaxis(by_token, -1, 1) == whole).all())
    assert all(part.flags.c_contiguous for part in (*parts, q, k, v))


@EACH_KIND
def test_x_may_be_a_slice_of_a_wider_projection(kind: str) -> None:
    xp = module_of(kind)
    arguments = inputs(xp)
    projection = xp.full((BATCH, 3 * DIM), np.nan, np.float32)
    projection[:, DIM : 2 * DIM] = arguments["x"]
    wanted = cuconv.causal_conv1d_update(**{**arguments, "conv_state": arguments["conv_state"].copy()})
    part = projection[:, DIM : 2 * DIM]
    assert cuconv.causal_conv1d_update(**{**arguments, "x": part, "out": part}) is part
    assert part.tobytes() == wanted.tobytes()
    assert bool(xp.isnan(projection[:, :DIM]).all()) and bool(xp.isnan(projection[:, 2 * DIM :]).all())


@EACH_KIND
@pytest.mark.parametrize("mode", ["shift", "circular"])
def test_a_pool_is_updated_where_it_lies(mode: str, kind: str) -> None:
    """A layer's part of a buffer for all layers, call after call."""
    xp = module_of(kind)
    buffer = xp.full((2, BATCH + 4, DIM, 4), np.nan, np.float32)
    pool, slots = buffer[1], xp.asarray([6, 0, 2], np.int32)
    pool[slots] = 0
    arguments = {**inputs(xp), "conv_state": pool, "conv_state_indices": slots}
    tokens = [inputs(xp, seed=seed)["x"] for seed in range(6)]
    for t, x in enumerate(tokens):
        seen = {"cache_seqlens": xp.full(BATCH, t, np.int32)} if mode == "circular" else {}
        cuconv.causal_conv1d_update(**{**arguments, **seen, "x": x})
    last = [4, 5, 2, 3] if mode == "circular" else [2, 3, 4, 5]
    assert bool((pool[slots] == xp.stack([tokens[t] for t in last], axis=2)).all())
    untouched = [slot for slot in range(BATCH + 4) if slot not in (6, 0, 2)]
    assert bool(xp.isnan(pool[untouched]).all()) and bool(xp.isnan(buffer[0]).all())


@EACH_KIND
def test_a_state_that_is_only_read_stays(kind: str) -> None:
    arguments = inputs(module_of(kind), SEQLEN)
    before = arguments["conv_state"].copy()
    first = cuconv.causal_conv1d_update(**arguments, disable_state_update=True)
    assert arguments["conv_state"].tobytes() == before.tobytes()
    again = cuconv.causal_conv1d_update(**arguments)
    assert first.tobytes() == again.tobytes() and arguments["conv_state"].tobytes() != before.tobytes()


@EACH_KIND
@pytest.mark.parametrize(
    ("batch", "dim", "tokens"),
    [(0, 8, ()), (3, 0, ()), (3, 8, (0,)), (0, 0, (0,))],
    ids=["batch", "dim", "seqlen", "all"],
)
@pytest.mark.parametrize("mode", ["shift", "circular", "accepted"])
def test_nothing_is_done_where_there_is_nothing_to_do(
    mode: str, batch: int, dim: int, tokens: tuple[int, ...], kind: str
) -> None:
    xp = module_of(kind)
    state = xp.ones((max(batch, 2), dim, 4), np.float32)
    before = state.tobytes()
    x, weight = xp.ones((batch, dim, *tokens), np.float32), xp.ones((dim, 4), np.float32)
    given = {"circular": "cache_seqlens", "accepted": "num_accepted_tokens"}
    numbers = {given[mode]: xp.full(batch, 2, np.int32)} if mode in given else {}
    out = cuconv.causal_conv1d_update(x, state, weight, **numbers)
    assert out.shape == x.shape and out.dtype == x.dtype and state.tobytes() == before
