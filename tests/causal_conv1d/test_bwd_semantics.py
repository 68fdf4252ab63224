"""What gradients must be whatever computes them: the same bits again, in every layout, packed or alone, and without the
mistakes that other libraries have made.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import cuconv
from cuconv.runtime import arrays
from tests import emulator
from tests.causal_conv1d import cases_bwd, cases_varlen_bwd
from tests.causal_conv1d.cases_bwd import ALL, STATES, Case
from tests.emulator.family import EmulatedArray
from tests.support.compare import assert_same_bits
from tests.support.layouts import LAYOUTS
from tests.support.placement import Array
from tests.support.runners import Runner, emulated, on_gpu

Packed = cases_varlen_bwd.Case

DETERMINISTIC = (
    Case(9, 5, 300, float32=True),
    Case(70, 24, 32, 3, "float32", **ALL),
    Case(40, 12, 40, float32=True, layout="channel_last", **STATES),
    Case(1, 4, 3000, 2, "float32", layout="channel_last"),
)


@pytest.mark.skipif(emulator.available() is not None, reason=str(emulator.available()))
@pytest.mark.parametrize("case", DETERMINISTIC, ids=lambda case: case.id)
def test_no_order_of_blocks_and_threads_changes_a_bit(case: Case) -> None:
    values = case.inputs()
    family = arrays.family(EmulatedArray(values["x"]))
    first = emulated(case, values)
    try:
        for seed in range(1, 4):
            family.seed = seed  # type: ignore[union-attr]
            for name, got in emulated(case, values).items():
                assert_same_bits(got, first[name], f"{name} in order {seed}")
    finally:
        family.seed = 0  # type: ignore[union-attr]


@pytest.mark.gpu
@pytest.mark.parametrize("case", DETERMINISTIC, ids=lambda case: case.id)
def test_a_gpu_gives_the_same_bits_again(case: Case) -> None:
    larger = replace(case, batch=8 * case.batch, seqlen=4 * case.seqlen)
    values = larger.inputs()
    first = on_gpu(larger, values)
    for _ in range(5):
        for name, got in on_gpu(larger, values).items():
            assert_same_bits(got, first[name], name)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_dx_has_the_same_bits_in_every_layout(dtype: str, run: Runner) -> None:
    case = Case(2, 6, 75, 4, dtype, **ALL)
    values = case.inputs()
    values["x"][1], values["seq_idx"][1] = values["x"][0], values["seq_idx"][0]  # for layouts with batch stride 0
    first = run(case, values)
    for layout in LAYOUTS:
        got = run(replace(case, layout=layout), values)
        for name in ("dx", "dinitial_states"):
            assert_same_bits(got[name], first[name], f"{name} of {layout}")


@pytest.mark.parametrize("layout", ["channel_first", "channel_last"])
def test_how_dout_lies_changes_no_bit(layout: str, run: Runner) -> None:
    """fla-org/flash-linear-attention #871: gradients of slices and of sums gave wrong results."""
    case = Case(2, 8, 70, layout=layout, **STATES)
    values = case.inputs()
    values["dout"][...] = values["dout"][:1, :1, :1]
    first = run(case, values)
    for dout in (*cases_bwd.EXPANDED, "sliced_seq", "last_sliced_dim_by_3", "spaced", "backward_seq"):
        got = run(replace(case, dout=dout), values)
        for name in first:
            assert_same_bits(got[name], first[name], f"{name} from dout that lies {dout}")


APART = (
    Case(1, 4, 34),
    Case(3, 5, 21, 4, "float16", **STATES),
    Case(2, 4, 34, 10, "float32", activation=None),
    Case(2, 3, 34, layout="offset_alike", dout="expanded", final=True),
    Case(2, 4, 34, **ALL),
    Case(2, 6, 34, layout="channel_last"),
)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("case", APART, ids=lambda case: case.id)
def test_channels_do_not_see_each_other(case: Case, value: float, run: Runner) -> None:
    """Rows lie end to end, and a vector with the end of one has the beginning of the next one."""
    values = case.inputs()
    first = run(case, values)
    values["x"][:, 1] = value
    for name, got in run(case, values).items():
        axis = int(name in ("dx", "dinitial_states"))
        others, wanted = (np.delete(each, 1, axis) for each in (got, first[name]))
        assert_same_bits(others, wanted, f"{name} of the other channels")


@pytest.mark.parametrize("layout", ["channels", "tokens"])
def test_packed_sequences_are_as_if_alone(layout: str, run: Runner) -> None:
    """dx and dinitial_states to the bit; the sums over all sequences but for their order."""
    case = Packed(8, "21+1+2+40", layout=layout, slots=None, initial=None, float32=True)
    values = case.inputs()
    together = run(case, values)
    dweight = np.zeros(values["weight"].shape)
    for i, (begin, end) in enumerate([(0, 21), (21, 22), (22, 24), (24, 64)]):
        row = Case(1, 8, end - begin, layout="channel_last" if layout == "channels" else "channel_first",
                   float32=True, **STATES)  # fmt: skip
        own: dict[str, Any] = {name: values[name] for name in ("weight", "bias")}
        own |= {name: values[name][None, :, begin:end] for name in ("x", "dout")}
        own |= {name: values[name][i : i + 1] for name in ("initial_states", "dfinal_states")}
        alone = run(row, own)
        assert_same_bits(together["dx"][:, begin:end], alone["dx"][0], f"dx of sequence {i}")
        assert_same_bits(together["dinitial_states"][i], alone["dinitial_states"][0], f"dinitial_states of {i}")
        dweight += alone["dweight"]
    np.testing.assert_allclose(together["dweight"], dweight, rtol=1e-5, atol=1e-5)


def short(layout: str) -> tuple[Case, dict[str, Array]]:
    """A row of 2 tokens under a filter of 5 taps, all numbers small integers."""
    case = Case(1, 1, 2, 5, "float32", bias=None, layout=layout, activation=None, **STATES)
    rows = {"x": [3, -2], "dout": [5, 7], "initial_states": [1, 2, 4, -1], "dfinal_states": [10, 20, 30, 40]}
    values = {name: np.array(row, np.float32).reshape(1, 1, -1) for name, row in rows.items()}
    return case, {**values, "weight": np.array([[1, 2, 3, 4, 6]], np.float32)}


@pytest.mark.parametrize("layout", ["channel_first", "channel_last", "spaced"])
def test_a_row_shorter_than_the_filter_passes_its_final_gradient_on(layout: str, run: Runner) -> None:
    """fla-org/flash-linear-attention #1140: the final state still holds columns of the initial one."""
    case, values = short(layout)
    got = run(case, values)
    # dxe[p] = weight[p] * 5 + weight[p - 1] * 7 for the six columns of [initial | x], and dfinal from the third on.
    np.testing.assert_array_equal(got["dinitial_states"], [[[5, 17, 29 + 10, 41 + 20]]])
    np.testing.assert_array_equal(got["dx"], [[[58 + 30, 42 + 40]]])
    np.testing.assert_array_equal(
        got["dweight"], [[5 * 1 + 7 * 2, 5 * 2 + 7 * 4, 5 * 4 - 7, -5 + 7 * 3, 5 * 3 - 7 * 2]]
    )


@pytest.mark.parametrize("layout", ["channel_first", "channel_last"])
def test_numbered_rows_of_a_batch_are_as_if_alone(layout: str, run: Runner) -> None:
    """fla-org/flash-linear-attention #955: boundaries in a batch of more than one row corrupted dweight alone."""
    case = Case(5, 6, 33, 4, "float32", layout=layout, seq_idx=True)
    values = case.inputs()
    together = run(case, values)
    dweight, dbias = np.zeros((6, 4)), np.zeros(6)
    for b in range(5):
        own = {name: array[b : b + 1] if name in ("x", "dout", "seq_idx") else array for name, array in values.items()}
        alone = run(replace(case, batch=1), own)
        assert_same_bits(together["dx"][b : b + 1], alone["dx"], f"dx of row {b}")
        dweight += alone["dweight"]
        dbias += alone["dbias"]
    np.testing.assert_allclose(together["dweight"], dweight, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(together["dbias"], dbias, rtol=1e-5, atol=1e-5)


def test_new_results_have_the_dtypes_and_layouts_that_are_promised() -> None:
    x = np.ones((2, 9, 6), np.float16).transpose(0, 2, 1)
    weight, bias, states = np.ones((6, 4), np.float16), np.ones(6, np.float32), np.ones((2, 6, 3), np.float16)
    dx, dweight, dbias, dinitial = cuconv.causal_conv1d_bwd(x, weight, bias, x, initial_states=states)
    assert (dx.dtype, dweight.dtype, dbias.dtype, dinitial.dtype) == (np.float16, np.float16, np.float32, np.float16)
    assert dx.strides == x.strides and dinitial.shape == states.shape
    dx, dweight, dbias, dinitial = cuconv.causal_conv1d_bwd(x, weight, None, x, float32_gradients=True)
    assert (dx.dtype, dweight.dtype, dbias, dinitial) == (np.float16, np.float32, None, None)
