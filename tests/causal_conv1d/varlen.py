"""What the case tables of packed sequences share: their batches, where arrays lie, inputs and oracle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cuconv.causal_conv1d import reference
from cuconv.runtime.dtypes import BOOL, BY_NAME, FLOAT32, DType
from tests.causal_conv1d.channels import OfChannels
from tests.support.batches import batch
from tests.support.layouts import HEADS, OTHERS, PACKED, POOLS
from tests.support.placement import Array, Placed, Placement, place

__all__ = [
    *("BIG", "UPDATED", "arguments", "inputs", "integers", "oracle", "place_inputs"),
    *("placements",),
]

UPDATED = ("conv_states",)
BIG: Any = ()
ARRAYS = ("x", "weight", "bias", "conv_states", "query_start_loc", "cache_indices", "has_initial_state")
"""The arrays of a call but its outputs."""

ROWS: Any = {"layout": "tokens"}
ODD: Any = {"slots": "odd"}
"""What cases have in common."""


@dataclass(frozen=True)
class Packed(OfChannels):
    """One call on packed sequences."""

    channels: int | tuple[int, ...]  # dim, or the sizes of ranges
    batch: str
    width: int = 4
    dtype: str = "bfloat16"
    weight_dtype: str = ""  # x's when empty
    state_dtype: str = ""  # x's when empty
    bias: str | None = "weight"  # or "float32"
    layout: str = "channels"
    out: str = ""  # as x when empty; several are taken in turn
    others: str = "dense"
    pool: str | None = "channels"
    spare: int = 2  # slots that no sequence has
    slots: str | None = "permuted"  # "odd": some are padded or outside the pool
    index: str = "int32"  # or "int64" or "mixed"
    initial: str | None = "mixed"  # or "all"
    pad_slot_id: int = -1
    activation: str | None = "silu"
    scale: float = 1.0  # of x

    @property
    def id(self) -> str:
        """The case in one word; what is left at its default is not named."""
        words = [f"{self.channel_word}of{self.batch}", f"w{self.width}", self.dtype, self.layout]
        words += [f"to_{self.out}"] * bool(self.out) + [f"weight_{self.weight_dtype}"] * bool(self.weight_dtype)
        words += {None: ["no_bias"], "weight": [], "float32": ["bias_float32"]}[self.bias]
        words += [self.others] * (self.others != "dense") + [f"pool_{self.pool}"] * (self.pool != "channels")
        words += [f"state_{self.state_dtype}"] * bool(self.state_dtype) + [f"slots_{self.slots}"]
        words += [self.index] * (self.index != "int32") + [f"initial_{self.initial}"] * (self.initial != "mixed")
        words += [f"pad{self.pad_slot_id}"] * (self.pad_slot_id != -1) + [self.activation or "linear"]
        words += [f"spare{self.spare}"] * (self.spare != 2) + [f"scale{self.scale:g}"] * (self.scale != 1)
        return "-".join(words)

    def lay_output(self, heads: int, head_dim: int, way: str) -> Placement:
        total = batch(self.batch).total
        if self.has_heads:
            return place(self.input_t, (1, total, heads, head_dim), **HEADS[way])
        return place(self.input_t, (heads * head_dim, total), **PACKED[way])

    def options(self) -> dict[str, Any]:
        """The arguments that are not arrays."""
        return {"activation": self.activation, "pad_slot_id": self.pad_slot_id, **self.division()}


def without(case: Any, **changes: Any) -> Any:
    """The case on one sequence after another: without a pool and whatever belongs to it."""
    return replace(case, pool=None, slots=None, initial=None, **changes)


def placements(case: Packed) -> dict[str, Placement]:
    """Where every array of the call lies."""
    b, others = batch(case.batch), OTHERS[case.others]
    weight_t = BY_NAME[case.weight_dtype or case.dtype]
    count, dim = b.count, case.dim

    def other(name: str, dtype: DType, shape: tuple[int, ...]) -> Placement:
        return place(dtype, shape, **others.get(name, {}))

    placed = {
        "x": place(case.input_t, (dim, b.total), **PACKED[case.layout]),
        "weight": other("weight", weight_t, (dim, case.width)),
    }
    if case.bias is not None:
        placed["bias"] = other("bias", weight_t if case.bias == "weight" else FLOAT32, (dim,))
    if case.pool is not None:
        longer, lies = POOLS[case.pool]
        state_t = BY_NAME[case.state_dtype or case.dtype]
        placed["conv_states"] = place(state_t, (count + case.spare, dim, case.width - 1 + longer), **lies)
    starts_t, slots_t = (BY_NAME[name] for name in INDEX_DTYPES[case.index])
    if b.starts is not None:
        placed["query_start_loc"] = other("query_start_loc", starts_t, (count + 1,))
    if case.slots is not None:
        placed["cache_indices"] = other("cache_indices", slots_t, (count,))
    if case.initial is not None:
        placed["has_initial_state"] = other("has_initial_state", BOOL, (count,))
    return placed | case.outputs()


INDEX_DTYPES = {"int32": ("int32", "int32"), "int64": ("int64", "int64"), "mixed": ("int64", "int32")}


def integers(case: Packed, seed: int = 0) -> dict[str, Array]:
    """Starts, slots and who has a state."""
    random, b, found = case.random(seed), batch(case.batch), {}
    if b.starts is not None:
        found["query_start_loc"] = np.array(b.starts)
    pool = b.count + case.spare
    if case.slots is not None:
        chosen = random.permutation(pool)[: b.count]
        if case.slots == "odd":
            strange = [case.pad_slot_id, pool, -2, pool + 7, -(2**31), 2**31 - 1]
            strange += [2**40, -(2**40)] * (case.index == "int64")
            chosen[1::3] = np.resize(strange, len(chosen[1::3]))
        found["cache_indices"] = chosen
    if case.initial is not None:
        has = np.arange(b.count) % 2 == 0
        found["has_initial_state"] = random.permutation(has) if case.initial == "mixed" else np.ones(b.count, bool)
    return found


def readers(case: Packed, known: Mapping[str, Array]) -> dict[int, int]:
    """The sequences with a slot of the pool, by slot."""
    slots = known.get("cache_indices", np.arange(batch(case.batch).count))
    pool = batch(case.batch).count + case.spare
    padding = [case.pad_slot_id] if "cache_indices" in known else []
    return {int(slot): i for i, slot in enumerate(slots) if 0 <= slot < pool and slot not in padding}


def place_inputs(case: Packed, seed: int = 0) -> dict[str, Placed]:
    """The arrays that are read, with their memory: values from -1 to 1, x's and the states' times `scale`.

    Of the pool only what a sequence starts from has a value, all else is NaN.
    """
    random, known = case.random(seed), integers(case, seed)
    placed = {}
    for name, lies in placements(case).items():
        if name in case.outputs():
            continue
        scale = case.scale if name in ("x", "conv_states") else 1.0
        values = known[name] if name in known else random.uniform(-scale, scale, lies.shape)
        if name == "conv_states":
            is_live = np.zeros(lies.shape, bool)
            for slot, i in readers(case, known).items():
                if case.initial is not None and known["has_initial_state"][i]:
                    is_live[slot, :, lies.shape[2] - (case.width - 1) :] = True
            values = np.where(is_live, values, np.nan)
        placed[name] = Placed(lies, values)
    return placed


def inputs(case: Packed, seed: int = 0) -> dict[str, Array]:
    """The arrays that are read."""
    return {name: placed.array for name, placed in place_inputs(case, seed).items()}


def arguments(case: Packed, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """All arguments, by name; several outputs are one."""
    outs = tuple(arrays[name] for name in case.outputs() if name in arrays)
    given = {name: array for name, array in arrays.items() if name in ARRAYS}
    if outs:
        given["out"] = outs[0] if tuple(case.outputs()) == ("out",) else outs
    return {**given, **case.options()}


def oracle(case: Packed, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs in float64 and the pool, exactly."""
    given = [arrays.get(name) for name in ARRAYS[2:]]
    out, pool = reference.causal_conv1d_varlen_fn(
        arrays["x"], arrays["weight"], *given, case.activation, case.pad_slot_id
    )
    return case.divide(out) | ({} if pool is None else {"conv_states": pool})
