"""Equal packed inputs give equal bits: in every layout, alone or packed, whole or in chunks, together or split."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cuconv.causal_conv1d import plan_varlen, varlen
from cuconv.runtime.operation import Operation
from tests.causal_conv1d.cases_varlen import Case
from tests.support.compare import assert_same_bits
from tests.support.layouts import PACKED, POOLS
from tests.support.placement import Array
from tests.support.runners import Runner, Values, emulated, prebuild

gpu = pytest.mark.gpu
# Under the emulator every further specialisation is to be built.
DTYPES = ("bfloat16", pytest.param("float32", marks=gpu), pytest.param("float16", marks=gpu))
WIDTHS = (4, *(pytest.param(width, marks=gpu) for width in (1, 2, 7, 16)))
BOTH = ("channels", "tokens")


def forgetful(operation: Operation[Any]) -> Operation[Any]:
    """The operation, its calls to be planned anew."""
    check, plan, reference = operation.check, operation.plan, operation.reference
    return Operation(operation.inputs, check=check, plan=plan, reference=reference, absent=operation.absent)


def live(pool: Array, case: Any) -> Array:
    """The columns of a pool that count."""
    return pool[:, :, pool.shape[2] - (case.width - 1) :]


def with_pool_of(case: Case, values: Values, states: Array) -> Values:
    """The inputs with these live columns in a pool of the case's own size."""
    pool = np.full(case.placements()["conv_states"].shape, np.nan, states.dtype)
    live(pool, case)[...] = states
    return {**values, "conv_states": pool}


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_layout_gives_the_same_bits(dtype: str, run: Runner) -> None:
    case = Case(32, "off2+20+0+3+9+off1", 4, dtype)
    others = [replace(case, layout=layout) for layout in PACKED]
    others += [replace(case, layout=a, out=b) for a, b in (("channels", "tokens"), ("tokens", "channels_spaced"))]
    others += [replace(case, layout=layout, pool=pool) for layout in BOTH for pool in POOLS]
    prebuild(run, others)
    values = case.inputs()
    wanted = run(case, values)
    for other in others:
        got = run(other, with_pool_of(other, values, live(values["conv_states"], case)))
        assert_same_bits(got["out"], wanted["out"], other.id)
        assert_same_bits(live(got["conv_states"], other), live(wanted["conv_states"], case), f"states of {other.id}")


@pytest.mark.parametrize("width", [2, 4])
def test_short_sequences_give_the_bits_of_long_ones(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the kernel for either."""
    case = Case(33, "off2+300+0+3+9x1+2+off1", width, layout="tokens", slots="odd")
    values = case.inputs()
    short = emulated(case, values)
    (launch,) = case.launches()
    monkeypatch.setattr(plan_varlen, "SHORT", 0)
    monkeypatch.setattr(varlen, "_packed", forgetful(varlen._packed))
    (other,) = case.launches()
    assert type(other.kernel) is not type(launch.kernel)
    for name, wanted in emulated(case, values).items():
        assert_same_bits(short[name], wanted, name)
