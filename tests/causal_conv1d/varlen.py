"""What the case tables of packed sequences share: where arrays lie, inputs and oracle."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cuconv.causal_conv1d import reference
from cuconv.runtime.dtypes import BY_NAME
from tests.causal_conv1d.channels import OfChannels
from tests.support.compare import Kept
from tests.support.layouts import HEADS, LAYOUTS, PACKED, POOLS
from tests.support.placement import Array, Placement, place
from tests.support.sequences import OfSequences

ROWS: Any = {"layout": "tokens"}
ODD: Any = {"slots": "odd"}
"""What cases have in common."""


@dataclass(frozen=True)
class Packed(OfChannels, OfSequences):
    """One call on packed sequences."""

    UPDATED = ("conv_states", "snapshot_out")

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
    spare: int = 2
    slots: str | None = "permuted"
    index: str = "int32"
    initial: str | None = "mixed"
    pad_slot_id: int = -1
    activation: str | None = "silu"
    scale: float = 1.0  # of x and the states
    table: str | None = None
    longer: int = 0
    moved: bool = False
    read_only: bool = False
    null: bool = False  # whether pad_slot_id is given as null_slot
    keep: bool = False  # whether padding keeps its old contents
    first_column: int | None = None
    snapshots: str | None = None  # "pool", "window" or "whole": states with two columns more
    gates: str = ""  # which of pre_gate, post_gate and residual there are
    beside: str = ""  # how they lie, as x when empty
    dense: bool = False  # whether sequences of equal lengths are entries of a batch

    def lay_output(self, heads: int, head_dim: int, way: str) -> Placement:
        if self.has_heads:
            return place(self.input_t, (1, self.packed.total, heads, head_dim), **HEADS[way])
        if self.dense:
            return place(self.input_t, self.x_shape, **LAYOUTS[way][1])
        return place(self.input_t, (heads * head_dim, self.packed.total), **PACKED[way])

    @property
    def x_shape(self) -> tuple[int, ...]:
        """The shape of x."""
        count, total = self.packed.count, self.packed.total
        return (count, self.dim, total // count) if self.dense else (self.dim, total)

    def options(self) -> dict[str, Any]:
        return self.meaning() | self.division()

    def meaning(self) -> dict[str, Any]:
        """The options but those that divide the channels."""
        found: dict[str, Any] = {"null_slot" if self.null else "pad_slot_id": self.pad_slot_id}
        if self.keep:
            found["pad_output"] = "keep"
        if self.first_column is not None:
            found["first_column"] = self.first_column
        return {"activation": self.activation, **found}

    def placements(self) -> dict[str, Placement]:
        lies = LAYOUTS[self.layout][0] if self.dense else PACKED[self.layout]
        placed = {"x": place(self.input_t, self.x_shape, **lies), **self.taps()}
        if self.pool is not None:
            longer, lies = POOLS[self.pool]
            shape = self.pool_slots, self.dim, self.width - 1 + longer
            placed["initial_states" if self.read_only else "conv_states"] = place(
                BY_NAME[self.state_dtype or self.dtype], shape, **lies
            )
        placed |= {name: self.other(name, *each) for name, each in self.indices().items()}
        if self.snapshots in ("window", "whole"):
            _, lies = POOLS[self.pool or "channels"]
            shape = self.snapshot_slots, self.dim, self.width - 1 + 2 * (self.snapshots == "whole")
            placed["snapshot_out"] = place(BY_NAME[self.state_dtype or self.dtype], shape, **lies)
        for name in self.gates.split():
            placed[name] = place(self.input_t, self.x_shape, **PACKED[self.beside or self.layout])
        return placed | self.outputs()

    def range(self, name: str) -> tuple[float, float]:
        scale = self.scale if name in ("x", "conv_states", "initial_states") else 1.0
        return -scale, scale

    def spoil(self, arrays: dict[str, Array]) -> None:
        """Leave in the pool only what a sequence starts from, or what precedes that in a snapshot."""
        pool = arrays.get("initial_states", arrays.get("conv_states"))
        if pool is not None:
            first = 0 if self.first_column == 0 else pool.shape[2] - (self.width - 1)
            is_dead = np.ones(pool.shape, bool)
            for each in self.live(arrays):
                if each.starts_from_slot:
                    earliest = max(first - 2, 0) if self.snapshots == "whole" else first
                    is_dead[each.slot, :, earliest : first + self.width - 1] = False
            pool[is_dead] = np.nan

    def oracle(self, arrays: dict[str, Array]) -> dict[str, Any]:
        out, updated = reference.causal_conv1d_varlen_fn(**arrays, **self.meaning())
        results: dict[str, Any] = self.divide(out)
        if self.keep:
            results = {name: Kept(each) for name, each in results.items()}
        return results | updated


def without(case: Any, **changes: Any) -> Any:
    """The case on one sequence after another: without a pool and whatever belongs to it."""
    return replace(case, pool=None, slots=None, initial=None, **changes)
