"""Calls of selective state updates: where arrays lie, what indices hold, inputs, and the call of the reference."""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np

import cuconv
from cuconv.runtime.dtypes import BY_NAME, DType
from cuconv.selective_state_update.reference import SelectiveStateUpdate as Call
from tests.support.batches import batch
from tests.support.layouts import BY_TOKEN, PARAMETERS, SLOTS
from tests.support.placement import Array, Placed, Placement, place

OUTPUTS = ("out",)
UPDATED = ("state", "intermediate_states_buffer")
BY_TOKENS = ("x", "dt", "B", "C", "z")
OPTIONAL = ("D", "z", "dt_bias")
INDICES = (
    *("state_batch_indices", "dst_state_batch_indices"),
    *("intermediate_state_indices", "num_accepted_tokens", "cu_seqlens"),
)
RANGES = {"A": (-1.0, 0.03), "dt": (-2.0, 2.0)}
LINEAR_RANGES = {"A": (-1.0, 0.03), "dt": (0.0, 1.0), "dt_bias": (0.0, 0.5)}
"""Ranges of the arguments that decide how states grow, with softplus and without."""

INDEX_DTYPES = {"int32": ("int32",), "int64": ("int64",), "mixed": ("int64", "int32")}
"""The dtypes that index arrays take in turn."""


@dataclass(frozen=True)
class Case:
    """One call."""

    batch: int | str  # sequences, or a batch of packed ones
    heads: int  # 0: without an axis of heads
    dim: int  # headdim
    d_state: int
    groups: int = 1
    tokens: int | None = None  # per sequence; None: one, without an axis of tokens
    dtype: str = "bfloat16"
    state_dtype: str = ""  # x's when empty
    A_dtype: str = "float32"  # x's when empty
    dtypes: str = ""  # which of dt, D and dt_bias are float32, or "float32" for all
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
    steps: str | None = None  # intermediate states by "slot" or by "row"
    odd: bool = False  # some indices lie outside the pool
    index: str = "int32"
    pad_slot_id: int = -1
    frozen: bool = False
    seed: int | str | None = None  # or "array"
    rounds: int = 10
    loud: float = 1.0  # factor on dt and z
    force: str = ""  # "rows=8 stream=0": how the kernel differs from the one planned, which is for larger calls

    @property
    def id(self) -> str:
        """The case in one word; what is left at its default is not named."""
        sizes = f"{self.batch}of{self.heads}x{self.dim}x{self.d_state}" + f"x{self.tokens}t" * (self.tokens is not None)
        dtypes = [self.dtype, *(f"{name}_{value}" for name, value in self._some_dtypes().items())]
        words = [sizes] + [f"g{self.groups}"] * (self.groups != 1) + dtypes
        words += [f"per head {self.per_head}".replace(" ", "_")] * bool(self.per_head)
        words += [f"without {self.without}".replace(" ", "_")] * bool(self.without)
        words += ["linear"] * (not self.softplus) + [self.lies] * (self.lies != "dense")
        words += [f"pool_{self.pool}"] * (self.pool != "dense") + [self.others] * (self.others != "dense")
        words += [f"spare{self.spare}"] * (self.spare != 2) + [f"slots_{self.slots}"] * (self.slots != "permuted")
        words += [f"to_{self.targets}"] * bool(self.targets) + [f"columns{self.columns}"] * bool(self.columns)
        words += ["accepted"] * self.accepted + [f"steps_by_{self.steps}"] * bool(self.steps) + ["odd"] * self.odd
        words += [self.index] * (self.index != "int32") + [f"pad{self.pad_slot_id}"] * (self.pad_slot_id != -1)
        words += ["frozen"] * self.frozen + [f"seed_{self.seed}"] * (self.seed is not None)
        words += [self.force.replace(" ", "_")] * bool(self.force)
        words += [f"rounds{self.rounds}"] * (self.rounds != 10) + [f"loud{self.loud:g}"] * (self.loud != 1)
        return "-".join(words)

    def _some_dtypes(self) -> dict[str, str]:
        named = {"state": self.state_dtype, "A": "" if self.A_dtype == "float32" else self.A_dtype or self.dtype}
        return {name: value for name, value in {**named, "dt": self.dtypes.replace(" ", "_")}.items() if value}

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
    def pool_slots(self) -> int:
        """Slots for the starts and targets of all sequences, and spare ones."""
        count = len(self.lengths)
        targets = {None: 0, "one": 1, "each": self.width}[self.targets]
        return self.spare + count * ((self.width if self.accepted else 1) + targets)

    def has(self, name: str) -> bool:
        """Whether an optional array is given."""
        return name not in (OPTIONAL if self.without == "all" else self.without.split())

    def options(self) -> dict[str, Any]:
        """The arguments that are not arrays."""
        seed = {} if self.seed is None or isinstance(self.seed, str) else {"rand_seed": self.seed}
        named = {"dt_softplus": self.softplus, "disable_state_update": self.frozen, "pad_slot_id": self.pad_slot_id}
        return {**named, **seed, "philox_rounds": self.rounds}


def shapes(case: Case) -> dict[str, tuple[int, ...]]:
    """The shapes of the arrays that a case may have, but for the indices."""
    if isinstance(case.batch, str):
        lead: tuple[int, ...] = (batch(case.batch).total,)
    else:
        lead = (case.batch,) if case.tokens is None else (case.batch, case.tokens)
    rows = (case.heads, case.dim) if case.heads else (case.dim,)
    grouped = (*lead, case.groups, case.d_state) if case.heads else (*lead, case.d_state)
    inner = (*rows, case.d_state)
    found = dict.fromkeys(("x", "dt", "z", "out"), (*lead, *rows)) | dict.fromkeys("BC", grouped)
    found |= {"A": inner, "D": rows, "dt_bias": rows, "state": (case.pool_slots, *inner)}
    rows_of_buffer = case.pool_slots if case.steps == "slot" else len(case.lengths) + 1
    return found | {"intermediate_states_buffer": (rows_of_buffer, case.width, *inner)}


def repeated(case: Case, name: str, rank: int) -> tuple[int, ...]:
    """The axes along which a parameter has stride 0."""
    per_head = ["A", "dt", "D", "dt_bias"] if case.per_head == "all" else case.per_head.split()
    if name == "A" and "A_n" in per_head:
        return (rank - 1,)
    if name not in per_head:
        return ()
    return (rank - 2, rank - 1) if name == "A" else (rank - 1,)


def dtypes(case: Case) -> dict[str, DType]:
    """The dtypes of the arrays that need not have that of x."""
    own = ["dt", "D", "dt_bias"] if case.dtypes == "float32" else case.dtypes.split()
    named = dict.fromkeys(UPDATED, case.state_dtype) | {"A": case.A_dtype} | dict.fromkeys(own, "float32")
    named |= dict(zip(INDICES, cycle(INDEX_DTYPES[case.index]), strict=False)) | {"rand_seed": "int64"}
    return {name: BY_NAME[dtype or case.dtype] for name, dtype in named.items()}


def way_to_lie(case: Case, name: str, rank: int) -> dict[str, Any]:
    """The options of `place` for an array."""
    if name in UPDATED:
        return SLOTS[case.pool](rank)
    if name in (*BY_TOKENS, *OUTPUTS):
        names = case.lies.split("+")
        return BY_TOKEN[names[(*BY_TOKENS, *OUTPUTS).index(name) % len(names)]](rank)
    return PARAMETERS[case.others](rank)


def placements(case: Case) -> dict[str, Placement]:
    """The placement of every array of the call."""
    known, of_shape, of_dtype = integers(case), shapes(case), dtypes(case)
    placed = {}
    for name in inspect.signature(cuconv.selective_state_update).parameters:
        shape = known[name].shape if name in known else of_shape.get(name)
        is_left_out = case.steps is None if name == "intermediate_states_buffer" else not case.has(name)
        if shape is not None and not is_left_out:
            axes, way = repeated(case, name, len(shape)), way_to_lie(case, name, len(shape))
            placed[name] = place(of_dtype.get(name, BY_NAME[case.dtype]), shape, repeated=axes, **way)
    return placed


def _random(case: Case, seed: int) -> np.random.Generator:
    return np.random.default_rng([seed, zlib.crc32(case.id.encode())])


def integers(case: Case, seed: int = 0) -> dict[str, Array]:
    """All index arrays and the seed; no slot is written twice, nor read by one sequence and written by another."""
    random, count, found = _random(case, seed), len(case.lengths), {}
    slots = np.arange(case.pool_slots)
    if case.slots is not None:
        slots = random.permutation(slots)
    starts, targets = np.split(slots, [count * (case.width if case.accepted else 1)])
    starts = starts.reshape(count, case.width) if case.accepted else starts
    if case.slots == "shared":
        starts = starts[np.arange(count) // 2]
    if case.slots is not None:
        found["state_batch_indices"] = starts
    if case.targets == "one":
        stays = random.uniform(size=count) < (0.0 if case.slots == "shared" else 0.3)
        found["dst_state_batch_indices"] = np.where(stays, starts, targets[:count])
    if case.targets == "each":
        found["dst_state_batch_indices"] = targets[: count * case.width].reshape(count, case.width)
    if case.steps == "row":
        found["intermediate_state_indices"] = random.permutation(count + 1)[:count]
    if case.accepted:
        found["num_accepted_tokens"] = random.integers(0, case.width + 1, count)
    if case.odd:
        found = {name: _with_invalid(case, name, number, found[name]) for number, name in enumerate(found)}
    if isinstance(case.batch, str):
        found["cu_seqlens"] = np.array(batch(case.batch).bounds)
    if case.seed == "array":
        found["rand_seed"] = random.integers(-(2**63), 2**63 - 1, 1)
    return found


def _with_invalid(case: Case, name: str, number: int, values: Array) -> Array:
    """The indices, some of them replaced by ones outside the pool or the buffer, at other places in every array."""
    end = len(case.lengths) + 1 if name == "intermediate_state_indices" else case.pool_slots
    strange = [end, -2, end + 7, -(2**31), 2**31 - 1]
    strange += [2**40, -(2**40)] * (case.index == "int64")
    if name.endswith("state_batch_indices"):
        strange.insert(0, case.pad_slot_id)
    if name == "num_accepted_tokens":
        strange = [case.width + 1, -1, 2**31 - 1, -(2**31)]
    flat = values.copy().reshape(-1)
    places = slice(1 + number, None, 4)
    flat[places] = np.resize(strange, len(flat[places]))
    return flat.reshape(values.shape)


def place_inputs(case: Case, seed: int = 0) -> dict[str, Placed]:
    """The arrays that are read, with their memory."""
    return fill(case, {name: lies for name, lies in placements(case).items() if name not in OUTPUTS}, seed)


def fill(case: Case, placed: Mapping[str, Placement], seed: int = 0) -> dict[str, Placed]:
    """Values from -1 to 1, but steps and decays such that states grow slowly.

    States that no sequence starts from, padding, and the tokens of sequences without a slot are NaN.
    """
    random, known, found = _random(case, seed), integers(case, seed), {}
    ranges = RANGES if case.softplus else LINEAR_RANGES
    for name, lies in placed.items():
        low, high = ranges.get(name, (-1.0, 1.0))
        loud = case.loud if name in ("dt", "z") else 1.0
        values = known[name] if name in known else random.uniform(low * loud, high * loud, lies.shape)
        found[name] = Placed(lies, None if name == "intermediate_states_buffer" else values)
    call = reference_call(case, {name: each.array for name, each in found.items()})
    is_read = np.zeros(case.pool_slots, bool)
    is_computed = np.zeros(found["x"].array.shape[: -2 if case.heads else -1], bool)
    for sequence, places in enumerate(call.places()):
        source = call.source(sequence)
        if source is not None:
            is_read[source] |= len(places) > 0
            for place_of_token in places:
                is_computed[place_of_token] = True
    found["state"].array[~is_read] = np.nan
    for name in BY_TOKENS:
        if name in found:
            found[name].array[~is_computed] = np.nan
    return found


def inputs(case: Case, seed: int = 0) -> dict[str, Array]:
    """The arrays that are read."""
    return {name: placed.array for name, placed in place_inputs(case, seed).items()}


def arguments(case: Case, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """All arguments, by name."""
    return {**arrays, **case.options()}


def reference_call(case: Case, arrays: Mapping[str, Array]) -> Call:
    """The call of the oracle."""
    return Call(**arguments(case, {name: arrays[name] for name in arrays if name not in OUTPUTS}))
