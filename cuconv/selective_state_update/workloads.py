"""Workloads of decode steps: of the causal convolutions and of selective states."""

from __future__ import annotations

from math import prod
from typing import Any

from cuconv.runtime.dtypes import FLOAT32, INT32
from cuconv.runtime.workload import Array, Cut, Workload, element_of, scattered, spread


def selective_state_update(
    batch: int = 1, nheads: int = 128, headdim: int = 64, d_state: int = 128, ngroups: int = 8, tokens: int = 1,
    dtype: str = "bfloat16", state_dtype: str = "", indices: bool = False,
) -> Workload:  # fmt: skip
    """A decode step of Mamba-2, its A, dt, dt_bias and D one a head; of Mamba, with z, when nheads is 0."""
    sizes = dict(locals())
    element, stored = element_of(dtype), element_of(state_dtype or dtype, "state_dtype")
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
    tied = (len(lead) + 1,) if nheads else ()
    per_row = (1,) if nheads else ()
    arrays = {
        "state": Array((batch, *states), stored, touched=2 * batch * prod(states)),
        "x": Array((*lead, *rows), element),
        "dt": Array((*lead, *rows), element, tied=tied),
        "A": Array(states, FLOAT32, tied=(1, 2) if nheads else (), low=-4.0, high=-0.5),
        "B": Array((*lead, *groups), element),
        "C": Array((*lead, *groups), element),
        "D": Array(rows, element, tied=per_row),
        **({} if nheads else {"z": Array((*lead, *rows), element)}),
        "dt_bias": Array(rows, element, tied=per_row),
    }
    cuts: dict[str, Cut] = {name: (axis, kept) for name in ("x", "dt", "z", "out0") if name in arrays or name == "out0"}
    cuts |= {"state": (1, kept), **{name: (0, kept) for name in ("A", "D", "dt_bias")}}
    if kept_groups:
        cuts |= {name: (axis, kept_groups) for name in "BC"}
    if tokens > 1:
        # A state after every token: what speculative decoding goes back to.
        arrays["intermediate_states_buffer"] = Array((batch, tokens, *states), stored)
        cuts["intermediate_states_buffer"] = (2, kept)
    if indices:
        arrays["state_batch_indices"] = Array((batch,), INT32, values=scattered(batch))
    options: dict[str, Any] = {"dt_softplus": True}
    updated = ("state", "intermediate_states_buffer")[: 1 + (tokens > 1)]
    return Workload("selective_state_update", sizes, arrays, (arrays["x"],), options, updated, cuts=cuts)
