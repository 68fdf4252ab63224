"""What the case tables of decode steps share: where arrays lie, inputs, oracle, traffic and launch."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from cuconv.causal_conv1d.kernels_update import POINTERS
from cuconv.causal_conv1d.update_call import INPUTS, operands

from cuconv import reference
from cuconv.causal_conv1d.plan_update import plan
from cuconv.runtime.call import Launch
from cuconv.runtime.dtypes import BY_NAME, FLOAT32, DType
from tests.causal_conv1d.update_step import Step
from tests.support.bounds import convolution
from tests.support.layouts import LAYOUTS, OTHERS, POOLS, WINDOWS
from tests.support.placement import Array, Placed, Placement, place

UPDATED = ("conv_state", "intermediate_conv_window")
LOUD = 500.0
"""Columns that are moved and not convolved are so many times larger."""


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


def _random(case: Step, seed: int) -> np.random.Generator:
    return np.random.default_rng([seed, zlib.crc32(case.id.encode())])


def integers(case: Step, seed: int = 0) -> dict[str, Array]:
    """Slots, where rings are, how many tokens were accepted, and rows of windows."""
    random, batch, odd, length = _random(case, seed), case.batch, case.slots == "odd", case.state_len
    is_wide = {name: case.index == "int64" or (case.index == "mixed" and t == "int64") for name, t in MIXED.items()}
    found = {}

    def take(name: str, usual: Array, strange: list[int], wide: list[int]) -> None:
        """Of the usual numbers, some replaced by strange ones: other sequences' than those of another array."""
        chosen = np.resize(usual, batch).astype(np.int64)
        if strange:
            every = slice({"conv_state_indices": 1, "intermediate_state_indices": 3}.get(name, 2), None, 4)
            chosen[every] = np.resize(strange + wide * is_wide[name], len(chosen[every]))
        found[name] = chosen

    def beyond(count: int, nobodys: int) -> list[int]:
        return [nobodys, count, -2, count + 7, -(2**31), 2**31 - 1] if odd else []

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
        if 0 <= slot < slots and slot != case.pad_slot_id and (case.mode != "accepted" or first <= length - case.halo):
            found[i] = slot, np.array([(first + k) % length for k in range(case.halo)], int)
    return found


def place_inputs(case: Step, seed: int = 0) -> dict[str, Placed]:
    """The arrays that are read, with their memory: values from -1 to 1, x's and the states' times `scale`.

    Of the pool only windows have such values. What is moved with them has louder ones, all else is NaN.
    """
    random, known = _random(case, seed), integers(case, seed)
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
    out, state, windows = reference.causal_conv1d_update(**given, **options)  # type: ignore[arg-type]
    updated = {"conv_state": state} | ({} if windows is None else {"intermediate_conv_window": windows})
    return case.divide(out) | updated


tolerance = convolution


def tolerances(case: Step, arrays: Mapping[str, Array]) -> dict[str, tuple[float, Any]]:
    """How far outputs may be from the oracle; states are copies or rounded once, and so exact."""
    return dict.fromkeys(case.outputs(), tolerance(case))


def sample(case: Any) -> tuple[Any, dict[str, Any]]:
    """Every so many channels, as many times as it goes into the channels of every output."""
    step = max(1, math.gcd(*case.sizes) // 64)
    sizes = tuple(size // step for size in case.sizes)
    smaller = replace(case, channels=sizes[0] if isinstance(case.channels, int) else sizes)
    channels = slice(None, None, step)
    return smaller, cuts(case, channels) | dict.fromkeys(case.outputs(), (slice(None), channels))


def cuts(case: Step, channels: Any) -> dict[str, Any]:
    """What belongs to these channels, of every array that is read."""
    found: dict[str, Any] = {"x": (slice(None), channels), "conv_state": (slice(None), channels)}
    found |= {"weight": channels, "bias": channels, "intermediate_conv_window": (slice(None), slice(None), channels)}
    return {name: found.get(name, ...) for name in placements(case)}


def bytes_moved(case: Step) -> int:
    """Every distinct element of every array once, but of pool and windows what is live, twice where it is updated."""
    placed = placements(case)
    count = sum(lies.bytes for name, lies in placed.items() if name not in UPDATED)
    length, halo, tokens = case.state_len, case.halo, case.tokens
    read, written = halo, 0
    if not case.frozen:
        read = max(halo, length - tokens) if case.mode == "shift" else halo
        written = {"shift": length, "circular": min(tokens, length), "accepted": halo + tokens - 1}[case.mode]
    columns = read + written + (tokens * halo if case.window is not None else 0)
    return count + len(live(case, integers(case))) * case.dim * columns * placed["conv_state"].dtype.itemsize


def launch(case: Step) -> Launch | None:
    """What the op runs for this call on a GPU."""
    placed = placements(case)
    names = (*INPUTS, *case.outputs())
    layouts = [placed[name].layout if name in placed else None for name in names]
    return plan(operands(case.form, layouts, case.activation is not None, case.pad_slot_id, case.frozen))


def tensors(arrays: Mapping[str, Array]) -> dict[str, Array | None]:
    """The arrays by the names that the kernels know them by."""
    outs = [name for name in arrays if name not in INPUTS]
    known = {name: arrays.get(name) for name in INPUTS}
    known |= {f"out[{number}]": arrays[name] for number, name in enumerate(outs)}
    return {pointer: known.get(pointer) for pointer in POINTERS}
