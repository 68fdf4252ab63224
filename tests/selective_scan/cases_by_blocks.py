"""scan_by_blocks: prefills with a prefix cache that keeps the state at the end of every block."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cuconv.runtime.dtypes import BY_NAME, FLOAT32
from cuconv.selective_scan import reference, varlen
from tests import cases
from tests.selective_scan import cases_varlen
from tests.selective_scan.scan import RANGES
from tests.support.blocks import NULL, USUAL, Cache
from tests.support.placement import Array, Placement, place

INDICES = (
    *("query_start_loc", "cache_indices", "has_initial_state", "state_column"),
    *("block_idx_first_scheduled_token", "block_idx_last_scheduled_token", "cu_chunk_seqlen", "last_chunk_indices"),
)
ABSENT = dict.fromkeys(("D", "z", "delta_bias"))


class Explicit(cases_varlen.Case):
    """Calls of `selective_scan_varlen_fn` with all of their arguments."""

    def arguments(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        return dict(arrays)


@dataclass(frozen=True)
class Case(Cache, cases.Case):
    """One call."""

    FUNCTION = "scan_by_blocks"
    UPDATED = ("ssm_states",)

    dim: int
    lengths: tuple[int, ...]
    computed: tuple[int, ...]
    size: int
    behind: int = 0
    dtype: str = "bfloat16"
    index: str = "mixed"
    by_channel: bool = False

    @property
    def function(self) -> Callable[..., Any]:
        return varlen.scan_by_blocks

    def placements(self) -> dict[str, Placement]:
        input_t, order = BY_NAME[self.dtype], (1, 0) if self.by_channel else (0, 1)
        known, u = self.known, place(input_t, (self.dim, self.total), order=order)
        matrix = place(input_t, (8, self.total), order=order)
        placed = {"u": u, "ssm_states": place(FLOAT32, (self.slots, self.dim, 8)), "delta": u}
        placed |= {"A": place(FLOAT32, (self.dim, 8)), "B": matrix, "C": matrix}
        for name in INDICES:
            placed[name] = place(self.dtype_of(name, self.index), known[name].shape, spacing=2)
        return {**placed, "out": u}

    def integers(self, seed: int = 0) -> dict[str, Array]:
        return {name: self.known[name] for name in INDICES}

    def range(self, name: str) -> tuple[float, float]:
        return RANGES.get(name, (-1.0, 1.0))

    def options(self) -> dict[str, Any]:
        return {**ABSENT, "delta_softplus": True, "null_slot": NULL, "block_size": self.size}

    def explicit(self, arrays: Mapping[str, Array]) -> dict[str, Any]:
        """The arguments of `selective_scan_varlen_fn` that mean the same."""
        given = {name: arrays[name] for name in ("u", "ssm_states", "delta", "A", "B", "C", *INDICES[:4])}
        return {**given, **self.named, "delta_softplus": True, "pad_output": "keep"}

    def oracle(self, arrays: dict[str, Array]) -> dict[str, Any]:
        return Explicit(self.dim, "1", keep=self.has_padding).oracle(self.explicit(arrays))

    def errors(self, arrays: Mapping[str, Array]) -> Mapping[str, Array]:
        found: Mapping[str, Array] = reference.ERRORS["selective_scan_varlen_fn"](**self.explicit(arrays))
        return found


UNIT = (
    Case(5, (3, 2), (0, 7), 16),
    Case(12, **USUAL, size=16),
    Case(36, **USUAL, size=5, behind=9, dtype="float32", index="int64", by_channel=True),
    Case(7, **USUAL, size=64, behind=3, dtype="float16", index="int32"),
    Case(5, (300,), (0,), 16, behind=2, dtype="float32"),
    Case(5, (), (), 16, behind=3),
    Case(0, (3, 2), (0, 7), 2),
)
