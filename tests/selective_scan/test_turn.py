"""What copies with contiguous tokens refuse, and how new ones lie."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cuconv.selective_scan.turn import with_contiguous_tokens

X = np.arange(24, dtype=np.float32).reshape(2, 4, 3).transpose(0, 2, 1)
"""(2, 3, 4) with contiguous channels."""


def test_a_new_copy_has_the_rows_of_a_channel_together() -> None:
    copy = with_contiguous_tokens(X)
    assert copy.strides == (16, 32, 4)
    np.testing.assert_array_equal(copy, X)


@pytest.mark.parametrize(
    ("x", "out", "wrong"),
    [
        (X[0], None, r"x: got shape \(3, 4\); wanted 3 axes"),
        (X.astype(np.int32), None, "x: got dtype int32; wanted"),
        (X.copy(), None, r"x: got strides \(12, 4, 1\); wanted contiguous channels"),
        (X, X.astype(np.float16), "out: got dtype float16; wanted float32"),
        (X, np.empty((2, 4, 3), np.float32), r"out: got shape \(2, 4, 3\); wanted \(2, 3, 4\)"),
        (X, np.empty_like(X), r"out: got strides \(12, 1, 3\); wanted contiguous tokens"),
    ],
)
def test_what_does_not_fit_is_named(x: Any, out: Any, wrong: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^{wrong}"):
        with_contiguous_tokens(x, out=out)
