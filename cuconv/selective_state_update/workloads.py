"""Sample calls of the state update: their maker, and rows of sizes for tables and checks."""

from __future__ import annotations

from math import prod
from typing import Any

from cuconv.runtime.dtypes import CODES, FLOAT32, FLOATS, INT32
from cuconv.runtime.workload import Array, Cut, Rows, Workload, element_of, scattered, spread
from cuconv.selective_state_update.rounding import LARGEST


def selective_state_update(
    batch: int = 1, nheads: int = 128, headdim: int = 64, d_state: int = 128, ngroups: int = 8, tokens: int = 1,
    dtype: str = "bfloat16", state_dtype: str = "", indices: bool = False,
) -> Workload:  # fmt: skip
    """A decode step of Mamba-2, its A, dt, dt_bias and D one a head; of Mamba, with z, when nheads is 0.

    With a state_dtype of codes there are scales.
    """
    sizes = dict(locals())
    element, stored = element_of(dtype), element_of(state_dtype or dtype, "state_dtype", FLOATS + CODES)
    lead = (batch, tokens) if tokens > 1 else (batch,)
    # The axis of heads, or of rows where there are no heads.
    axis = len(lead)
    rows: tuple[int, ...]
    states: tuple[int, ...]
    groups: tuple[int, ...]
    kept_groups: tuple[int, ...]
    if nheads:
        if ngroups < 1 or nheads % ngroups:
            raise ValueError(f"ngroups: got {ngroups}; wanted a divisor of nheads, {nheads}")
        rows, states, groups = (nheads, headdim), (nheads, headdim, d_state), (ngroups, d_state)
        kept = spread(nheads, 2)
        kept_groups = tuple(head // (nheads // ngroups) for head in kept)
    else:
        rows, states, groups = (headdim,), (headdim, d_state), (d_state,)
        kept, kept_groups = spread(headdim), ()
    largest = LARGEST.get(stored.numpy, 1.0)
    by_head = (len(lead) + 1,) if nheads else ()
    per_row = (1,) if nheads else ()
    arrays = {
        "state": Array((batch, *states), stored, low=-largest, high=largest, touched=2 * batch * prod(states)),
        "x": Array((*lead, *rows), element),
        "dt": Array((*lead, *rows), element, broadcast=by_head),
        "A": Array(states, FLOAT32, broadcast=(1, 2) if nheads else (), low=-4.0, high=-0.5),
        "B": Array((*lead, *groups), element),
        "C": Array((*lead, *groups), element),
        "D": Array(rows, element, broadcast=per_row),
        **({} if nheads else {"z": Array((*lead, *rows), element)}),
        "dt_bias": Array(rows, element, broadcast=per_row),
    }
    cuts: dict[str, Cut] = {name: (axis, kept) for name in ("x", "dt", "z", "out") if name in arrays or name == "out"}
    cuts |= {"state": (1, kept), **{name: (0, kept) for name in ("A", "D", "dt_bias")}}
    if kept_groups:
        cuts |= {name: (axis, kept_groups) for name in "BC"}
    if tokens > 1:
        # A state after every token: what speculative decoding goes back to.
        arrays["intermediate_states_buffer"] = Array((batch, tokens, *states), stored)
        cuts["intermediate_states_buffer"] = (2, kept)
    if indices:
        arrays["state_batch_indices"] = Array((batch,), INT32, values=scattered(batch))
    updated = ("state", "intermediate_states_buffer")[: 1 + (tokens > 1)]
    if stored in CODES:
        count = 2 * batch * prod(rows)
        arrays["state_scale"] = Array((batch, *rows), FLOAT32, low=0.5 / largest, high=1.0 / largest, touched=count)
        cuts["state_scale"] = cuts["state"]
        updated += ("state_scale",)
    if stored in CODES and tokens > 1:
        arrays["intermediate_state_scales"] = Array((batch, tokens, *rows), FLOAT32)
        cuts["intermediate_state_scales"] = cuts["intermediate_states_buffer"]
        updated += ("intermediate_state_scales",)
    options: dict[str, Any] = {"dt_softplus": True}
    return Workload("selective_state_update", sizes, arrays, {"out": arrays["x"]}, options, updated, cuts=cuts)


_MAMBA1: dict[str, Any] = {"nheads": 0, "d_state": 16}

REPORT: Rows = {
    "selective_state_update": (
        {"batch": 128, "nheads": 24, "ngroups": 1, "dtype": "float32"},
        *({"batch": batch} for batch in (1, 16, 64)),
        {"batch": 256, "indices": True},
        *({"batch": batch, "state_dtype": "float32", "indices": batch == 256} for batch in (16, 64, 256)),
        *({"batch": batch, "headdim": 1536, "dtype": "float32", **_MAMBA1} for batch in (1, 128)),
        *({"batch": batch, "headdim": 8192, **_MAMBA1} for batch in (16, 64)),
        {"batch": 32, "tokens": 4, "indices": True},
        *({"batch": batch, "state_dtype": "int8", "indices": batch == 256} for batch in (1, 16, 64, 256)),
        *({"batch": 64, "state_dtype": str(dtype)} for dtype in CODES if str(dtype) != "int8"),
        {"batch": 32, "tokens": 4, "state_dtype": "int8", "indices": True},
    ),
}
"""The sizes that tables and pictures show, by function."""

SMALL: Rows = {
    "selective_state_update": (
        *(
            {"batch": 3, "nheads": 4, "headdim": headdim, "ngroups": 2, "d_state": d_state, "indices": True}
            for headdim, d_state in ((64, 128), (37, 64), (8, 256), (20, 100))
        ),
        {"batch": 3, "nheads": 4, "headdim": 64, "ngroups": 2, "state_dtype": "float32"},
        {"batch": 3, "nheads": 4, "headdim": 64, "ngroups": 2, "tokens": 3, "indices": True},
        {"batch": 3, "headdim": 300, **_MAMBA1},
        *(
            {"batch": 3, "nheads": 4, "headdim": 37, "ngroups": 2, "state_dtype": str(dtype), "indices": True}
            for dtype in CODES
        ),
        {"batch": 3, "nheads": 4, "headdim": 20, "ngroups": 2, "tokens": 3, "state_dtype": "int8", "d_state": 100},
    ),
}
"""Quick sizes, odd in every way that matters, by function: what checks run."""
