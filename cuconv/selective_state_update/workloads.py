"""Sample calls of the state update: their maker, and rows of sizes for tables and checks."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from cuconv.runtime.dtypes import CODES, FLOAT32, INT32, STATES
from cuconv.runtime.rounding import LARGEST
from cuconv.runtime.workload import Array, Cut, Rows, Workload, element_of, scattered, spread


def selective_state_update(
    batch: int = 1, nheads: int = 128, headdim: int = 64, d_state: int = 128, ngroups: int = 8, tokens: int = 1,
    dtype: str = "bfloat16", state_dtype: str = "", indices: bool = False,
) -> Workload:  # fmt: skip
    """A decode step of Mamba-2 with one A, dt, dt_bias and D per head, or, when nheads is 0, of Mamba with z.

    A state_dtype of codes adds scales.
    """
    sizes = dict(locals())
    element, stored = element_of(dtype), element_of(state_dtype or dtype, "state_dtype", STATES)
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
        # The state after every token, to which speculative decoding can go back.
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


STAGGERED = 0
"""`live` of a batch with sequences that started at different times: they have 1 to `window` live tokens, one number
after the other. A call then does 1 / window of the work of a cycle of `window` calls, in which every sequence flushes
once."""


def _live(batch: int, window: int, live: int) -> list[int]:
    """The live tokens of each sequence."""
    if not 0 <= live <= window:
        raise ValueError(f"live: got {live}; wanted 0 (staggered) to window, {window}")
    return [live or 1 + number % window for number in range(batch)]


def selective_state_update_replay(
    batch: int = 1, nheads: int = 128, headdim: int = 64, d_state: int = 128, ngroups: int = 8, tokens: int = 1,
    window: int = 16, live: int = STAGGERED, fold: bool = False, dtype: str = "bfloat16", state_dtype: str = "",
    indices: bool = False,
) -> Workload:  # fmt: skip
    """A decode step of Mamba-2 with `live` tokens in the ring of each sequence; with live=window every sequence
    flushes."""
    sizes = dict(locals())
    plain = selective_state_update(batch, nheads, headdim, d_state, ngroups, tokens, dtype, state_dtype, indices)
    numbers = _live(batch, window, live)
    rows, writers = window + tokens, batch if fold else sum(number + tokens > window for number in numbers)
    count = sum(numbers) + (0 if fold else batch * tokens)
    element, state = plain.arrays["x"].dtype, plain.arrays["state"]
    cursors = [value for slot, number in enumerate(numbers) for value in (5 * slot % rows, number, 0, 0)]
    states = {name: plain.arrays[name] for name in ("state", "state_scale") if name in plain.arrays}
    of_steps = {name: each for name, each in plain.arrays.items() if name not in states and "intermediate" not in name}
    for name, axes in (("A", 1), ("D", 1), ("dt_bias", 1), ("dt", 2 + (tokens > 1))):
        of_steps[name] = replace(of_steps[name], shape=of_steps[name].shape[:axes], broadcast=())
    arrays = {
        **{name: replace(each, touched=prod(each.shape) // batch * (batch + writers)) for name, each in states.items()},
        "x_ring": Array((batch, nheads, rows, headdim), element, touched=count * nheads * headdim),
        "B_ring": Array((batch, ngroups, rows, d_state), element, touched=count * ngroups * d_state),
        "dt_ring": Array((batch, nheads, rows), FLOAT32, low=0.0, touched=count * nheads),
        "cursors": Array((batch, 4), INT32, values=tuple(cursors)),
        **of_steps,
    }
    cuts = {name: plain.cuts[name] for name in (*arrays, "out") if name in plain.cuts}
    cuts |= {"x_ring": plain.cuts["state"], "dt_ring": plain.cuts["state"], "B_ring": (1, plain.cuts["B"][1])}
    updated = (*(states if writers else ()), *(("cursors",) if fold else ("x_ring", "B_ring", "dt_ring", "cursors")))
    options = {**plain.options, "window": window, "fold": fold}
    return Workload("selective_state_update_replay", sizes, arrays, plain.outs, options, updated, cuts=cuts)


def selective_state_update_commit(
    batch: int = 1, window: int = 16, tokens: int = 1, dtype: str = "bfloat16"
) -> Workload:
    """The cursors of a batch after a step, of whatever dtype."""
    sizes = dict(locals())
    rows = window + tokens
    values = [value for slot, live in enumerate(_live(batch, window, STAGGERED))
              for value in (5 * slot % rows, live, tokens, live if live + tokens > window else 0)]  # fmt: skip
    arrays = {
        "cursors": Array((batch, 4), INT32, values=tuple(values), touched=8 * batch),
        "accepted": Array((batch,), INT32, values=tuple(number % (tokens + 1) for number in range(batch))),
        "state_batch_indices": Array((batch,), INT32, values=scattered(batch)),
    }
    options = {"ring_rows": rows, "window": window}
    return Workload("selective_state_update_commit", sizes, arrays, {}, options, ("cursors",))


def selective_state_update_materialise(
    batch: int = 1, nheads: int = 128, headdim: int = 64, d_state: int = 128, ngroups: int = 8, window: int = 16,
    dtype: str = "bfloat16", state_dtype: str = "",
) -> Workload:  # fmt: skip
    """The states of `batch` slots after their live tokens, written to `batch` other slots."""
    sizes = dict(locals())
    replay = selective_state_update_replay(2 * batch, nheads, headdim, d_state, ngroups, 1, window, STAGGERED, False,
                                           dtype, state_dtype)  # fmt: skip
    names = ("state", "x_ring", "B_ring", "dt_ring", "cursors", "A", "state_scale")
    live, slots = sum(_live(2 * batch, window, STAGGERED)[:batch]), scattered(batch)
    found = {name: replay.arrays[name] for name in names if name in replay.arrays}
    for name, each in found.items():
        per_row = prod(each.shape) // (2 * batch * (window + 1)) if name.endswith("_ring") else 0
        found[name] = replace(each, touched=live * per_row if per_row else each.touched and prod(each.shape))
    arrays = {
        **{name: each for name, each in found.items() if name != "state_scale"},
        "state_batch_indices": Array((batch,), INT32, values=slots),
        "dst_state_batch_indices": Array((batch,), INT32, values=tuple(batch + slot for slot in slots)),
        **{name: each for name, each in found.items() if name == "state_scale"},
    }
    cuts = {name: replay.cuts[name] for name in arrays if name in replay.cuts}
    updated = tuple(name for name in ("state", "state_scale") if name in arrays)
    return Workload("selective_state_update_materialise", sizes, arrays, {}, {"window": window}, updated, cuts=cuts)


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
    "selective_state_update_replay": (
        *({"batch": batch, "state_dtype": kept} for kept in ("", "float32", "int8") for batch in (1, 16, 64, 256)),
        *({"batch": 64, "live": 16, "state_dtype": kept} for kept in ("", "float32", "int8")),
        {"batch": 1, "fold": True},
        *({"batch": batch, "tokens": 4, "state_dtype": kept} for kept in ("", "float32") for batch in (4, 32)),
    ),
    "selective_state_update_commit": ({"batch": 256, "tokens": 4},),
    "selective_state_update_materialise": ({"batch": 8}, {"batch": 64, "state_dtype": "float32"}),
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
    "selective_state_update_replay": tuple(
        {"batch": 5, "nheads": 4, "headdim": 20, "ngroups": 2, "window": 4, **more}
        for more in (
            {"headdim": 64, "indices": True},
            {"d_state": 100, "state_dtype": "float32", "live": 4},
            {"tokens": 3, "indices": True},
            {"fold": True, "d_state": 64},
            {"state_dtype": "int8", "window": 20, "live": 20},
        )
    ),
    "selective_state_update_commit": ({"batch": 5, "tokens": 3}, {"batch": 300}),
    "selective_state_update_materialise": (
        {"batch": 3, "nheads": 4, "headdim": 20, "ngroups": 2, "window": 4},
        {"batch": 3, "nheads": 4, "headdim": 20, "ngroups": 2, "d_state": 100, "state_dtype": "int8"},
    ),
}
"""Quick sizes, odd in every way that matters, by function: what checks run."""
