"""selective_state_update: steps of state space models, with their states in a pool."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any
from unittest import mock

import numpy as np

from cuconv.runtime.dtypes import BY_NAME, CODES, DType
from cuconv.runtime.plan import Plan
from cuconv.runtime.rounding import LARGEST
from cuconv.selective_state_update import plan as planner
from cuconv.selective_state_update import reference, update
from cuconv.selective_state_update.kernels import SelectiveStateUpdateDecays
from cuconv.selective_state_update.reference import SelectiveStateUpdate
from tests import cases
from tests.support.batches import batch
from tests.support.compare import ROUNDING, Between, Kept
from tests.support.entries import replaced
from tests.support.layouts import BY_TOKEN, PARAMETERS, SLOTS
from tests.support.placement import Array, Placement, place

BY_TOKENS = ("x", "dt", "B", "C", "z")
OPTIONAL = ("D", "z", "dt_bias")
INDICES = (
    *("state_batch_indices", "dst_state_batch_indices"),
    *("intermediate_state_indices", "num_accepted_tokens", "cu_seqlens", "state_column", "parents"),
)
RANGES = {"A": (-1.0, 0.03), "dt": (-2.0, 2.0)}
LINEAR_RANGES = {"A": (-1.0, 0.03), "dt": (0.0, 1.0), "dt_bias": (0.0, 0.5)}
"""Ranges of the arguments that decide how states grow, with softplus and without."""

INDEX_DTYPES = {"int32": ("int32",), "int64": ("int64",), "mixed": ("int64", "int32")}
"""The dtypes that index arrays take in turn."""


@dataclass(frozen=True)
class Case(cases.Case):
    """One call."""

    FUNCTION = "selective_state_update"
    UPDATED = reference.UPDATED

    batch: int | str  # sequences, or a batch of packed ones
    heads: int  # 0: without an axis of heads
    dim: int  # headdim
    d_state: int
    groups: int = 1
    tokens: int | None = None  # per sequence; None: one, without an axis of tokens
    dtype: str = "bfloat16"
    state_dtype: str = ""  # x's when empty
    scale_axis: bool = False  # scales have an axis of 1 behind
    A_dtype: str = "float32"  # x's when empty
    dtypes: str = ""  # which of dt, D, dt_bias, z, B and C are float32, or "float32" for the first three
    per_head: str = ""  # which of A, dt, D, dt_bias have one value per head, "A_n" one per row; "all" of these
    without: str = ""  # which of D, z, dt_bias are left out; "all" of these
    softplus: bool = True
    lies: str = "dense"  # arrays by tokens and out; several are taken in turn
    pool: str = "dense"
    others: str = "dense"  # A, D, dt_bias and the indices; or "strided" or "backward"
    spare: int = 2  # slots of no sequence
    slots: str | None = "permuted"  # or "shared": two sequences start from one slot, which is not written
    targets: str | None = None  # "one" per sequence or per "each" token
    columns: int = 0  # of index arrays of two axes; 0: as many as the longest sequence has tokens
    accepted: bool = False
    column: str | None = None  # of two columns of slots the "first" is used, or one "chosen" by state_column
    fresh: bool = False  # some sequences start from zeros
    tree: bool = False
    beyond: int = 0  # rows of index arrays behind those of the sequences
    steps: str | None = None  # intermediate states by "slot" or by "row"
    odd: bool = False  # some indices lie outside the pool
    index: str = "int32"
    pad_slot_id: int = -1
    null_slot: int | None = None
    keep: bool = False  # padding keeps what out holds
    frozen: bool = False
    seed: int | str | None = None  # or "array"
    rounds: int = 10
    loud: float = 1.0  # factor on dt and z
    force: str = ""  # "rows=8 stream=0": how the kernel differs from the one planned, which is for larger calls

    @property
    def lengths(self) -> list[int]:
        """The tokens of every sequence."""
        if isinstance(self.batch, str):
            return [int(n) for n in np.diff(batch(self.batch).bounds)]
        return [1 if self.tokens is None else self.tokens] * self.batch

    @property
    def width(self) -> int:
        """The columns of index arrays that have two axes, and the steps of the buffer."""
        if isinstance(self.batch, str):
            return self.columns or max([1, *self.lengths])
        return max(self.columns, 1, self.tokens or 0)

    @property
    def start_columns(self) -> int:
        """The slots that a sequence may start from."""
        return self.width if self.accepted else 1 + (self.column is not None)

    @property
    def pool_slots(self) -> int:
        """Slots for the starts and targets of all sequences, and spare ones."""
        count = len(self.lengths)
        targets = {None: 0, "one": 1, "each": self.width}[self.targets]
        return self.spare + count * (self.start_columns + targets)

    @property
    def quantised(self) -> bool:
        """Whether states are codes."""
        return BY_NAME[self.state_dtype or self.dtype] in CODES

    def has(self, name: str) -> bool:
        """Whether an optional array is given."""
        return name not in (OPTIONAL if self.without == "all" else self.without.split())

    def options(self) -> dict[str, Any]:
        seed = {} if self.seed is None or isinstance(self.seed, str) else {"rand_seed": self.seed}
        named = {"dt_softplus": self.softplus, "disable_state_update": self.frozen, "pad_slot_id": self.pad_slot_id}
        padding = {"null_slot": self.null_slot, "pad_output": "keep" if self.keep else "zero"}
        return {**named, **padding, **seed, "philox_rounds": self.rounds}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the arrays that a case may have, but for the indices."""
        if isinstance(self.batch, str):
            lead: tuple[int, ...] = (batch(self.batch).total,)
        else:
            lead = (self.batch,) if self.tokens is None else (self.batch, self.tokens)
        rows = (self.heads, self.dim) if self.heads else (self.dim,)
        grouped = (*lead, self.groups, self.d_state) if self.heads else (*lead, self.d_state)
        inner = (*rows, self.d_state)
        found = dict.fromkeys(("x", "dt", "z", "out"), (*lead, *rows)) | dict.fromkeys("BC", grouped)
        found |= {"A": inner, "D": rows, "dt_bias": rows, "state": (self.pool_slots, *inner)}
        rows_of_buffer = self.pool_slots if self.steps == "slot" else len(self.lengths) + 1
        found |= {"intermediate_states_buffer": (rows_of_buffer, self.width, *inner)}
        if self.quantised:
            for name, of in (("state_scale", "state"), ("intermediate_state_scales", "intermediate_states_buffer")):
                found[name] = (*found[of][:-1], *[1] * self.scale_axis)
        return found

    def repeated(self, name: str, rank: int) -> tuple[int, ...]:
        """The axes along which a parameter has stride 0."""
        per_head = ["A", "dt", "D", "dt_bias"] if self.per_head == "all" else self.per_head.split()
        if name == "A" and "A_n" in per_head:
            return (rank - 1,)
        if name not in per_head:
            return ()
        return (rank - 2, rank - 1) if name == "A" else (rank - 1,)

    def own_dtypes(self) -> dict[str, DType]:
        """The dtypes of the arrays that need not have that of x."""
        own = ["dt", "D", "dt_bias"] if self.dtypes == "float32" else self.dtypes.split()
        states, scales = reference.UPDATED[:2], reference.UPDATED[2:]
        named = dict.fromkeys(states, self.state_dtype) | dict.fromkeys(scales, "float32")
        named |= {"A": self.A_dtype} | dict.fromkeys(own, "float32")
        named |= dict(zip(INDICES, cycle(INDEX_DTYPES[self.index]), strict=False))
        named |= {"rand_seed": "int64", "has_initial_state": "bool"}
        return {name: BY_NAME[dtype or self.dtype] for name, dtype in named.items()}

    def way_to_lie(self, name: str, rank: int) -> dict[str, Any]:
        """The options of `place` for an array."""
        if name in self.UPDATED:
            return SLOTS[self.pool](rank)
        if name in (*BY_TOKENS, *self.OUTPUTS):
            names = self.lies.split("+")
            return BY_TOKEN[names[(*BY_TOKENS, *self.OUTPUTS).index(name) % len(names)]](rank)
        return PARAMETERS[self.others](rank)

    def placements(self) -> dict[str, Placement]:
        known, of_shape, of_dtype = self.integers(), self.shapes(), self.own_dtypes()
        placed = {}
        for name in inspect.signature(self.function).parameters:
            shape = known[name].shape if name in known else of_shape.get(name)
            of_buffer = ("intermediate_states_buffer", "intermediate_state_scales")
            is_left_out = self.steps is None if name in of_buffer else not self.has(name)
            if shape is not None and not is_left_out:
                axes, way = self.repeated(name, len(shape)), self.way_to_lie(name, len(shape))
                placed[name] = place(of_dtype.get(name, BY_NAME[self.dtype]), shape, repeated=axes, **way)
        return placed

    def integers(self, seed: int = 0) -> dict[str, Array]:
        """Index arrays and the seed; no slot is written twice, nor read by one sequence and written by another."""
        random, count, found = self.random(seed), len(self.lengths), {}
        slots = np.arange(self.pool_slots)
        if self.slots is not None:
            slots = random.permutation(slots)
        starts, targets = np.split(slots, [count * self.start_columns])
        starts = starts.reshape(count, self.start_columns) if self.accepted or self.column is not None else starts
        if self.slots == "shared":
            starts = starts[np.arange(count) // 2]
        if self.slots is not None:
            found["state_batch_indices"] = starts
        first = starts.reshape(count, self.start_columns)[:, 0] if self.slots != "shared" else starts
        if self.targets == "one":
            stays = random.uniform(size=count) < (0.0 if self.slots == "shared" else 0.3)
            found["dst_state_batch_indices"] = np.where(stays, first, targets[:count])
        if self.targets == "each":
            found["dst_state_batch_indices"] = targets[: count * self.width].reshape(count, self.width)
        if self.steps == "row":
            found["intermediate_state_indices"] = random.permutation(count + 1)[:count]
        if self.accepted:
            found["num_accepted_tokens"] = random.integers(0, self.width + 1, count)
        if self.column == "chosen":
            found["state_column"] = random.integers(0, self.start_columns, count)
        if self.tree:
            number = np.arange(self.width)
            found["parents"] = random.integers(-1, np.maximum(number, 1), (count, self.width))
            if self.odd:
                # No token follows itself, nor a later one.
                found["parents"][:2] = number, number + 1
        if self.odd:
            found = {name: self._with_invalid(name, number, found[name]) for number, name in enumerate(found)}
        if self.fresh:
            found["has_initial_state"] = np.arange(count) % 2 == 1
        if self.beyond:
            found = {
                name: np.concatenate([values, np.resize(values, (self.beyond, *values.shape[1:]))])
                for name, values in found.items()
            }
        if isinstance(self.batch, str):
            found["cu_seqlens"] = np.array(batch(self.batch).bounds)
        if self.seed == "array":
            found["rand_seed"] = random.integers(-(2**63), 2**63 - 1, 1)
        return found

    def _with_invalid(self, name: str, number: int, values: Array) -> Array:
        """The indices, some of them replaced by ones outside the pool or the buffer, at other places in every array."""
        end = len(self.lengths) + 1 if name == "intermediate_state_indices" else self.pool_slots
        strange = [end, -2, end + 7, -(2**31), 2**31 - 1]
        strange += [2**40, -(2**40)] * (self.index == "int64")
        if name.endswith("state_batch_indices"):
            strange.insert(0, self.pad_slot_id if self.null_slot is None else self.null_slot)
        if name == "state_column":
            strange[0] = self.start_columns
        if name == "parents":
            strange[0] = self.width
        if name == "num_accepted_tokens":
            strange = [self.width + 1, -1, 2**31 - 1, -(2**31)]
        flat = values.copy().reshape(-1)
        places = slice(1 + number, None, 4)
        flat[places] = np.resize(strange, len(flat[places]))
        return flat.reshape(values.shape)

    def range(self, name: str) -> tuple[float, float]:
        """A range with which states grow slowly."""
        low, high = (RANGES if self.softplus else LINEAR_RANGES).get(name, (-1.0, 1.0))
        if self.quantised and name in reference.UPDATED:
            largest = LARGEST[self.own_dtypes()["state"].numpy]
            low, high = (0.1 / largest, 1.0 / largest) if name.startswith("state_s") else (-largest, largest)
        loud = self.loud if name in ("dt", "z") else 1.0
        return low * loud, high * loud

    def spoil(self, arrays: dict[str, Array]) -> None:
        """Make states that no sequence starts from, padding, and tokens of sequences without a slot NaN."""
        for name in ("intermediate_states_buffer", "intermediate_state_scales"):
            if name in arrays:
                arrays[name][...] = _nan(arrays[name])
        call = self.reference_call(arrays)
        is_read = np.zeros(self.pool_slots, bool)
        for sequence, source, places in call.live():
            is_read[source] |= len(places) > 0 and (not self.fresh or bool(arrays["has_initial_state"][sequence]))
        for name in ("state", "state_scale"):
            if name in arrays:
                arrays[name][~is_read] = _nan(arrays[name])
        for name in BY_TOKENS:
            if name in arrays:
                arrays[name][~call.is_computed] = np.nan

    def reference_call(self, arrays: Mapping[str, Array]) -> SelectiveStateUpdate:
        """The call of the oracle."""
        return SelectiveStateUpdate(**self.arguments(arrays))

    def oracle(self, arrays: dict[str, Array]) -> dict[str, Any]:
        """The result in float64; bounds of the states, which are rounded with the call's random numbers."""
        call = self.reference_call(arrays)
        out = np.zeros(arrays["x"].shape)
        updated = {name: Between(arrays[name].copy(), arrays[name].copy()) for name in self.UPDATED if name in arrays}
        for token, error in call.errors():
            out[token.place] = token.out(token.after).reshape(out[token.place].shape)
            of_buffer = None if token.row is None else (token.row, token.number)
            for at, names in ((token.slot, ("state", "state_scale")), (of_buffer, self.UPDATED[1::2])):
                if at is None:
                    continue
                for number, ends in enumerate(zip(*call.bounds(token, error), strict=True)):
                    if names[number] in updated:
                        for bound, end in zip(updated[names[number]], ends, strict=True):
                            bound[at] = end.reshape(bound[at].shape)
        if not self.keep:
            return {"out": out, **updated}
        out[~call.is_computed] = np.nan
        return {"out": Kept(out), **updated}

    def running(self) -> AbstractContextManager[Any]:
        """The context for calls of a case: in it a kernel is planned that larger calls have, if the case forces one."""
        if not self.force:
            return nullcontext()
        words = (word.partition("=") for word in self.force.split())
        counts = ("rows", "sequences")
        changes: Any = {name: int(value) if name in counts else bool(int(value)) for name, _, value in words}
        index32, choose, fits = changes.pop("index32", True), planner.choose, planner._fits_index32
        heads = changes.pop("heads", False)
        walked, most = planner.WALKED, planner.MAX_HEADS
        if "sequences" in changes:
            changes["block"] = SelectiveStateUpdateDecays.BLOCKS[changes["sequences"] > 1]
        few = 0 if "rows" in changes or "stream" in changes else planner.FEW_THREADS
        if heads:
            walked, most = {d_state: dict.fromkeys(least, 0) for d_state, least in walked.items()}, 2

        def plan(o: planner.Operands) -> Plan:
            # Which kernel there is follows from the offsets.
            with (
                mock.patch.object(planner, "_fits_index32", lambda o: index32 and fits(o)),
                mock.patch.object(planner, "WALKED", walked),
                mock.patch.object(planner, "MAX_HEADS", most),
                mock.patch.object(planner, "FEW_THREADS", few),
                mock.patch.object(planner, "choose", lambda o: replace(choose(o), **changes)),
            ):
                return planner.plan(o)

        operation = copy(update._update)
        # Without what is remembered of calls with the kernel that is planned otherwise.
        operation.plan, operation._remembered = plan, operation._prepare  # type: ignore[assignment]
        operation.recent = operation.known = ()
        return replaced(update, "_update", operation)


def _nan(array: Array) -> Any:
    """What an array holds where nothing may be read: integers have no NaN, and any of them would do."""
    return np.nan if array.dtype.kind not in "iu" else -1


PER_HEAD: Any = {"per_head": "all"}
SERVED: Any = {"odd": True, "index": "int64"}

UNIT = (
    # One token, without heads and a decay for every element, as in Mamba.
    Case(3, 0, 40, 16, dtype="float32"),
    Case(2, 0, 9, 16, dtype="float32", without="all", softplus=False, slots=None),
    Case(7, 0, 20, 16, state_dtype="float32", lies="fused", **SERVED),
    Case(2, 0, 6, 4, dtype="float16", A_dtype="", without="D", pool="slots_innermost", loud=30),
    Case(2, 0, 6, 8, lies="transposed", without="dt_bias", pool="transposed"),
    Case(3, 0, 40, 8, dtype="float32"),
    Case(5, 0, 70, 16, dtype="float16", slots=None, force="sequences=2"),
    Case(5, 0, 70, 16, lies="fused", force="sequences=2", **SERVED),
    Case(7, 0, 40, 16, state_dtype="float32", dtypes="z B C dt", null_slot=0, keep=True, **SERVED),
    Case(3, 0, 40, 16, dtype="float16", A_dtype=""),
    Case(3, 0, 40, 16, A_dtype=""),
    Case(2, 0, 600, 16, A_dtype=""),
    # With heads and one decay per head, as in Mamba-2.
    Case(3, 4, 8, 128, 2, without="z", **PER_HEAD),
    Case(7, 2, 20, 128, dtypes="float32", pool="slot_strided", **PER_HEAD, **SERVED),
    Case(7, 2, 20, 128, dtypes="float32", pool="sliced", **PER_HEAD, **SERVED),
    Case(5, 4, 9, 16, 2, **PER_HEAD, **SERVED),
    Case(2, 6, 7, 64, 3, dtype="float32", slots=None, dtypes="dt", A_dtype="", **PER_HEAD),
    Case(2, 5, 3, 32, state_dtype="float32", slots=None, A_dtype="", **PER_HEAD),
    Case(2, 3, 5, 16, dtype="float16", A_dtype="", **PER_HEAD),
    Case(3, 2, 9, 256, dtype="float16", state_dtype="bfloat16", null_slot=0, keep=True, **PER_HEAD, **SERVED),
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
    # Whole rows of few sequences.
    Case(5, 2, 64, 128, force="rows=4 whole=1", lies="fused", **PER_HEAD, **SERVED),
    Case(3, 2, 32, 128, 2, dtype="float32", force="rows=4 whole=1", without="z", **PER_HEAD, **SERVED),
    Case(2, 3, 64, 128, state_dtype="float16", force="rows=4 whole=1", slots=None, dtypes="dt D", **PER_HEAD),
    Case(3, 2, 16, 64, dtype="float16", state_dtype="float32", force="rows=4 whole=1", keep=True, **PER_HEAD, **SERVED),
    Case(3, 2, 64, 32, dtype="float32", state_dtype="bfloat16", force="rows=4 whole=1", A_dtype="", **PER_HEAD),
    # Rows of 96 states, which leave a fourth of the lanes without any, enough of them that a group has four.
    Case(16, 16, 32, 96, **PER_HEAD),
    # The same, with states that go to other slots.
    Case(5, 2, 64, 128, force="rows=4 whole=1 moved=1", targets="one", lies="fused", **PER_HEAD, **SERVED),
    Case(2, 3, 64, 128, state_dtype="float32", force="rows=4 whole=1 moved=1", targets="one", without="z", **PER_HEAD),
    Case(3, 2, 32, 64, 2, dtype="float32", force="rows=4 whole=1 moved=1", targets="one", **PER_HEAD, **SERVED),
    # Kernels that larger calls have.
    Case(2, 2, 37, 128, force="rows=2 index32=0", **PER_HEAD, **SERVED),
    Case(3, 2, 37, 128, force="rows=8 stream=0", lies="fused", **PER_HEAD, **SERVED),
    Case(3, 2, 37, 16, dtype="float32", force="rows=4", lies="fused", **SERVED),
    Case(2, 2, 37, 128, force="rows=2", targets="one", **PER_HEAD, **SERVED),
    Case(2, 2, 37, 128, force="rows=16 stream=0", **PER_HEAD),
    Case(2, 2, 37, 128, force="rows=16 stream=0 index32=0", **PER_HEAD),
    Case(2, 2, 37, 128, force="rows=8 stream=0 index32=0", **PER_HEAD),
    *(Case(2, 1, 5, d_state, force="index32=0", **PER_HEAD) for d_state in (2, 4, 8, 32)),
    Case(2, 1, 3, 96, dtype="float16", A_dtype="", tokens=2, targets="each", **PER_HEAD),
    Case(2, 1, 3, 256, A_dtype="", tokens=2, targets="each", **PER_HEAD),
    Case(2, 1, 3, 512, dtype="float32", tokens=2, targets="each", **PER_HEAD),
    Case(2, 2, 37, 16, dtype="float32", force="rows=4 stream=0 index32=0", pool="slot_strided"),
    Case(3, 2, 9, 128, tokens=3, targets="each", steps="row", force="rows=2 index32=0", lies="fused", **SERVED),
    Case(3, 2, 37, 128, tokens=3, targets="each", steps="row", force="rows=4 crowded=1", **PER_HEAD, **SERVED),
    Case(2, 2, 64, 64, dtype="float16", tokens=2, targets="one", force="rows=4 crowded=1", **PER_HEAD),
    Case(2, 2, 20, 256, tokens=2, targets="each", force="rows=4 crowded=1", **PER_HEAD, **SERVED),
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
    Case("2+3+0+1+off2", 0, 20, 16, state_dtype="float32", targets="one", **SERVED),
    Case(3, 0, 20, 16, dtype="float32", tokens=2, steps="row"),
    # Slots of several columns, states that are not there yet, padding that keeps what it has.
    Case(5, 2, 6, 128, column="first", beyond=3, **PER_HEAD, **SERVED),
    Case(5, 2, 6, 128, column="chosen", fresh=True, targets="one", beyond=3, **PER_HEAD),
    Case(5, 2, 6, 128, tokens=3, column="chosen", fresh=True, steps="slot", beyond=2, **PER_HEAD, **SERVED),
    Case(7, 2, 20, 128, dtypes="float32", null_slot=0, keep=True, pool="sliced", **PER_HEAD, **SERVED),
    Case("off1+3+1+0+2+off2", 2, 6, 128, 2, fresh=True, keep=True, odd=True, **PER_HEAD),
    # B, C and z of more bits than x.
    Case(3, 2, 6, 128, dtypes="B C", lies="fused_by_2+offset_by_2", **PER_HEAD),
    Case(2, 0, 9, 16, dtypes="z B C dt", lies="backward", tokens=2),
    Case(2, 0, 9, 16, dtype="float16", dtypes="z B C"),
    # Trees.
    Case(5, 2, 6, 128, tokens=6, tree=True, steps="row", beyond=1, **PER_HEAD, **SERVED),
    Case(3, 0, 9, 16, dtype="float32", tokens=5, columns=7, tree=True, fresh=True, steps="slot", slots=None),
    Case(3, 2, 5, 128, tokens=5, tree=True, seed=3, state_dtype="float16", steps="row", targets="one", frozen=True),
    # Stochastic rounding.
    Case(3, 2, 6, 128, seed=2**64 - 1, **PER_HEAD),
    Case(3, 2, 6, 128, dtype="float32", state_dtype="float16", tokens=3, seed="array", targets="each", **PER_HEAD),
    Case(5, 2, 5, 128, state_dtype="float16", tokens=2, seed=77, rounds=7, steps="row", loud=20, **SERVED),
    Case("2+3+0+1", 2, 5, 16, dtype="float16", state_dtype="bfloat16", seed="array", rounds=1, steps="slot"),
    # Quantised states: of 16 and 8 bits, in every way that states go, with every access.
    Case(3, 4, 8, 128, 2, state_dtype="int8", without="z", **PER_HEAD),
    Case(7, 2, 20, 128, state_dtype="int8", pool="slot_strided", scale_axis=True, **PER_HEAD, **SERVED),
    Case(3, 2, 37, 128, state_dtype="int8", force="rows=8 stream=0", lies="fused", **PER_HEAD, **SERVED),
    Case(3, 2, 37, 128, state_dtype="int16", force="rows=8 stream=0 index32=0", targets="one", **PER_HEAD),
    Case(5, 3, 37, 128, state_dtype="int16", force="rows=2 in_place=1", **PER_HEAD, **SERVED),
    Case(3, 2, 16, 128, state_dtype="int16", A_dtype="", force="rows=2 in_place=1", pool="slot_strided", **PER_HEAD),
    Case(3, 2, 9, 128, state_dtype="float8_e4m3fn", dtype="float32", **PER_HEAD),
    Case(3, 4, 64, 128, 2, state_dtype="int8", force="heads=1", lies="fused", targets="one", **PER_HEAD, **SERVED),
    Case(4, 3, 32, 128, state_dtype="int8", force="heads=1", pool="slot_strided", scale_axis=True, **PER_HEAD),
    Case(2, 4, 32, 64, state_dtype="int8", dtype="float32", force="heads=1", without="all", frozen=True, **PER_HEAD),
    Case(3, 2, 32, 256, 2, state_dtype="float8_e4m3fn", dtype="float16", force="heads=1", null_slot=0, **PER_HEAD),
    Case(3, 1, 48, 256, state_dtype="int8", dtype="float16", A_dtype="", force="heads=1", keep=True, **PER_HEAD),
    Case(3, 2, 32, 128, state_dtype="int8", A_dtype="", force="heads=1", **PER_HEAD),
    Case(2, 2, 37, 128, state_dtype="float8_e4m3fn", tokens=2, steps="row", force="rows=4", **PER_HEAD),
    Case(3, 0, 40, 16, state_dtype="int16", dtype="float32", null_slot=0),
    Case(2, 0, 9, 16, state_dtype="float8_e4m3fn", pool="transposed"),
    Case(3, 2, 6, 128, state_dtype="int8", pool="offset_by_2", frozen=True, **PER_HEAD),
    Case(3, 2, 6, 128, state_dtype="int8", pool="backward", others="backward", seed=5),
    Case(5, 2, 6, 128, state_dtype="int8", tokens=3, targets="one", steps="slot", **PER_HEAD, **SERVED),
    Case(5, 2, 6, 128, state_dtype="int16", tokens=4, targets="each", columns=6, steps="row", **PER_HEAD, **SERVED),
    Case(6, 2, 6, 128, state_dtype="float8_e4m3fn", tokens=3, accepted=True, steps="row", **PER_HEAD, **SERVED),
    Case("off1+3+1+0+2+off2", 2, 6, 128, 2, state_dtype="int8", fresh=True, keep=True, odd=True, **PER_HEAD),
    Case(5, 2, 6, 128, state_dtype="int8", column="chosen", fresh=True, targets="one", beyond=3, **PER_HEAD),
    Case(5, 2, 6, 128, state_dtype="int8", tokens=5, tree=True, steps="row", scale_axis=True, **PER_HEAD, **SERVED),
    Case(3, 0, 9, 16, state_dtype="int16", tokens=5, columns=7, tree=True, fresh=True, steps="slot", slots=None),
    Case(3, 2, 5, 128, state_dtype="int16", dtype="float16", tokens=2, seed=2**63 + 1, steps="row", **PER_HEAD),
    Case(3, 2, 5, 128, state_dtype="float8_e4m3fn", tokens=3, seed="array", targets="each", **PER_HEAD),
    Case("2+3+0+1", 2, 5, 100, state_dtype="int8", seed="array", rounds=1, steps="slot"),
    Case(2, 2, 5, 3, state_dtype="int8", **PER_HEAD),
    Case(2, 2, 3, 6, state_dtype="float8_e4m3fn", **PER_HEAD),
    Case(2, 1, 3, 512, state_dtype="int16"),
    Case(2, 2, 5, 2, state_dtype="int16"),
    Case(2, 2, 37, 128, state_dtype="int16", pool="offset_by_2", force="rows=16 stream=0", **PER_HEAD),
    Case(2, 2, 3, 32, dtype="float16", A_dtype="", state_dtype="int8", **PER_HEAD),
    Case(2, 2, 3, 64, A_dtype="", state_dtype="int16", **PER_HEAD),
    Case(2, 2, 3, 96, state_dtype="int8", **PER_HEAD),
    Case(2, 2, 3, 256, state_dtype="float8_e4m3fn", **PER_HEAD),
    Case(2, 2, 5, 4, state_dtype="int8"),
    Case(2, 2, 37, 128, state_dtype="int16", pool="offset_by_2", force="rows=16 stream=0", seed=3, **PER_HEAD),
    Case(2, 2, 5, 2, state_dtype="int16", tokens=2),
    Case(2, 2, 5, 3, state_dtype="int8", tokens=2, targets="each", **PER_HEAD),
    Case(2, 2, 3, 6, state_dtype="float8_e4m3fn", tokens=2, **PER_HEAD),
    Case(2, 2, 3, 32, dtype="float16", A_dtype="", state_dtype="int8", tokens=2, **PER_HEAD),
    Case(2, 2, 3, 64, A_dtype="", state_dtype="int16", tokens=2, steps="row", **PER_HEAD),
    Case(2, 2, 3, 96, state_dtype="int8", dtype="float32", tokens=2, **PER_HEAD),
    Case(2, 2, 3, 256, state_dtype="float8_e4m3fn", tokens=2, **PER_HEAD),
    Case(0, 2, 3, 16, state_dtype="int8", tokens=2),
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
    Case(0, 2, 3, 16, tokens=2),
    Case(0, 2, 0, 16, tokens=0, steps="slot"),
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
            *(
                Case(3, 2, 20, n, 2, state_dtype=str(b), per_head=a, seed=seed)
                for n in (1, 2, 5, 16, 20, 48, 64, 96, 128, 200, 256, 512)
                for b in CODES
                for a in ("", "all")
                for seed in (None, 9)
            ),
            *(
                Case(n, **{**_HYBRID, "dtype": a, "state_dtype": str(b)}, **more)
                for n, more in zip((1, 2, 2, 3), _STEPS, strict=True)
                for a, b in zip(("bfloat16", "float32", "float16"), CODES, strict=True)
            ),
            *(Case(3, 2, 20, 128, state_dtype="int8", pool=a, per_head="all") for a in SLOTS),
            # Whole rows, enough of them that a group of lanes has four.
            *(
                Case(16, 16, 32, n, dtype=a, state_dtype=b, targets=c, **PER_HEAD)
                for n in (16, 32, 48, 64, 80, 96, 128, 192, 256)
                for a, b in (("bfloat16", ""), ("float32", ""), ("bfloat16", "float32"), ("float32", "float16"))
                for c in (None, "one")
            ),
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
