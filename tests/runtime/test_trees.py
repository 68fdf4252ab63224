"""The parents of tokens, from first children and next siblings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cuconv.runtime.trees import parents_of_links, tree_parents


def drawn(batch: int, tokens: int, seed: int) -> tuple[Any, Any, Any]:
    """Random trees: parents, first children and next siblings; some tokens follow none, and are no siblings then."""
    random = np.random.default_rng(seed)
    parents = random.integers(-1, np.maximum(np.arange(tokens), 1), (batch, tokens))
    parents[:, :1] = -1
    child, sibling = np.full((2, batch, tokens), -1)
    for row, own in enumerate(parents):
        for parent in range(tokens):
            children = np.flatnonzero(own == parent)
            child[row, parent] = children[0] if len(children) else -1
            sibling[row, children[:-1]] = children[1:]
    return parents, child, sibling


def test_the_published_example() -> None:
    found = tree_parents(np.array([[1, 3, -1, -1]], np.int32), np.array([[-1, 2, -1, -1]], np.int32))
    assert found.tolist() == [[-1, 0, 0, 1]] and found.dtype == np.int32


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize(("batch", "tokens"), [(1, 1), (3, 7), (20, 64), (0, 4), (2, 0)])
def test_trees_are_found_again(batch: int, tokens: int, dtype: Any) -> None:
    parents, child, sibling = drawn(batch, tokens, tokens)
    found = tree_parents(child.astype(dtype), sibling.astype(dtype))
    np.testing.assert_array_equal(found, parents)
    assert found.dtype == dtype


def test_what_is_no_tree_has_parents_of_some_kind() -> None:
    """Engines leave anything in the rows that only fill a batch."""
    zeros, many = np.zeros((2, 6), np.int32), np.full((2, 6), 10**6, np.int32)
    for child, sibling in ((zeros, zeros), (many, zeros), (zeros, many), (-many, -many)):
        assert tree_parents(child, sibling).shape == (2, 6)


def test_links_give_engines_parents() -> None:
    """Tokens without a link to them follow token 0; links to earlier or missing tokens count for nothing."""
    child, sibling = np.array([[1, 3, 0, 9, -7]]), np.array([[-1, 2, 2, -1, 2**40]])
    assert parents_of_links(child, sibling).tolist() == [[0, 0, 0, 1, 0]]
    parents, child, sibling = drawn(20, 30, 5)
    np.testing.assert_array_equal(parents_of_links(child, sibling), np.maximum(parents, 0))


def test_torch_tensors_give_torch_tensors() -> None:
    torch = pytest.importorskip("torch")
    parents, child, sibling = (torch.tensor(each, dtype=torch.int32) for each in drawn(3, 9, 1))
    found = tree_parents(child, sibling)
    assert found.dtype == torch.int32 and bool((found == parents).all())


@pytest.mark.gpu
def test_cupy_arrays_give_cupy_arrays() -> None:
    cupy = pytest.importorskip("cupy")
    parents, child, sibling = (cupy.asarray(each.astype(np.int32)) for each in drawn(3, 9, 1))
    found = tree_parents(child, sibling)
    assert isinstance(found, cupy.ndarray) and found.dtype == np.int32 and bool((found == parents).all())


def test_other_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^next_token: got shape \(3,\); wanted 2 axes \(batch, tokens\)$"):
        tree_parents(np.zeros(3, int), np.zeros(3, int))
    with pytest.raises(ValueError, match=r"^next_sibling: got shape \(1, 2\); wanted \(1, 3\) \(the shape of next_t"):
        tree_parents(np.zeros((1, 3), int), np.zeros((1, 2), int))
