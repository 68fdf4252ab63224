"""selective_state_update: steps of state space models, with their states in a pool."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np

from cuconv.runtime.call import Plan
from cuconv.selective_state_update import plan as planner
from cuconv.selective_state_update import update
from cuconv.selective_state_update.reference import ERRORS
from tests.selective_state_update import call as calls
from tests.selective_state_update.call import Case
from tests.support.bounds import ROUNDING, stored
from tests.support.compare import Between
from tests.support.layouts import BY_TOKEN, PARAMETERS, SLOTS
from tests.support.placement import Array

FUNCTION = "selective_state_update"
OUTPUTS = calls.OUTPUTS
UPDATED = calls.UPDATED
RANGES = calls.RANGES

placements = calls.placements
inputs = calls.inputs
place_inputs = calls.place_inputs
integers = calls.integers
arguments = calls.arguments


def oracle(case: Case, arrays: Mapping[str, Array]) -> dict[str, Any]:
    """The result in float64; what states may be, which are rounded to their dtype with the call's random numbers."""
    call = calls.reference_call(case, arrays)
    out = np.zeros(arrays["x"].shape)
    updated = {name: Between(arrays[name].copy(), arrays[name].copy()) for name in UPDATED if name in arrays}
    for token, error in call.errors():
        out[token.place] = token.out(token.after).reshape(out[token.place].shape)
        at = {
            "state": token.slot,
            "intermediate_states_buffer": None if token.row is None else (token.row, token.number),
        }
        for name, between in updated.items():
            if at[name] is not None:
                for bound, sign in zip(between, (-1, 1), strict=True):
                    bound[at[name]] = call.rounded(token, token.after + sign * error).reshape(bound[at[name]].shape)
    return {"out": out, **updated}


def tolerances(case: Case, arrays: Mapping[str, Array]) -> dict[str, tuple[float, Array]]:
    """The tolerance of the result, relative and absolute."""
    relative, subnormal = stored(case.dtype)
    errors = ERRORS[FUNCTION](**arguments(case, arrays))["out"]
    return {"out": (relative, np.where(errors > 0, errors + subnormal, 0.0))}


def running(case: Case) -> AbstractContextManager[Any]:
    """The context for calls of a case: in it a kernel is planned that larger calls have, if the case forces one."""
    if not case.force:
        return nullcontext()
    words = (word.partition("=") for word in case.force.split())
    changes: Any = {name: int(value) if name == "rows" else bool(int(value)) for name, _, value in words}
    choose = planner.choose

    def plan(o: planner.Operands) -> Plan:
        with mock.patch.object(planner, "choose", lambda o: replace(choose(o), **changes)):
            return planner.plan(o)

    operation = copy(update._update)
    # Without what is remembered of calls with the kernel that is planned otherwise.
    operation._plan, operation._remembered, operation._last = plan, operation._prepare, None  # type: ignore[assignment]
    return mock.patch.object(update, "_update", operation)


PER_HEAD: Any = {"per_head": "all"}
SERVED: Any = {"odd": True, "index": "int64"}

UNIT = (
    # One token, without heads and a decay for every element, as in Mamba.
    Case(3, 0, 40, 16, dtype="float32"),
    Case(2, 0, 9, 16, dtype="float32", without="all", softplus=False, slots=None),
    Case(7, 0, 20, 16, state_dtype="float32", lies="fused", **SERVED),
    Case(2, 0, 6, 4, dtype="float16", A_dtype="", without="D", pool="slots_innermost", loud=30),
    Case(2, 0, 6, 8, lies="transposed", without="dt_bias", pool="transposed"),
    # With heads and one decay per head, as in Mamba-2.
    Case(3, 4, 8, 128, 2, without="z", **PER_HEAD),
    Case(7, 2, 20, 128, dtypes="float32", pool="slot_strided", **PER_HEAD, **SERVED),
    Case(2, 3, 5, 64, 3, dtype="float32", slots=None, without="z D", **PER_HEAD),
    Case(2, 2, 3, 128, per_head="A", lies="fused", softplus=False, pad_slot_id=0),
    Case(3, 2, 6, 128, frozen=True, **PER_HEAD),
    # One value per head of some parameters, and parameters of other dtypes.
    Case(2, 2, 3, 128, per_head="A dt", dtypes="dt"),
    Case(2, 2, 3, 128, per_head="dt dt_bias D", dtypes="D"),
    Case(2, 2, 3, 128, per_head="A_n", dtypes="dt_bias", A_dtype=""),
    # Every way for arrays to lie.
    Case(3, 2, 3, 128, lies="fused_by_1+fused+dense", pool="sliced", others="strided", **PER_HEAD),
    Case(3, 2, 6, 128, lies="offset_by_1+dense", pool="offset", **PER_HEAD),
    Case(3, 2, 6, 128, lies="offset_by_2", pool="offset_by_2", **PER_HEAD),
    Case(3, 2, 6, 128, lies="spaced+transposed+fused_by_2", pool="spaced", others="backward", **PER_HEAD),
    Case(3, 2, 6, 128, lies="backward+dense+spaced+transposed", pool="backward", others="backward"),
    Case(3, 2, 6, 128, lies="fused_by_2+backward", pool="sliced_by_2", others="strided"),
    # Kernels that larger calls have.
    Case(2, 2, 37, 128, force="rows=2 index32=0", **PER_HEAD, **SERVED),
    Case(3, 2, 37, 128, force="rows=8 stream=0", lies="fused", **PER_HEAD, **SERVED),
    Case(2, 2, 37, 128, force="rows=16 stream=0 index32=0", **PER_HEAD),
    Case(2, 2, 37, 16, dtype="float32", force="rows=4 stream=0 index32=0", pool="slot_strided"),
    Case(3, 2, 9, 128, tokens=3, targets="each", steps="row", force="rows=2 index32=0", lies="fused", **SERVED),
    # Several tokens, and where the states after them go.
    Case(3, 2, 6, 128, tokens=1, targets="one", **PER_HEAD),
    Case(5, 2, 6, 128, 2, tokens=3, targets="one", steps="slot", **PER_HEAD, **SERVED),
    Case(5, 2, 6, 128, tokens=4, targets="each", columns=6, steps="row", lies="fused", **PER_HEAD, **SERVED),
    Case(6, 2, 6, 128, tokens=3, accepted=True, steps="row", **PER_HEAD, **SERVED),
    Case(6, 2, 6, 128, tokens=2, accepted=True, columns=4, targets="each", index="mixed"),
    Case(4, 2, 6, 128, tokens=3, slots="shared", targets="one", **PER_HEAD),
    Case(4, 2, 6, 128, tokens=2, slots="shared", steps="row", columns=5, frozen=True, **PER_HEAD),
    Case(4, 2, 6, 16, dtype="float32", tokens=5, steps="slot", slots=None),
    # Packed sequences.
    Case("off1+3+1+0+2+off2", 2, 6, 128, 2, **PER_HEAD),
    Case("1+4+0+2+1", 2, 6, 128, targets="each", columns=3, steps="row", **SERVED),
    Case("4+1+2", 2, 6, 128, targets="each", columns=2, steps="row", **PER_HEAD),
    Case("2+1+3+2+1", 2, 6, 128, accepted=True, steps="slot", columns=2, **SERVED, **PER_HEAD),
    Case("off3", 2, 6, 128, **PER_HEAD),
    Case("0x0+off3", 2, 6, 128, slots=None, **PER_HEAD),
    Case("5+1", 2, 5, 64, dtype="float32", targets="one", slots=None, without="all", index="mixed", **PER_HEAD),
    # Stochastic rounding.
    Case(3, 2, 6, 128, seed=2**64 - 1, **PER_HEAD),
    Case(3, 2, 6, 128, dtype="float32", state_dtype="float16", tokens=3, seed="array", targets="each", **PER_HEAD),
    Case(5, 2, 5, 128, state_dtype="float16", tokens=2, seed=77, rounds=7, steps="row", loud=20, **SERVED),
    Case("2+3+0+1", 2, 5, 16, dtype="float16", state_dtype="bfloat16", seed="array", rounds=1, steps="slot"),
    # Every number of states.
    Case(2, 2, 5, 2, state_dtype="float32"),
    Case(2, 2, 5, 3, dtype="float32", **PER_HEAD),
    Case(2, 2, 3, 32, dtype="float16", **PER_HEAD),
    Case(2, 2, 3, 96, state_dtype="float16", **PER_HEAD),
    Case(2, 2, 3, 100, tokens=2, seed=5, steps="row"),
    Case(2, 2, 3, 256, state_dtype="float32", **PER_HEAD),
    Case(2, 1, 3, 512, dtype="float16"),
    # Nothing to compute, and softplus where it is linear and where it vanishes.
    Case(0, 2, 3, 16),
    Case(2, 2, 0, 16),
    Case(2, 2, 3, 16, tokens=0),
    Case("0+0", 2, 3, 16),
    Case(4, 2, 3, 16, dtype="float32", loud=60),
)

_MAMBA_130M: Any = {"heads": 0, "dim": 1536, "d_state": 16, "dtype": "float32"}
_MAMBA2_130M: Any = {"heads": 24, "dim": 64, "d_state": 128, "without": "z", **PER_HEAD}
_HYBRID: Any = {"heads": 128, "dim": 64, "d_state": 128, "groups": 8, "without": "z", **PER_HEAD}
_BATCHES = (1, 2, 5)
_SERVED_OR_NOT: Any = ({}, SERVED)
_WITHOUT = ("", "D", "z", "dt_bias", "D z", "z dt_bias", "all")
_STEPS: tuple[Any, ...] = (
    {},
    {"tokens": 4, "steps": "row"},
    {"tokens": 3, "targets": "each", "odd": True},
    {"tokens": 4, "accepted": True, "columns": 5},
)

EDGE = tuple(
    dict.fromkeys(
        [
            *(Case(n, **{**_MAMBA_130M, **more}) for n in _BATCHES for more in _SERVED_OR_NOT),
            *(
                Case(n, **{**model, "dtype": a, "state_dtype": b}, **more)
                for n, more in zip((1, 2, 2, 3), _STEPS, strict=True)
                for model in (_MAMBA2_130M, _HYBRID)
                for a, b in (("bfloat16", ""), ("float32", ""), ("bfloat16", "float32"), ("float16", "bfloat16"))
            ),
            *(Case(n, 4, 8, 128, 2, **PER_HEAD, **SERVED) for n in (1, 33, 300, 3000)),
            *(
                Case(3, 2, dim, n, per_head=per_head)
                for dim in (1, 7, 64, 100)
                for n in (1, 5, 16, 128)
                for per_head in ("", "all")
            ),
            *(Case(3, 2, 20, n, 2, dtype="float16", per_head=a) for n in range(1, 40) for a in ("", "all")),
            *(Case(3, 2, 9, n, dtype="float32") for n in (48, 60, 63, 65, 100, 127, 160, 255, 257, 384, 511, 512)),
            *(
                Case(3, 2, 20, n, dtype=a, state_dtype=b, A_dtype=c, dtypes=d, seed=9 if b != "float32" else None)
                for n in (16, 128)
                for a in ROUNDING
                for b in ROUNDING
                for c in ("", "float32")
                for d in ("", "float32", "dt", "D dt_bias")
            ),
            *(Case(3, 2, 20, n, lies=a, pool=b) for n in (16, 128) for a in BY_TOKEN for b in SLOTS),
            *(Case(3, 2, 20, 128, lies=a, pool=b, per_head="all") for a in BY_TOKEN for b in SLOTS),
            *(
                Case(5, 3, 20, 128, others=a, per_head=b, tokens=2, **SERVED)
                for a in PARAMETERS
                for b in ("", "all", "A_n dt")
            ),
            *(Case(5, 2, 20, n, without=a, per_head=b) for n in (16, 128) for a in _WITHOUT for b in ("", "all")),
            *(Case(70000, 1, 2, 4, index="int64"), Case(2, 70000, 1, 4), Case(2, 0, 100000, 16)),
            *(Case("400x1+1000+off5", 2, 8, 16, 2, steps="row", columns=2, per_head=a, odd=True) for a in ("", "all")),
            *(Case("3+7+0+200", 4, 16, 64, 2, dtype="float32", targets=a, columns=4) for a in (None, "one", "each")),
        ]
    )
)


BIG = (
    Case(5, 128, 64, 128, 8, spare=4100, **PER_HEAD),
    Case(262200, 128, 64, 1, spare=0, without="z", **PER_HEAD),
)
"""A pool of more than 2**32 elements; tokens of more than 2**31."""
