"""Results of decode steps that are new arrays, on NumPy and on a GPU.

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
