"""Trees of drafted tokens: which token each one follows."""

from __future__ import annotations

from typing import Any

from cuconv.runtime import checks


def tree_parents(next_token: Any, next_sibling: Any) -> Any:
    """The `parents` of tokens, from the first child and the next sibling of each: SGLang's and TensorRT-LLM's trees.

    One pass over the tokens t, each of which comes after its parent and after the siblings before it: t is the parent
    of next_token[t], and the parent of t is that of next_sibling[t]. Some ten elementwise operations per token, by the
    library that the arrays are of, on its current stream; nothing is awaited, and a CUDA graph can capture them.

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
    parents = next_token * 0 - 1
    number = (-parents).cumsum(1) - 1
    for t in range(next_token.shape[1]):
        parents = parents + (next_token[:, t, None] == number) * (t - parents)
        parents = parents + (next_sibling[:, t, None] == number) * (parents[:, t, None] - parents)
    return parents
