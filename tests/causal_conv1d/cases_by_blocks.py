"""convolve_by_blocks: prefills with a prefix cache that keeps the state at the end of every block."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cuconv.causal_conv1d import reference, varlen
from cuconv.runtime.dtypes import BY_NAME
from tests import cases
from tests.support.blocks import NULL, USUAL, Cache
from tests.support.placement import Array, Placement, place

INDICES = (
    *("query_start_loc", "cache_indices", "has_initial_state", "state_column"),
    *("block_idx_last_scheduled_token", "num_computed_tokens"),
)


@dataclass(frozen=True)
class Case(Cache, cases.Case):
    """One call."""

    FUNCTION = "convolve_by_blocks"
    UPDATED = ("conv_states",)

    dim: int
    lengths: tuple[int, ...]
    computed: tuple[int, ...]
    size: int
    behind: int = 0
    dtype: str = "bfloat16"
    index: str = "mixed"
    by_channel: bool = False
    first_column: int | None = None
    width: int = 4
    activation: str | None = "silu"
    apart: int = 1
    """The distance of a result's channels, in elements."""
    state_dtype: str | None = None

    @property
    def function(self) -> Callable[..., Any]:
        return varlen.convolve_by_blocks

    def placements(self) -> dict[str, Placement]:
        input_t, order = BY_NAME[self.dtype], (1, 0) if self.by_channel else (0, 1)
        known, x = self.known, place(input_t, (self.dim, self.total), order=order)
        out = place(input_t, x.shape, order=order, spacing=self.apart)
        state_t = BY_NAME[self.state_dtype or self.dtype]
        pool = place(state_t, (self.slots, self.dim, self.width), order=(0, 2, 1))
        placed = {"x": x, "weight": place(input_t, (self.dim, self.width)), "conv_states": pool}
        for name in INDICES:
            placed[name] = place(self.dtype_of(name, self.index), known[name].shape, spacing=2)
        return {**placed, "out": out}

    def integers(self, seed: int = 0) -> dict[str, Array]:
        return {name: self.known[name] for name in INDICES}

    def options(self) -> dict[str, Any]:
        named = {"activation": self.activation, "first_column": self.first_column}
        options = {"bias": None, "null_slot": NULL, **named}
        return {**options, "block_size": self.size}

    def explicit(self, arrays: Mapping[str, Array]) -> dict[str, Any]:
        """The arguments of `causal_conv1d_varlen_fn` that mean the same."""
        given = {name: arrays[name] for name in ("x", "weight", "conv_states", *INDICES[:4])}
        return {**given, **self.named, "activation": self.activation, "first_column": self.first_column}

    def oracle(self, arrays: dict[str, Array]) -> dict[str, Any]:
        out, updated = reference.causal_conv1d_varlen_fn(**self.explicit(arrays))
        return {"out": out, **updated}

    def errors(self, arrays: Mapping[str, Array]) -> Mapping[str, Array]:
        found: Mapping[str, Array] = reference.ERRORS["causal_conv1d_varlen_fn"](**self.explicit(arrays))
        return found


UNIT = (
    Case(12, **USUAL, size=16),
    Case(64, **USUAL, size=5, behind=9, dtype="float32", index="int64", by_channel=True),
    Case(7, **USUAL, size=64, behind=3, dtype="float16", index="int32", first_column=0),
    Case(16, **USUAL, size=16, by_channel=True),
    Case(7, **USUAL, size=3, behind=4, dtype="float16", by_channel=True),
    Case(8, (300,), (0,), 4, behind=2, dtype="float32"),
    Case(132, (300,), (0,), 4, behind=2, by_channel=True),
    Case(264, (70, 0, 9), (3, 0, 5), 8, behind=3, index="int32", by_channel=True),
    Case(24, (7, 1, 0, 12) * 12, (0, 5, 3, 100) * 12, 4, index="int64", by_channel=True, state_dtype="float32"),
    Case(20, **USUAL, size=16, by_channel=True, width=1, activation=None),
    Case(4, **USUAL, size=8, behind=2, by_channel=True),
    Case(20, **USUAL, size=4, dtype="float16", by_channel=True, width=7, apart=3),
    Case(5, (3, 2), (0, 7), 16),
    Case(5, (), (), 16, behind=3),
    Case(0, (3, 2), (0, 7), 2),
)
