"""What gradients must be whatever computes them: those of a chain of chunks, of packed sequences one by one, and the
same bits again.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import cuconv
from tests import emulator
from tests.selective_scan import cases_varlen_bwd
from tests.selective_scan.cases_bwd import Case
from tests.support.compare import assert_same_bits
from tests.support.placement import Array
from tests.support.runners import Runner, emulated, on_gpu

PARAMETERS = ("A", "D", "delta_bias")
ROWS = ("u", "delta", "B", "C", "z", "dout")


def gradients(arrays: dict[str, Any]) -> dict[str, Array]:
    found = cuconv.selective_scan_bwd(**arrays, delta_softplus=True)._asdict()
    return {name: each for name, each in found.items() if each is not None}


def test_gradients_flow_through_states_across_chunks() -> None:
    """The last state of one call is the initial state of the next; dinitial_state of this is dlast_state of that."""
    case = Case(2, 3, 300, dtype="float32", without="chunk_states")
    whole = case.inputs()
    cut = 77
    first = {name: whole[name][..., :cut] if name in ROWS else whole[name] for name in whole}
    second = {name: whole[name][..., cut:] if name in ROWS else whole[name] for name in whole}
    forward = {name: array for name, array in first.items() if name not in ("dout", "dlast_state")}
    _, second["initial_state"] = cuconv.selective_scan_fn(**forward, delta_softplus=True, return_last_state=True)
    later = gradients(second)
    first["dlast_state"] = later.pop("dinitial_state")
    earlier = gradients(first)
    for name, wanted in gradients(whole).items():
        if name == "dinitial_state":
            got = earlier[name]
        elif name.removeprefix("d") in PARAMETERS:
            got = earlier[name] + later[name]
        else:
            got = np.concatenate([earlier[name], later[name]], axis=-1)
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5, err_msg=name)


def test_states_that_the_forward_scan_left_change_no_more_than_their_rounding() -> None:
    case = Case(2, 3, 600, dtype="float32")
    arrays = case.inputs()
    with_states = gradients(arrays)
    del arrays["chunk_states"]
    for name, wanted in gradients(arrays).items():
        np.testing.assert_allclose(with_states[name], wanted, rtol=1e-5, atol=1e-5)


def test_packed_sequences_are_rows_of_their_own() -> None:
    case = cases_varlen_bwd.Case(3, "40+0+300", dtype="float32")
    arrays = case.inputs()
    found = cuconv.selective_scan_varlen_bwd(**arrays, delta_softplus=True)._asdict()
    starts = arrays.pop("query_start_loc")
    sums = {name: np.zeros(found[name].shape) for name in ("dA", "dD", "ddelta_bias")}
    for i, (begin, end) in enumerate(pairwise(starts)):
        row = {name: array[None, ..., begin:end] if name in ROWS else array for name, array in arrays.items()}
        row |= {name: arrays[name][i : i + 1] for name in ("initial_state", "dlast_state")}
        for name, wanted in gradients(row).items():
            if name in sums:
                sums[name] += wanted
            elif name == "dinitial_state":
                np.testing.assert_allclose(found[name][i], wanted[0], rtol=1e-6)
            else:
                np.testing.assert_allclose(found[name][..., begin:end], wanted[0], rtol=1e-6)
    for name, wanted in sums.items():
        np.testing.assert_allclose(found[name], wanted, rtol=1e-5)


@pytest.mark.parametrize("shape", [(2, 3, 0), (0, 3, 5)])
def test_sums_over_no_tokens_are_zeros(shape: tuple[int, int, int]) -> None:
    found = gradients(Case(*shape, dtype="float32").inputs())
    for name in ("dA", "dD", "ddelta_bias"):
        np.testing.assert_array_equal(found[name], 0.0)


OF_CHANNELS = (
    # Tokens of a channel take the place of those of another one: pairs, words of rows that begin anywhere, and channels
    # that are walked again and again for some of their states.
    Case(1, 7, 260),
    Case(1, 7, 259),
    Case(2, 6, 261, dtype="float32"),
    Case(1, 7, 259, 40, without="chunk_states"),
    Case(1, 7, 259, layout="sliced_alike"),
)


@pytest.mark.parametrize("run", [emulated, pytest.param(on_gpu, marks=pytest.mark.gpu)])
@pytest.mark.parametrize("case", OF_CHANNELS, ids=lambda case: case.id)
def test_nan_in_a_channel_stays_there(case: Case, run: Runner) -> None:
    """In its last token: where other rows end, shared memory may have it still."""
    if run is emulated and (reason := emulator.available()) is not None:
        pytest.skip(reason)
    values = case.inputs()
    whole = run(case, values)
    values["u"][-1, 2, -1] = values["dout"][-1, 2, -1] = np.nan
    found = run(case, values)
    for name in ("du", "ddelta", "dz"):
        for channel in range(case.dim):
            if channel != 2:
                assert_same_bits(found[name][-1, channel], whole[name][-1, channel], name)


DETERMINISTIC = (
    Case(8, 300, 1500, dtype="float32"),
    Case(3, 64, 4000, without="chunk_states"),
    Case(2, 40, 1500, 40, groups=2),
)


@pytest.mark.gpu
@pytest.mark.parametrize("case", DETERMINISTIC, ids=lambda case: case.id)
def test_a_gpu_gives_the_same_bits_again(case: Case) -> None:
    values = case.inputs()
    first = on_gpu(case, values)
    for _ in range(5):
        for name, got in on_gpu(case, values).items():
            assert_same_bits(got, first[name], name)


def test_states_before_chunks_are_taken_as_they_are_given() -> None:
    """Half the states, and the second chunk alone with them, have the same gradients."""
    case = Case(2, 3, 300, dtype="float32", without="initial_state")
    arrays = case.inputs()
    arrays["chunk_states"] *= 0.5
    whole = gradients(arrays)
    second = {name: array[..., 256:] if name in ROWS else array for name, array in arrays.items()}
    second["initial_state"] = second.pop("chunk_states")[:, 1].copy()
    found = gradients(second)
    for name in ("du", "ddelta", "dB", "dC", "dz"):
        np.testing.assert_allclose(whole[name][..., 256:], found[name], rtol=1e-6)
