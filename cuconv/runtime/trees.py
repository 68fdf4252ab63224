"""Trees of drafted tokens: which token each one follows."""

from __future__ import annotations

from typing import Any

import numpy as np

from cuconv.runtime import checks
from cuconv.runtime.dtypes import INDICES
from cuconv.runtime.errors import message
from cuconv.runtime.layout import Layout


def tree_parents(next_token: Any, next_sibling: Any) -> Any:
    """The `parents` of tokens, from the first child and the next sibling of each: SGLang's and TensorRT-LLM's trees.

    Every token t comes after its parent and after the siblings before it: t is the parent of next_token[t], and the
    parent of t is that of next_sibling[t]. Some twenty operations, log2(tokens) of which follow chains of siblings, by
    the library that the arrays are of, on its current stream; nothing is awaited, and a CUDA graph can capture them.

    Args:
        next_token: (batch, tokens), int32 or int64, NumPy, CuPy or torch: the first child, -1 for none.
        next_sibling: shape and dtype of next_token: the next child of the same parent, -1 for none.

    Returns:
        (batch, tokens), a new array of the dtype and kind of next_token: the number of the token that each follows, -1
        where there is none.

    Raises:
        ValueError: a shape that does not fit.
    """
    checks.rank("next_token", next_token.shape, "batch, tokens")
    checks.shape("next_sibling", next_sibling.shape, tuple(next_token.shape), "the shape of next_token")
    tokens = next_token.shape[1]
    parents = next_token * 0 - 1
    row, number = (-parents).cumsum(0) - 1, (-parents).cumsum(1) - 1
    before, after = number[:, :, None], number[:, None]
    parent_of_first = ((next_token[:, :, None] == after) * (before + 1)).sum(1) - 1
    # A token's elder sibling, or itself. Arrays of padding may hold anything, but never an index outside.
    elder = (((next_sibling[:, :, None] == after) * (before - after)).sum(1) + number).clip(0, tokens - 1)
    for _ in range((tokens - 1).bit_length()):
        elder = elder[row, elder]
    parents[...] = parent_of_first[row, elder]
    return parents


def check(parents: Layout, batch: int, tokens: int, axes: str) -> None:
    """`parents` has an element for each token of each sequence, and perhaps more."""
    checks.dtype("parents", parents.dtype, INDICES)
    checks.rank("parents", parents.shape, "batch, tokens")
    if parents.shape[0] < batch or parents.shape[1] < tokens:
        raise ValueError(message("parents", f"shape {parents.shape}", f"({batch}, {tokens}) or more ({axes})"))


def check_contents(parents: np.ndarray[Any, Any]) -> None:
    """Raise ValueError where a token follows a later one, or itself."""
    # The first token follows the state in the slot, whether its entry is 0 or negative.
    late = parents >= np.maximum(np.arange(parents.shape[1]), 1)
    if late.any():
        number = np.nonzero(late)[1][0]
        raise ValueError(message("parents", f"{parents[late][0]} for token {number}", "an earlier token, or -1"))
