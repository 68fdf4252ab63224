"""Packed sequences know nothing of each other: NaN in one of them changes no result of another one.

Results are those without NaN, bit for bit; gradients of scans are right.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from tests.causal_conv1d import cases_varlen as conv
from tests.causal_conv1d import cases_varlen_bwd as conv_bwd
from tests.selective_scan import cases_varlen as scan
from tests.selective_scan import cases_varlen_bwd as scan_bwd
from tests.support.batches import batch
from tests.support.compare import ROUNDING, assert_close, assert_same_bits
from tests.support.placement import Array
from tests.support.runners import Runner, Values

BY_TOKEN = ("u", "delta", "B", "C", "z", "x", "pre_gate", "post_gate", "residual", "dout")
BY_SEQUENCE = ("initial_state", "dlast_state", "dfinal_states", "dinitial_state", "dinitial_states")
BY_SLOT = ("ssm_states", "state_scale", "conv_states", "initial_states", "snapshot_out", "snapshot_scale")
TOKENS_OUT = ("out", "du", "ddelta", "dB", "dC", "dz", "dx")

_WITHOUT_STATES: Any = {"without": "initial_state dlast_state"}
_MIXED = "3+40+0+133+5x1+off10"
_RUNS = "off3+20x3+40+60x2+30+17+off2"

FORWARD: tuple[Any, ...] = (
    # Lanes that share tokens, and walked runs of short sequences.
    scan.Case(35, "16+8+3+29", initial="all"),
    scan.Case(35, "340+16+20", 16, 1, state_dtype="bfloat16", initial="all"),
    scan.Case(150, "200+37x1+3", spare=0, initial="all"),
    scan.Case(70, _RUNS, processors=1),
    scan.Case(72, _RUNS, processors=1, **scan.TURNED),
    scan.Case(70, _RUNS, snapshots="pool", state_dtype="bfloat16", processors=1),
    scan.Case(35, "9+60x1+5+50+9x2+24+10", 12, dtype="float32", state_dtype="int8", initial="all", processors=1),
    scan.Case(136, _MIXED, 8, **scan.TURNED),
    # Lanes that walk all tokens in sweeps.
    scan.Case(128, "236+off2+298", processors=1),
    scan.Case(72, "off5+205+236", state_dtype="bfloat16", **scan.TURNED, processors=1),
    # Lanes for some states.
    scan.Case(35, "16+8+3+13", **scan.CHANNELS, state_dtype="bfloat16"),
    scan.Case(70, _MIXED, 7, keep=True),
    scan.Case(9, "20+3+41", 40, dtype="float32", snapshots="own"),
    # Convolutions in every kernel.
    conv.Case(136, "off2+20+0+3x1+30+2", initial="all"),
    conv.Case(252, "off2+70x1+3+0+40x1+2x2+5+20x1+off1", processors=1),
    conv.Case(136, "off2+20+0+3x1+30+2", 3, gates="pre_gate post_gate residual", initial="all"),
    conv.Case(36, "off3+253+1+255+1+2+3+63+65+off9+20x1+0+93", initial="all", pool="columns", **conv.ROWS),
    conv.Case(40, "300x1", pool="columns", initial="all", **conv.ROWS),
    conv.Case(3, "45+9+30", 9, "float32", pool="columns", initial="all", **conv.ROWS),
    conv_bwd.Case(136, "150+0+2x1+113+38x2+off6"),
    conv_bwd.Case(36, "off3+253+1+255+1+2+3+63+65+off9+20x1+0+93", **conv_bwd.ROWS),
    conv_bwd.Case(5, "30+9+1000+7x1", **conv_bwd.ROWS),
)

GRADIENTS = (scan_bwd.Case(3, "530+600", dtype="float32"), scan_bwd.Case(4, "260+40x1", 20, 2))
"""Gradients of scans whose sequences have chunks of their own: those that share chunks make no such promise."""

SIDES = pytest.mark.parametrize("side", [0, 1], ids=["even", "odd"])
"""Every second sequence is full of NaN."""


def tokens_of(case: Any, numbers: Iterable[int]) -> Array:
    """The tokens of these sequences."""
    bounds = batch(case.batch).bounds
    return np.concatenate([np.arange(0), *(np.arange(bounds[i], bounds[i + 1]) for i in numbers)])


def slots_of(values: Values, numbers: Iterable[int]) -> set[int]:
    """The slots that these sequences read or write."""
    found: set[int] = set()
    for number in numbers:
        slots = [number if "cache_indices" not in values else int(values["cache_indices"][number])]
        if "snapshots" in values:
            rows = values["snapshots"]
            slots += rows[rows[:, 0] == number, 2].tolist()
        found.update(slots)
    return found


def spoilt(case: Any, values: Values, numbers: list[int], others: list[int]) -> Values:
    """The inputs with NaN in all that these sequences alone have."""
    found = {name: array.copy() for name, array in values.items()}
    slots = slots_of(values, numbers) - slots_of(values, others)
    for name, array in found.items():
        if array.dtype.kind in "iu":
            continue
        if name in BY_TOKEN:
            array[..., tokens_of(case, numbers)] = np.nan
        elif name in BY_SEQUENCE:
            array[numbers] = np.nan
        elif name in BY_SLOT:
            array[[slot for slot in slots if 0 <= slot < len(array)]] = np.nan
    return found


def of_others(case: Any, values: Values, name: str, array: Array, numbers: list[int]) -> Array | None:
    """What a result has of all but these sequences; None where it is a sum over sequences."""
    if name in TOKENS_OUT:
        return np.delete(array, tokens_of(case, numbers), axis=-1)
    if name in BY_SEQUENCE:
        return np.delete(array, numbers, axis=0)
    if name in BY_SLOT:
        return np.delete(array, [s for s in slots_of(values, numbers) if 0 <= s < len(array)], axis=0)
    return None


def sides(case: Any, side: int) -> tuple[list[int], list[int]]:
    """The numbers of every second sequence, and of the others."""
    numbers = [*range(batch(case.batch).count)]
    return numbers[side::2], numbers[1 - side :: 2]


@SIDES
@pytest.mark.parametrize("case", FORWARD, ids=lambda case: f"{case.FUNCTION}-{case.id}")
def test_nan_in_a_sequence_changes_no_bit_of_another(case: Any, side: int, run: Runner) -> None:
    values, (numbers, others) = case.inputs(), sides(case, side)
    clean, written = run(case, values), run(case, spoilt(case, values, numbers, others))
    compared = 0
    for name, array in written.items():
        got = of_others(case, values, name, array, numbers)
        if got is not None:
            wanted = of_others(case, values, name, clean[name], numbers)
            assert wanted is not None
            assert_same_bits(got, wanted, name)
            compared += got.size
    assert compared and any(np.isnan(each.astype(np.float32)).any() for each in written.values())


@SIDES
@pytest.mark.parametrize("case", GRADIENTS, ids=lambda case: case.id)
def test_nan_in_a_sequence_reaches_no_gradient_of_another(case: Any, side: int, run: Runner) -> None:
    values, (numbers, others) = case.inputs(), sides(case, side)
    written = run(case, spoilt(case, values, numbers, others))
    wanted, errors = case.oracle(values), case.errors(values)
    for name, array in written.items():
        got, exact, error = (
            of_others(case, values, name, each, numbers) for each in (array, wanted[name], errors[name])
        )
        if got is None or exact is None or error is None:
            continue
        relative = 0.0 if got.dtype == np.float32 else ROUNDING[got.dtype.name]
        tiny = 2.0**-25 if got.dtype == np.float16 else 0.0
        assert_close(name, got, exact, relative, error + tiny)
    assert any(np.isnan(each.astype(np.float32)).any() for each in written.values())
