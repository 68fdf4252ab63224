"""Where packed sequences lie, in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def sequence_starts(query_start_loc: Array | None, total: int) -> list[int]:
    """The starts of sequences and the end of the last one, all within `total`."""
    if query_start_loc is None:
        return [0, total]
    return [min(max(int(start), 0), total) for start in query_start_loc]
