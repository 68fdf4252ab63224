"""replay_by_columns: steps with rings of tokens, the cursors of which are in two arrays."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from cuconv.runtime.dtypes import BY_NAME, DType
from cuconv.selective_state_update import reference, replay
from cuconv.selective_state_update.reference_replay import Replay
from tests.selective_state_update import cases_replay
from tests.selective_state_update.cases_replay import SERVED
from tests.support.placement import Array

COLUMNS = ("ring_start", "ring_live")
OPTIONS = ("dt_softplus", "pad_slot_id", "philox_rounds", "window", "rand_seed")


@dataclass(frozen=True)
class Case(cases_replay.Case):
    """One call."""

    FUNCTION = "replay_by_columns"
    OPERATION: ClassVar[str] = "_replay_by_columns"
    UPDATED = ("state", *cases_replay.RINGS[:-1], "state_scale")

    @property
    def function(self) -> Callable[..., Any]:
        return replay.replay_by_columns

    def options(self) -> dict[str, Any]:
        return {name: value for name, value in super().options().items() if name in OPTIONS}

    def arguments(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        absent = dict.fromkeys(inspect.signature(self.function).parameters)
        return {**absent, **super().arguments(arrays)}

    def own_dtypes(self) -> dict[str, DType]:
        return super().own_dtypes() | dict.fromkeys(COLUMNS, BY_NAME["int32"])

    def integers(self, seed: int = 0) -> dict[str, Array]:
        found = super().integers(seed)
        start, live, *_ = found.pop("cursors").T
        return {**found, **dict(zip(COLUMNS, (start, live), strict=True))}

    def meaning(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of `selective_state_update_replay` that mean the same."""
        named = {name: value for name, value in super().arguments(arrays).items() if name not in COLUMNS}
        start, live = (arrays[name] for name in COLUMNS)
        return {**named, "cursors": np.stack([start, live, 0 * start, 0 * start], axis=1), "fold": False}

    def step(self, arrays: Mapping[str, Array]) -> Replay:
        return reference.replay(**self.meaning(arrays))

    def errors(self, arrays: Mapping[str, Array]) -> Mapping[str, Array]:
        found = reference.ERRORS["selective_state_update_replay"](**self.meaning(arrays))
        return {"out": found["out"]}


UNIT = (
    Case(5, 4, 8, 128, 2),
    Case(9, 4, 8, 64, 2, dtype="float32", window=7, room=1, others="strided"),
    Case(3, 2, 9, 16, dtype="float32", window=1, room=1, slots=None),
    Case(5, 2, 70, 128, 2, state_dtype="float32", window=16, without="z"),
    Case(5, 2, 37, 128, tokens=2, seed=5, state_dtype="float16"),
    Case("off1+3+1+0+2+off2", 4, 24, 128, 2, room=3, state_dtype="int8", others="backward"),
    Case(6, 4, 20, 128, 2, tokens=5, window=8, room=5, seed="array", odd=True),
    # Whole heads of contiguous rows: alone, several a warp, and in parts.
    Case(5, 4, 64, 128, 2, window=16, work=(1, 0)),
    Case(3, 2, 64, 128, window=16, live=16, state_dtype="float32", lies="fused", work=(1, 0), others="strided"),
    Case(4, 4, 64, 128, 2, tokens=4, window=16, room=4, work=(2, 1), state_dtype="int8", **SERVED),
    Case(5, 4, 64, 128, 2, state_dtype="int8", window=16, live=16, work=(2, 20)),
    Case(36, 2, 64, 64, window=2, work=(2, 1), index="int64"),
    Case(0, 2, 3, 16),
)
