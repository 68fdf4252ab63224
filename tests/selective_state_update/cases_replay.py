"""selective_state_update_replay: steps with rings of tokens, some of them full."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, ClassVar
from unittest import mock

import numpy as np

from cuconv.runtime.dtypes import BY_NAME, DType
from cuconv.runtime.plan import Plan
from cuconv.selective_state_update import plan as plain_planner
from cuconv.selective_state_update import plan_replay as planner
from cuconv.selective_state_update import reference
from cuconv.selective_state_update import replay as operator
from cuconv.selective_state_update.kernels_replay import SelectiveStateUpdateQuantisedFoldSingle
from cuconv.selective_state_update.reference import SelectiveStateUpdate
from cuconv.selective_state_update.reference_replay import Replay
from tests.selective_state_update import cases as plain
from tests.support.compare import Between, Kept
from tests.support.entries import replaced
from tests.support.placement import Array

RINGS = ("x_ring", "B_ring", "dt_ring", "cursors")

STRANGE = 2**20
"""A number that no cursor may have."""


@dataclass(frozen=True)
class Case(plain.Case):
    """One call."""

    FUNCTION = "selective_state_update_replay"
    OPERATION: ClassVar[str] = "_replay"
    """The operation of `replay` that a call makes."""
    UPDATED = ("state", *RINGS, "state_scale")

    per_head: str = "all"
    window: int = 3
    room: int = 2  # rows of a ring beyond the window
    live: int | None = None  # live tokens of every slot; None: some and some
    forced: bool = False  # some sequences flush
    fold: bool = False
    work: tuple[int, int] | None = None  # of a warp: heads, and tiles of each, or whether flushes come first
    committed: bool = False  # no step has left anything to be committed

    def options(self) -> dict[str, Any]:
        named = super().options()
        del named["disable_state_update"]
        return {**named, "window": self.window, "fold": self.fold}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        rows, slots = self.window + self.room, self.pool_slots
        return super().shapes() | {
            "x_ring": (slots, self.heads, rows, self.dim),
            "B_ring": (slots, self.groups, rows, self.d_state),
            "dt_ring": (slots, self.heads, rows),
        }

    def own_dtypes(self) -> dict[str, DType]:
        found = super().own_dtypes()
        same = {"x_ring": BY_NAME[self.dtype], "B_ring": found.get("B", BY_NAME[self.dtype])}
        fixed = {"dt_ring": "float32", "cursors": "int32", "force_flush": "bool"}
        return found | same | {name: BY_NAME[dtype] for name, dtype in fixed.items()}

    def way_to_lie(self, name: str, rank: int) -> dict[str, Any]:
        if name in RINGS:
            # Rings are contiguous behind their slots, of which there may be more.
            return {"pad": (0, 1 if name == "x_ring" else 0, *[0] * (rank - 2))} if self.pool == "slot_strided" else {}
        return super().way_to_lie(name, rank)

    def integers(self, seed: int = 0) -> dict[str, Array]:
        found, random, slots = super().integers(seed), self.random(seed + 1), self.pool_slots
        rows = self.window + self.room
        live = random.permutation(slots) % (self.window + 1) if self.live is None else np.full(slots, self.live)
        cursors = np.stack([random.integers(0, rows, slots), live, *random.integers(0, 9, (2, slots))], axis=1)
        if self.odd:
            cursors[::3, 0] = np.resize([rows, -1, STRANGE], len(cursors[::3]))
            cursors[1::3, 1] = np.resize([self.window + 1, -STRANGE], len(cursors[1::3]))
        if self.committed:
            cursors[:, 2:] = 0
        is_used = np.zeros(slots, bool)
        starts = found.get("state_batch_indices", np.arange(len(self.lengths)))
        is_used[[slot for slot in starts if 0 <= slot < slots]] = True
        cursors[~is_used] = STRANGE
        found["cursors"] = cursors
        if self.forced:
            found["force_flush"] = np.arange(len(self.lengths)) % 2 == 0
        return found

    def range(self, name: str) -> tuple[float, float]:
        return (0.0, 1.0) if name == "dt_ring" else super().range(name)

    def spoil(self, arrays: dict[str, Array]) -> None:
        """Make NaN also what is not live in the rings, and the state of sequences that start from zeros."""
        call = self.reference_call(arrays)
        live = np.zeros(arrays["dt_ring"].shape, bool)
        is_read = np.zeros(self.pool_slots, bool)
        for step in self.step(arrays).steps():
            rows = (step.start + np.arange(step.live)) % (self.window + self.room)
            goes_on = not self.fresh or bool(arrays["has_initial_state"][step.tokens[0].sequence])
            live[step.slot, :, rows] = goes_on
            is_read[step.slot] = goes_on
        arrays["dt_ring"][~live] = np.nan
        arrays["x_ring"][~live] = np.nan
        arrays["B_ring"][np.broadcast_to(~live[:, :1].any(axis=1, keepdims=True), arrays["B_ring"].shape[:3])] = np.nan
        for name in ("state", "state_scale"):
            if name in arrays:
                arrays[name][~is_read] = plain._nan(arrays[name])
        for name in plain.BY_TOKENS:
            if name in arrays:
                arrays[name][~call.is_computed] = np.nan

    def step(self, arrays: Mapping[str, Array]) -> Replay:
        """The call of the oracle."""
        return reference.replay(**self.arguments(arrays))

    def reference_call(self, arrays: Mapping[str, Array]) -> SelectiveStateUpdate:
        call: SelectiveStateUpdate = self.step(arrays).call
        return call

    def errors(self, arrays: Mapping[str, Array]) -> Mapping[str, Array]:
        """The error of out; the others are in the bounds of the oracle."""
        return {"out": super().errors(arrays)["out"]}

    def oracle(self, arrays: dict[str, Array]) -> dict[str, Any]:
        step = self.step(arrays)
        copies = {name: arrays[name].copy() for name in self.UPDATED if name in arrays}
        out, scales = np.zeros(arrays["x"].shape), copies.get("state_scale")
        low, high = ({name: copies[name].copy() for name in copies if name.startswith("state")} for _ in range(2))
        for each in step.steps():
            if each.stored is not None:
                for bounds, stored in zip((low, high), step.stored_bounds(each), strict=True):
                    bounds["state"][each.slot] = stored.states
                    if stored.scales is not None:
                        bounds["state_scale"][each.slot] = stored.scales.reshape(bounds["state_scale"].shape[1:])
        rings = replace(step.rings, **{name: copies[name] for name in RINGS if name in copies})
        step.write(out, copies["state"], scales, rings)
        error = step.errors()["dt_ring"].astype(np.float32)
        wanted = {**copies, **{name: Between(low[name], high[name]) for name in low}}
        wanted["dt_ring"] = Between(copies["dt_ring"] - error, copies["dt_ring"] + error)
        if not self.keep:
            return {"out": out, **wanted}
        out[~step.is_computed] = np.nan
        return {"out": Kept(out), **wanted}

    def running(self) -> AbstractContextManager[Any]:
        if not self.force and self.work is None:
            return nullcontext()
        words = (word.partition("=") for word in self.force.split())
        changes: Any = {name: int(value) if name == "rows" else bool(int(value)) for name, _, value in words}
        heads, has_few = changes.pop("heads", False), changes.pop("few", True)
        few, walked, most = SelectiveStateUpdateQuantisedFoldSingle, planner.WALKED, plain_planner.MAX_HEADS
        if heads:
            walked, most = {d_state: dict.fromkeys(least, 0) for d_state, least in walked.items()}, 2
        choose, work, few_work = planner.choose, planner.work, planner.few_work

        def plan(o: planner.Operands) -> Plan:
            with (
                mock.patch.object(planner, "choose", lambda o: replace(choose(o), **changes)),
                mock.patch.object(planner, "work", lambda *sizes: self.work or work(*sizes)),
                mock.patch.object(planner, "few_work", lambda *sizes: self.work or few_work(*sizes)),
                mock.patch.object(planner, "FEW_LEAST", 0 if self.work else planner.FEW_LEAST),
                mock.patch.object(planner, "WALKED", walked),
                mock.patch.object(plain_planner, "MAX_HEADS", most),
                mock.patch.object(few, "takes", few.takes if has_few else lambda *arrays: False),
            ):
                return planner.plan(o)

        operation = copy(getattr(operator, self.OPERATION))
        # Without what is remembered of calls with the kernel that is planned otherwise.
        operation.plan, operation._remembered = plan, operation._prepare  # type: ignore[assignment]
        operation.recent = operation.known = ()
        return replaced(operator, self.OPERATION, operation)


SERVED = plain.SERVED

UNIT = (
    # One token a sequence, rings with every number of live tokens.
    Case(5, 4, 8, 128, 2),
    Case(9, 4, 8, 64, 2, dtype="float32", window=7, room=1),
    Case(7, 2, 20, 128, dtypes="float32", pool="slot_strided", forced=True, **SERVED),
    Case(5, 2, 70, 128, 2, state_dtype="float32", window=16, without="z"),
    Case(4, 2, 6, 128, window=32, room=3, live=32, lies="fused", without="D z"),
    Case(4, 2, 6, 128, window=32, live=31, dtype="float16", softplus=False, without="dt_bias"),
    Case(3, 2, 9, 16, dtype="float32", window=1, room=1, slots=None),
    Case(3, 2, 6, 128, live=0, state_dtype="float16", pad_slot_id=0, null_slot=None),
    Case(5, 2, 6, 128, fresh=True, forced=True, null_slot=0, keep=True, beyond=2, **SERVED),
    # Every way for arrays to lie, other dtypes, kernels that larger calls have.
    Case(3, 2, 6, 128, lies="offset_by_1+dense", pool="offset", A_dtype=""),
    Case(3, 2, 6, 128, lies="spaced+transposed+fused_by_2", pool="spaced", others="backward"),
    Case(3, 2, 6, 128, lies="backward+dense", pool="offset_by_2", others="strided", dtypes="z B C dt"),
    Case(3, 2, 6, 128, dtype="float16", dtypes="B C", A_dtype="float32", pool="sliced_by_2"),
    Case(3, 2, 37, 128, force="rows=2 index32=0", live=3),
    Case(5, 2, 37, 128, force="rows=4", window=16, dtype="float32", lies="fused", **SERVED),
    Case(5, 2, 72, 128, force="rows=16 index32=0", window=16, dtype="float32"),
    Case(3, 2, 37, 16, dtype="float32", force="rows=4 index32=0"),
    Case(3, 2, 300, 16, 1, tokens=2, force="rows=1"),
    # Several heads and tiles of a warp.
    Case(5, 4, 40, 128, 2, work=(2, 3), without="D"),
    Case(5, 4, 40, 128, 1, work=(4, 2), state_dtype="float32", lies="fused+transposed+dense", **SERVED),
    Case(3, 6, 37, 128, 2, work=(3, 3), dtype="float32", forced=True, window=6),
    Case(5, 4, 37, 64, 2, work=(2, 2), tokens=2, others="strided", fresh=True, keep=True, **SERVED),
    Case("off1+3+1+0+2+off2", 4, 24, 128, 2, room=3, work=(2, 2), state_dtype="int8"),
    # Whole heads of contiguous rows.
    Case(5, 4, 64, 128, 2, window=16, work=(1, 0)),
    Case(4, 4, 128, 64, 2, window=16, room=3, live=13, forced=True, without="D z", work=(1, 0), **SERVED),
    Case(3, 2, 64, 128, window=16, live=16, state_dtype="float32", dtypes="dt", lies="fused", null_slot=0, work=(1, 0)),
    Case(5, 2, 64, 128, 1, state_dtype="int8", forced=True, pool="slot_strided", work=(1, 0), **SERVED),
    Case(3, 2, 64, 64, state_dtype="float8_e4m3fn", window=7, keep=True, null_slot=0, softplus=False, work=(1, 0)),
    Case(3, 2, 64, 64, state_dtype="int16", live=3, A_dtype="", work=(1, 0)),
    # Rows of codes that two lanes share, too few for tensor cores.
    Case(3, 2, 32, 32, tokens=2, state_dtype="int16", live=2),
    Case(3, 2, 64, 64, state_dtype="float16", window=1, room=1, without="dt_bias", work=(1, 0)),
    Case(4, 4, 64, 128, 2, tokens=4, window=16, room=4, forced=True, work=(1, 0), **SERVED),
    Case(
        3,
        2,
        64,
        64,
        tokens=2,
        state_dtype="float32",
        window=16,
        room=2,
        live=15,
        lies="fused",
        without="D",
        work=(1, 0),
    ),
    Case(3, 2, 128, 128, tokens=3, state_dtype="int8", live=5, window=8, room=3, keep=True, null_slot=0, work=(1, 0)),
    Case(
        3, 2, 64, 64, tokens=4, state_dtype="int16", window=5, room=4, without="z dt_bias", softplus=False, work=(1, 0)
    ),
    # Several of them a warp.
    Case(5, 4, 64, 128, 2, window=16, work=(2, 1)),
    Case(4, 4, 128, 64, 1, window=16, live=13, forced=True, work=(4, 2), lies="fused", **SERVED),
    Case(5, 6, 64, 128, 2, state_dtype="int8", window=16, forced=True, work=(3, 1), pool="slot_strided"),
    Case(3, 4, 64, 64, 2, state_dtype="float32", window=7, live=7, work=(2, 1), keep=True, null_slot=0),
    Case(4, 4, 64, 128, 2, tokens=4, window=16, room=4, forced=True, work=(2, 1), state_dtype="int8", **SERVED),
    Case(3, 4, 64, 64, 2, tokens=3, window=9, room=3, work=(2, 3), without="D"),
    Case(36, 2, 64, 64, window=2, forced=True, work=(2, 1), null_slot=3, index="int64"),
    # More warps than heads that flush: parts of heads.
    Case(5, 4, 64, 128, 2, state_dtype="int8", window=16, live=16, work=(2, 20), **SERVED),
    Case(5, 4, 64, 64, 2, state_dtype="float8_e4m3fn", window=5, forced=True, work=(2, 3)),
    Case(4, 2, 128, 128, state_dtype="float32", window=3, live=3, work=(1, 9), lies="fused"),
    Case(4, 4, 64, 64, 2, window=16, live=16, work=(4, 8), without="D"),
    # Several tokens.
    Case(6, 2, 6, 128, tokens=2),
    Case(6, 4, 20, 128, 2, tokens=5, window=8, room=5, dtype="float32", forced=True, **SERVED),
    Case(4, 2, 9, 64, tokens=16, window=17, room=16, state_dtype="float32", lies="fused"),
    Case(4, 2, 9, 32, tokens=3, window=32, room=9, live=30, fresh=True, index="mixed", dtypes="dt"),
    Case(4, 2, 9, 32, tokens=3, room=3, live=1, softplus=False, without="all"),
    Case("off1+3+1+0+2+off2", 2, 6, 128, 2, room=3),
    Case("2+5+1+3+1", 2, 37, 128, room=3, keep=True, fresh=True, state_dtype="float32", **SERVED),
    Case("off3", 2, 6, 128),
    Case("0x0+off3", 2, 6, 128, slots=None),
    # Tokens that go to the state at once.
    Case(5, 4, 8, 128, 2, fold=True),
    Case(7, 2, 20, 128, fold=True, fresh=True, keep=True, null_slot=0, pool="slot_strided", **SERVED),
    Case(5, 2, 9, 64, dtype="float32", fold=True, window=32, live=32, tokens=1),
    Case(3, 2, 48, 16, state_dtype="float32", fold=True, force="rows=2", lies="fused"),
    Case(3, 2, 48, 128, fold=True, force="rows=8", dtype="float16", dtypes="z B C"),
    Case(3, 2, 48, 128, fold=True, force="rows=16", dtype="float32"),
    Case(3, 2, 40, 128, fold=True, force="rows=4"),
    Case(3, 2, 9, 32, fold=True),
    Case(3, 2, 37, 100, fold=True, force="rows=4"),
    Case(3, 2, 64, 16, fold=True, lies="fused", A_dtype=""),
    Case(3, 2, 64, 32, fold=True, state_dtype="float32", window=5, **SERVED),
    Case(3, 2, 64, 32, fold=True, pool="offset"),
    Case(3, 2, 64, 16, fold=True, pool="offset_by_2"),
    Case(5, 2, 64, 64, fold=True, dtype="float32", window=32, live=32),
    Case(3, 2, 9, 16, fold=True, pool="transposed"),
    Case(3, 2, 37, 128, fold=True, force="rows=8", seed=5),
    Case(3, 2, 37, 128, fold=True, force="rows=16", dtype="float32", fresh=True),
    Case(3, 2, 37, 16, fold=True, force="rows=2", dtype="float32", state_dtype="bfloat16", seed=5),
    Case(3, 2, 20, 64, fold=True, dtype="float16", A_dtype="", fresh=True),
    Case(5, 2, 37, 128, state_dtype="int8", fold=True, force="rows=8 few=0", **SERVED),
    Case(3, 2, 70, 128, state_dtype="int16", fold=True, force="rows=8 few=0", lies="fused", window=16, live=16),
    # The same of codes of few sequences.
    Case(5, 2, 37, 128, 2, state_dtype="int8", fold=True, **SERVED),
    Case(4, 2, 70, 128, state_dtype="int16", fold=True, force="rows=4", lies="fused", window=16, live=16),
    Case(
        5,
        4,
        24,
        128,
        2,
        state_dtype="float8_e4m3fn",
        fold=True,
        dtype="float16",
        live=0,
        keep=True,
        null_slot=0,
        force="rows=4",
    ),
    Case(3, 2, 48, 128, state_dtype="int16", fold=True, force="rows=2", committed=True, without="all", dtype="float16"),
    Case(3, 2, 64, 128, state_dtype="int8", fold=True, force="rows=4", live=0, committed=True, A_dtype=""),
    Case(6, 2, 40, 128, state_dtype="int8", fold=True, pool="slot_strided", window=32, room=3, **SERVED),
    Case(3, 2, 9, 128, state_dtype="int16", fold=True, softplus=False, dtype="float16", A_dtype=""),
    Case(5, 2, 37, 256, 2, state_dtype="int8", fold=True, force="rows=2", **SERVED),
    Case(3, 2, 40, 256, state_dtype="int16", fold=True, force="rows=4", lies="fused", window=16, live=16),
    Case(4, 2, 20, 64, state_dtype="int16", fold=True, committed=True, pool="slot_strided"),
    # The same where some rings or all are empty.
    Case(5, 4, 8, 128, 2, fold=True, committed=True),
    Case(3, 2, 10, 128, fold=True, live=0),
    Case(7, 2, 20, 128, fold=True, live=0, committed=True, keep=True, null_slot=0, pool="slot_strided", **SERVED),
    Case(3, 2, 40, 128, fold=True, live=0, committed=True, force="rows=4"),
    Case(3, 2, 37, 100, fold=True, live=0, committed=True, force="rows=4"),
    Case(3, 2, 48, 128, fold=True, live=0, committed=True, force="rows=8", dtype="float16", dtypes="z B C"),
    Case(3, 2, 48, 16, fold=True, committed=True, force="rows=2", state_dtype="float32", lies="fused"),
    Case(3, 2, 9, 16, fold=True, live=0, committed=True, pool="transposed"),
    Case(3, 1, 3, 300, fold=True, live=0, committed=True, dtype="float32"),
    Case(
        3,
        2,
        40,
        128,
        fold=True,
        live=0,
        committed=True,
        dtype="float32",
        state_dtype="bfloat16",
        force="rows=4 crowded=1",
    ),
    Case(5, 2, 24, 128, fold=True, dtype="float32", state_dtype="float16", force="rows=4 crowded=1", **SERVED),
    Case(4, 2, 32, 128, fold=True, dtype="float16", state_dtype="float32", live=0, force="rows=4"),
    Case(4, 2, 32, 128, state_dtype="float8_e4m3fn", dtype="float32", fold=True, force="heads=1", **SERVED),
    # The same of 8-bit codes by warps that walk over heads.
    Case(6, 4, 64, 128, 2, state_dtype="int8", fold=True, force="heads=1", lies="fused", **SERVED),
    Case(5, 3, 32, 128, state_dtype="int8", fold=True, force="heads=1", pool="slot_strided", window=16, live=16),
    Case(4, 4, 32, 64, state_dtype="float8_e4m3fn", dtype="float32", fold=True, force="heads=1", live=0, without="all"),
    Case(5, 2, 32, 256, 2, state_dtype="float8_e4m3fn", dtype="float16", fold=True, force="heads=1", keep=True),
    Case(3, 2, 64, 256, state_dtype="int8", A_dtype="", fold=True, force="heads=1", null_slot=0, window=32, room=3),
    Case(2, 2, 32, 128, state_dtype="int8", dtype="float16", A_dtype="", fold=True, force="heads=1"),
    # Rounding, and quantised states.
    Case(5, 2, 6, 128, seed=2**64 - 1),
    Case(5, 2, 6, 128, dtype="float32", state_dtype="float16", tokens=2, seed="array", rounds=7),
    Case(5, 2, 6, 128, seed=5, fold=True, state_dtype="float16"),
    Case(5, 4, 8, 128, 2, state_dtype="int8"),
    Case(5, 2, 37, 128, state_dtype="int16", tokens=2, live=3, scale_axis=True, **SERVED),
    Case(5, 2, 8, 128, state_dtype="float8_e4m3fn", dtype="float32", fresh=True, window=16),
    Case(5, 2, 8, 128, state_dtype="int8", fold=True, seed=7, fresh=True),
    Case(3, 2, 9, 16, state_dtype="int16", fold=True, pool="transposed"),
    Case(3, 2, 9, 16, state_dtype="float16", fold=True, pool="sliced_by_2"),
    Case(3, 2, 9, 128, state_dtype="int8", pool="offset_by_2", seed="array"),
    # Every number of states.
    Case(3, 2, 5, 3, dtype="float32"),
    Case(3, 2, 3, 100, tokens=2),
    Case(3, 2, 3, 256, state_dtype="float32"),
    Case(3, 1, 3, 512, dtype="float16", A_dtype="", fold=True),
    Case(3, 1, 3, 300, dtype="float16", A_dtype=""),
    Case(3, 1, 3, 300, fold=True),
    Case(3, 2, 3, 256, fold=True),
    Case(3, 2, 5, 64, A_dtype="", fold=True),
    Case(3, 2, 5, 128, A_dtype="", state_dtype="int8", pool="offset_by_2", fold=True),
    Case(3, 2, 5, 64, dtype="float16", A_dtype="", state_dtype="int8", fold=True),
    # Nothing to compute.
    Case(0, 2, 3, 16),
    Case(2, 2, 0, 16),
    Case(2, 2, 3, 16, tokens=0),
    Case(0, 2, 3, 16, tokens=2),
)

_HYBRID: Any = {"heads": 128, "dim": 64, "d_state": 128, "groups": 8, "without": "z", "window": 16}

EDGE = tuple(
    dict.fromkeys(
        [
            *(
                Case(n, **{**_HYBRID, "dtype": a, "state_dtype": b, **more}, tokens=tokens, room=tokens or 1)
                for n, tokens, more in ((1, None, {"fold": True, "committed": True}), (2, None, {}), (3, 4, {}))
                for a, b in (("bfloat16", ""), ("bfloat16", "float32"), ("float32", ""), ("bfloat16", "int8"))
            ),
            *(
                Case(5, 2, dim, n, tokens=tokens, window=17, room=3)
                for dim in (1, 7, 64, 100)
                for n in (1, 5, 16, 64, 128, 257)
                for tokens in (None, 3)
            ),
            *(Case(33, 3, 20, 128, window=window, dtype="float32") for window in (1, 2, 5, 15, 16, 17, 31, 32)),
            *(Case(20, 2, 9, 64, window=16, room=n, tokens=n) for n in range(1, 17)),
            *(
                Case(3, 2, 32, n, tokens=tokens, state_dtype=a)
                for n in (16, 24, 32, 48, 64, 96, 128, 192, 256)
                for tokens in (None, 2)
                for a in ("", "float32", "int16", "int8", "float8_e4m3fn")
            ),
            # More sequences than share blocks, with one head a warp and with several.
            *(
                Case(n, m, 64, 64, 2, window=5, forced=True, state_dtype=a)
                for n, m in ((600, 2), (300, 8))
                for a in ("", "int8")
            ),
            *(Case("400x1+9+off5", 2, 8, 16, 2, window=9, room=9, odd=True, state_dtype=a) for a in ("", "int8")),
        ]
    )
)
