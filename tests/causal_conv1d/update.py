"""What the case tables of decode steps share: where arrays lie, inputs, oracle and traffic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cuconv.causal_conv1d import reference
from cuconv.runtime.dtypes import BY_NAME, FLOAT32, DType
from tests.causal_conv1d.channels import OfChannels
from tests.support.layouts import HEADS, LAYOUTS, OTHERS, POOLS, WINDOWS
from tests.support.placement import Array, Placed, Placement, place

__all__ = [
    *("BIG", "UPDATED", "arguments", "inputs", "integers", "oracle", "place_inputs"),
    *("placements",),
]

INPUTS = (
    *("x", "conv_state", "weight", "bias", "cache_seqlens", "conv_state_indices", "num_accepted_tokens"),
    *("intermediate_conv_window", "intermediate_state_indices"),
)
"""The arrays of a call but its outputs."""
UPDATED = ("conv_state", "intermediate_conv_window")
BIG: Any = ()
LOUD = 500.0
"""The factor by which columns that are moved and not convolved are larger."""

COLUMNS: Any = {"pool": "columns"}
ROWS: Any = {"pool": "columns_and_one"}
ODD: Any = {"slots": "odd"}
RING: Any = {"mode": "circular"}
ACCEPTED: Any = {"mode": "accepted"}
"""What cases have in common."""


@dataclass(frozen=True)
class Step(OfChannels):
    """One call on the next tokens of every sequence."""

    channels: int | tuple[int, ...]  # dim, or the sizes of ranges
    batch: int
    seqlen: int | None = None  # None: x is (batch, dim)
    width: int = 4
    dtype: str = "bfloat16"
    weight_dtype: str = ""  # x's when empty
    state_dtype: str = ""  # x's when empty
    bias: str | None = "weight"  # or "float32"
    layout: str = "channel_last"
    out: str = ""  # as x when empty; several are taken in turn
    others: str = "dense"
    pool: str = "channels"
    spare: int = 2  # slots that no sequence has
    slots: str | None = "permuted"  # "odd": some numbers of slots, tokens and rows are none
    index: str = "int32"  # or "int64" or "mixed"
    mode: str = "shift"  # or "circular" or "accepted"
    window: str | None = None
    rows: bool = False  # whether windows have rows of their own
    frozen: bool = False
    pad_slot_id: int = -1
    activation: str | None = "silu"
    scale: float = 1.0  # of x and the states

    @property
    def id(self) -> str:
        """The case in one word; what is left at its default is not named."""
        words = [f"{self.channel_word}of{self.batch}", f"w{self.width}", self.dtype, self.layout, self.mode]
        words[1:1] = [f"t{self.seqlen}"] * (self.seqlen is not None)
        words += [f"to_{self.out}"] * bool(self.out) + [f"weight_{self.weight_dtype}"] * bool(self.weight_dtype)
        words += {None: ["no_bias"], "weight": [], "float32": ["bias_float32"]}[self.bias]
        words += [self.others] * (self.others != "dense") + [f"pool_{self.pool}"] * (self.pool != "channels")
        words += [f"state_{self.state_dtype}"] * bool(self.state_dtype)
        words += [f"slots_{self.slots}"] * (self.slots != "permuted") + [self.index] * (self.index != "int32")
        words += [f"window_{self.window}"] * bool(self.window) + ["rows"] * self.rows + ["frozen"] * self.frozen
        words += [f"pad{self.pad_slot_id}"] * (self.pad_slot_id != -1) + ["linear"] * (self.activation is None)
        words += [f"spare{self.spare}"] * (self.spare != 2) + [f"scale{self.scale:g}"] * (self.scale != 1)
        return "-".join(words + ["swish"] * (self.activation == "swish"))

    @property
    def halo(self) -> int:
        """The inputs before a token that its output depends on."""
        return self.width - 1

    @property
    def tokens(self) -> int:
        """How many every sequence has."""
        return 1 if self.seqlen is None else self.seqlen

    @property
    def state_len(self) -> int:
        """The columns of a state."""
        return self.halo + POOLS[self.pool][0] + (max(self.tokens - 1, 0) if self.mode == "accepted" else 0)

    def lay_output(self, heads: int, head_dim: int, way: str) -> Placement:
        if self.has_heads:
            return self.lay(self.input_t, (self.batch, self.tokens, heads, head_dim), HEADS[way], axis=1)
        return self.lay(self.input_t, (self.batch, heads * head_dim, self.tokens), LAYOUTS[way][1])

    def options(self) -> dict[str, Any]:
        """The arguments that are not arrays."""
        frozen = {"disable_state_update": True} if self.frozen else {}
        return {"activation": self.activation, "pad_slot_id": self.pad_slot_id, **frozen, **self.division()}

    def lay(self, dtype: DType, shape: tuple[int, ...], lies: dict[str, Any], axis: int = -1) -> Placement:
        """Place what is of x's rank: without the axis of tokens when x is."""
        placed = place(dtype, shape, **lies)
        if self.seqlen is not None:
            return placed
        kept = [i for i in range(len(shape)) if i != axis % len(shape)]
        shape, strides = (tuple(numbers[i] for i in kept) for numbers in (shape, placed.strides))
        return replace(placed, shape=shape, strides=strides)


def placements(case: Step) -> dict[str, Placement]:
    """Where every array of the call lies."""
    others, dim, batch = OTHERS[case.others], case.dim, case.batch
    weight_t = BY_NAME[case.weight_dtype or case.dtype]
    state_t = BY_NAME[case.state_dtype or case.dtype]
    index_t = {name: BY_NAME[case.index if case.index != "mixed" else wide] for name, wide in MIXED.items()}
    slots = batch + case.spare

    def other(name: str, dtype: DType, shape: tuple[int, ...]) -> Placement:
        return place(dtype, shape, **others.get(name, {}))

    placed = {
        "x": case.lay(case.input_t, (batch, dim, case.tokens), LAYOUTS[case.layout][0]),
        "conv_state": place(state_t, (slots, dim, case.state_len), **POOLS[case.pool][1]),
        "weight": other("weight", weight_t, (dim, case.width)),
    }
    if case.bias is not None:
        placed["bias"] = other("bias", weight_t if case.bias == "weight" else FLOAT32, (dim,))
    for name, is_given in (
        ("cache_seqlens", case.mode == "circular"),
        ("conv_state_indices", case.slots is not None),
        ("num_accepted_tokens", case.mode == "accepted"),
        ("intermediate_state_indices", case.rows),
    ):
        if is_given:
            placed[name] = other(name, index_t[name], (batch,))
    if case.window is not None:
        longer, lies = WINDOWS[case.window]
        rows = batch + 1 if case.rows else slots
        placed["intermediate_conv_window"] = place(state_t, (rows, case.tokens + longer, dim, case.halo), **lies)
    return placed | case.outputs()


MIXED = {
    "cache_seqlens": "int64",
    "conv_state_indices": "int32",
    "num_accepted_tokens": "int64",
    "intermediate_state_indices": "int32",
}


def integers(case: Step, seed: int = 0) -> dict[str, Array]:
    """Slots, where rings are, how many tokens were accepted, and rows of windows."""
    random, batch, odd, length = case.random(seed), case.batch, case.slots == "odd", case.state_len
    is_wide = {name: case.index == "int64" or (case.index == "mixed" and t == "int64") for name, t in MIXED.items()}
    found = {}

    def take(name: str, usual: Array, strange: list[int], wide: list[int]) -> None:
        """Use the usual numbers, but strange ones for some sequences, which are not those of another array."""
        chosen = np.resize(usual, batch).astype(np.int64)
        if strange:
            every = slice({"conv_state_indices": 1, "intermediate_state_indices": 3}.get(name, 2), None, 4)
            chosen[every] = np.resize(strange + wide * is_wide[name], len(chosen[every]))
        found[name] = chosen

    def beyond(count: int, unused: int) -> list[int]:
        return [unused, count, -2, count + 7, -(2**31), 2**31 - 1] if odd else []

    if case.slots is not None:
        slots = batch + case.spare
        take("conv_state_indices", random.permutation(slots), beyond(slots, case.pad_slot_id), [2**40, -(2**40)])
    if case.mode == "circular":
        around = [0, 1, length - 1, length, length + 1, 5 * length + 2, -1, -length, -2 * length - 1, 10**6 + 3]
        ends = [2**31 - 1, -(2**31)] + [2**63 - 1, -(2**63), 2**40 + 1] * is_wide["cache_seqlens"]
        take("cache_seqlens", random.permutation(around), random.permutation(ends).tolist(), [])
    if case.mode == "accepted":
        last = length - case.halo + 1
        beyond_last = [last + 1, 2**31 - 1, last + 9] if odd else []
        take("num_accepted_tokens", random.permutation(np.arange(-1, last + 1)), beyond_last, [2**63 - 1])
    if case.rows:
        # Here pad_slot_id is a row like any other.
        take("intermediate_state_indices", random.permutation(batch + 1), beyond(batch + 1, -1), [2**40])
    return found


def live(case: Step, known: Mapping[str, Array]) -> dict[int, tuple[int, Array]]:
    """The sequences that have results: the slot of each, and the columns that precede its first token."""
    slots, length, found = case.batch + case.spare, case.state_len, {}
    for i, slot in enumerate(known.get("conv_state_indices", np.arange(case.batch)).tolist()):
        first = length - case.halo
        if case.mode == "circular":
            first = int(known["cache_seqlens"][i]) - case.halo
        if case.mode == "accepted":
            first = max(int(known["num_accepted_tokens"][i]), 1) - 1
        is_padding = "conv_state_indices" in known and slot == case.pad_slot_id
        if 0 <= slot < slots and not is_padding and (case.mode != "accepted" or first <= length - case.halo):
            found[i] = slot, np.array([(first + k) % length for k in range(case.halo)], int)
    return found


def place_inputs(case: Step, seed: int = 0) -> dict[str, Placed]:
    """The arrays that are read, with their memory: values from -1 to 1, x's and the states' times `scale`.

    Of the pool only windows have such values. What is moved with them has louder ones, all else is NaN.
    """
    random, known = case.random(seed), integers(case, seed)
    placed = {}
    for name, lies in placements(case).items():
        if name in case.outputs():
            continue
        scale = case.scale if name in ("x", "conv_state") else 1.0
        values = known[name] if name in known else random.uniform(-scale, scale, lies.shape)
        if name == "conv_state":
            loudness = np.full(lies.shape, np.nan)
            for slot, columns in live(case, known).values():
                if case.mode == "shift" and not case.frozen:
                    loudness[slot, :, case.tokens :] = LOUD
                loudness[slot][:, columns] = 1.0
            values = values * loudness
        elif name == "intermediate_conv_window":
            values = np.full(lies.shape, np.nan)
        placed[name] = Placed(lies, values)
    return placed


def inputs(case: Step, seed: int = 0) -> dict[str, Array]:
    """The arrays that are read."""
    return {name: placed.array for name, placed in place_inputs(case, seed).items()}


def arguments(case: Step, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """All arguments, by name; several outputs are one."""
    outs = tuple(arrays[name] for name in case.outputs() if name in arrays)
    given = {name: array for name, array in arrays.items() if name in INPUTS}
    if outs:
        given["out"] = outs[0] if tuple(case.outputs()) == ("out",) else outs
    return {**given, **case.options()}


def oracle(case: Step, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs in float64, the pool and the windows, exactly."""
    given = {name: arrays.get(name) for name in INPUTS}
    given["x"] = np.atleast_3d(arrays["x"])
    options = {"activation": case.activation, "pad_slot_id": case.pad_slot_id, "disable_state_update": case.frozen}
    out, state, windows = reference.causal_conv1d_update(**given, **options)
    updated = {"conv_state": state} | ({} if windows is None else {"intermediate_conv_window": windows})
    return case.divide(out) | updated
