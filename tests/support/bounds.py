"""What a correct kernel may be off by: bounds of rounding errors, relative and absolute."""

from __future__ import annotations

ROUNDING = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""The largest relative error of rounding to a dtype."""


def stored(dtype: str) -> tuple[float, float]:
    """The error of rounding a result to its dtype, relative and absolute; one in float32 has been rounded already."""
    return 0.0 if dtype == "float32" else ROUNDING[dtype], 2.0**-25 if dtype == "float16" else 0.0
