"""Trees of drafted tokens: which token each one follows."""

from __future__ import annotations

from typing import Any

import numpy as np

from cuconv.runtime import checks
from cuconv.runtime.dtypes import INDICES
from cuconv.runtime.errors import message
from cuconv.runtime.layout import Layout
from cuconv.runtime.plan import Layouts

Array = np.ndarray[Any, Any]


def tree_parents(next_token: Any, next_sibling: Any) -> Any:
    """The `parents` of tokens, from the first child and the next sibling of each, as in SGLang and TensorRT-LLM.

    Every token t comes after its parent and after the siblings before it: t is the parent of next_token[t], and the
    parent of t is that of next_sibling[t]. This takes about twenty operations of the arrays' library on its current
    stream, log2(tokens) of which follow chains of siblings. It waits for nothing, and a CUDA graph can capture it.

    Args:
        next_token: (batch, tokens), int32 or int64, NumPy, CuPy or torch: the first child, -1 for none.
        next_sibling: shape and dtype of next_token: the next child of the same parent, -1 for none.

    Returns:
        (batch, tokens), a new array of the dtype and kind of next_token: the number of the token that each token
        follows, -1 where there is none.

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
    # A token's previous sibling, or itself. Padding may hold anything, so indices are clamped.
    elder = (((next_sibling[:, :, None] == after) * (before - after)).sum(1) + number).clip(0, tokens - 1)
    for _ in range((tokens - 1).bit_length()):
        elder = elder[row, elder]
    parents[...] = parent_of_first[row, elder]
    return parents


def check(parents: Layout, batch: int, tokens: int, axes: str, argument: str = "parents") -> None:
    """Check that an array of a tree has an element for each token of each sequence, and perhaps more."""
    checks.dtype(argument, parents.dtype, INDICES)
    checks.rank(argument, parents.shape, "batch, tokens")
    if parents.shape[0] < batch or parents.shape[1] < tokens:
        raise ValueError(message(argument, f"shape {parents.shape}", f"({batch}, {tokens}) or more ({axes})"))


def check_contents(parents: Array) -> None:
    """Raise ValueError where a token follows a later one, or itself."""
    # The first token follows the state in the slot, whether its entry is 0 or negative.
    late = parents >= np.maximum(np.arange(parents.shape[1]), 1)
    if late.any():
        number = np.nonzero(late)[1][0]
        raise ValueError(message("parents", f"{parents[late][0]} for token {number}", "an earlier token, or -1"))


LINKS = ("retrieve_next_token", "retrieve_next_sibling", "retrieve_parent_token")
"""The arrays of a tree in SGLang and TensorRT-LLM: first children, next siblings, and the parents that follow from
them."""


def check_links(given: Layouts, batch: int, tokens: int, axes: str) -> None:
    """`check` of these arrays; the first two are given together or not at all."""
    for name, other in zip(LINKS, (LINKS[1], LINKS[0], LINKS[0]), strict=True):
        if (layout := given.get(name)) is not None:
            if given[other] is None:
                raise ValueError(message(other, "None", f"an array beside {name}"))
            check(layout, batch, tokens, axes, name)


def check_links_contents(name: str, links: Array, tokens: int) -> None:
    """Raise ValueError where a link leads to an earlier token, to its own, or behind the last one."""
    links = links[:, :tokens]
    is_wrong = (links >= 0) & ((links <= np.arange(tokens)) | (links >= tokens))
    if is_wrong.any():
        number = np.nonzero(is_wrong)[1][0]
        raise ValueError(message(name, f"{links[is_wrong][0]} for token {number}", f"a later one of {tokens}, or -1"))


def parents_of_links(next_token: Array, next_sibling: Array) -> Array:
    """`tree_parents` in NumPy with the engines' conventions: the first token follows token 0, and so does each token
    that no link leads to. A link that does not lead to a later token is ignored.
    """
    number = np.arange(next_token.shape[1])
    links = (np.where(each > number, each, -1).astype(np.int64) for each in (next_token, next_sibling))
    parents: Array = np.maximum(tree_parents(*links), 0)
    return parents
