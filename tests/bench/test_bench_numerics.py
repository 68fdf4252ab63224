"""Comparing with the oracle: what rounding explains is right, what is wrong in any way is found."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from cuconv.bench import numerics
from cuconv.bench.makers import MAKERS
from cuconv.bench.numerics import Difference, compare
from cuconv.bench.workloads import SMALL, workloads
from cuconv.runtime.dtypes import CODES, FLOATS
from cuconv.runtime.workload import Workload
from tests.support.placement import Array
from tests.support.workload_calls import numpy_path

Arrays = dict[str, Array]
DTYPES = [dtype.name for dtype in FLOATS]


@pytest.fixture(scope="module", autouse=True)
def remembered() -> Iterator[None]:
    """What the oracle gives is remembered for all calls of this file: without this, half of its time goes there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numerics, "_last", deque(maxlen=200))
        yield


@cache
def first(function: str, dtype: str) -> Workload:
    """A workload whose states have several columns, and no more tokens than it takes."""
    if function == "selective_scan_fn":
        return MAKERS[function](batch=2, dim=24, seqlen=300, dtype=dtype)
    return next(w for w in workloads(SMALL, function, dtype=dtype) if w.sizes.get("width", 4) > 2)


@cache
def _right(function: str, dtype: str) -> Arrays:
    workload = first(function, dtype)
    return numpy_path(workload, workload.host())


def right_results(function: str, dtype: str) -> Arrays:
    """What the first workload's call gives; arrays that tests change are copied by them."""
    return dict(_right(function, dtype))


def first_result(workload: Workload) -> str:
    return workload.results[0]


def wrong(differences: list[Difference]) -> set[str]:
    return {each.name for each in differences if not each.is_right}


@pytest.mark.parametrize("function", SMALL)
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_the_oracle_gives_is_right(function: str, dtype: str) -> None:
    for workload in workloads(SMALL, function, dtype=dtype):
        found = compare(workload, workload.host(), numpy_path(workload, workload.host()))
        assert [each.name for each in found] == list(workload.results)
        assert not wrong(found)
        # Codes are compared as they are stored.
        is_copy = function in EXACT or {**workload.arrays, **workload.outs}[found[0].name].dtype in CODES
        # Rounding to 16 bits is off by up to all that is allowed, so that nothing worse passes.
        assert is_copy or dtype == "float32" or 0.5 < found[0].used <= 1.0


EXACT = ("causal_conv1d_varlen_states", "selective_state_update_commit")
"""Functions of which every result is a copy, or an integer."""


@pytest.mark.parametrize("function", [name for name in SMALL if name not in EXACT])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sign", [-1, 1])
def test_the_stated_error_is_right_and_some_more_is_wrong(function: str, dtype: str, sign: int) -> None:
    workload = first(function, dtype)
    inputs = workload.host()
    oracle, stated = numerics._expected(workload, inputs, workload.options)
    right = right_results(function, dtype)
    # Errors of results that were not asked for may be stated as well.
    names = [name for name in workload.results if name in stated]
    assert first_result(workload) in names
    for name in names:
        error = stated[name]
        unit = float(ml_dtypes.finfo(right[name].dtype).eps) * np.abs(oracle[name])
        for off, found_wrong in ((error, set()), (3 * error + unit, {name})):
            got = (oracle[name] + sign * off).astype(right[name].dtype)
            assert wrong(compare(workload, inputs, {**right, name: got})) == found_wrong


def _reverse_taps(arrays: Arrays) -> None:
    arrays["weight"][...] = arrays["weight"][:, ::-1].copy()


def _drop_tap(arrays: Arrays) -> None:
    arrays["weight"][:, 0] = 0


def _zero(name: str) -> Callable[[Arrays], None]:
    def change(arrays: Arrays) -> None:
        arrays[name] = np.zeros_like(arrays[name])

    return change


def _lose_token(arrays: Arrays) -> None:
    # Tokens are the last axis of whole and packed rows, also where memory is by token.
    tokens = arrays["u" if "u" in arrays else "x"]
    tokens[..., tokens.shape[-1] // 2] = 0


def _next_step(arrays: Arrays) -> None:
    name = "delta" if "delta" in arrays else "dt"
    arrays[name] = np.roll(arrays[name], 1, axis=-1 if name == "delta" else 0)


def _other_slots(arrays: Arrays) -> None:
    name = next(name for name in arrays if name.endswith("indices"))
    arrays[name] = arrays[name][::-1].copy()


MISTAKES: dict[str, tuple[Callable[[Arrays], None], Callable[[Any], bool]]] = {
    "taps in reverse": (_reverse_taps, lambda names: "weight" in names),
    "a tap missing": (_drop_tap, lambda names: "weight" in names),
    "a token lost": (_lose_token, lambda names: "u" in names or "query_start_loc" in names),
    "steps of other tokens": (_next_step, lambda names: "A" in names and not {"dt", "delta"}.isdisjoint(names)),
    "other slots": (_other_slots, lambda names: any(name.endswith("indices") for name in names)),
    **{
        f"no {missing}": (_zero(missing), lambda names, missing=missing: missing in names)
        for missing in ("bias", "D", "z", "dt_bias", "delta_bias", "B", "conv_states", "ssm_states", "state")
    },
}
"""Ways to call a function on other arguments than those given, and which functions have these."""


def made() -> list[Any]:
    return [
        pytest.param(function, mistake, id=f"{function}-{mistake}".replace(" ", "_"))
        for function in SMALL
        for mistake, (_, applies) in MISTAKES.items()
        if applies(first(function, "float32").arrays)
    ]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("function", "mistake"), made())
def test_a_call_on_other_arguments_is_wrong(function: str, mistake: str, dtype: str) -> None:
    workload = first(function, dtype)
    arrays = {name: array.copy() for name, array in workload.host().items()}
    MISTAKES[mistake][0](arrays)
    # A scan is linear in u: its gradient there does not depend on u itself, but that in delta does.
    telling = {first_result(workload), "ddelta"}
    assert telling & wrong(compare(workload, workload.host(), numpy_path(workload, arrays)))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # without softplus states grow beyond all bounds
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("function", "options"),
    [
        ("causal_conv1d_fn", {"activation": None}),
        ("causal_conv1d_update", {"activation": None}),
        ("causal_conv1d_qkv_split", {"qk_l2norm": True}),
        ("causal_conv1d_varlen_states", {"state_len": 2}),
        ("selective_state_update", {"dt_softplus": False}),
        ("selective_scan_fn", {"delta_softplus": False}),
        ("selective_scan_varlen_fn", {"delta_softplus": False}),
    ],
    ids=str,
)
def test_a_call_with_other_options_is_wrong(function: str, options: dict[str, Any], dtype: str) -> None:
    workload = first(function, dtype)
    got = numpy_path(workload, workload.host(), **options)
    if function == "causal_conv1d_varlen_states":
        got["out"] = np.concatenate([got["out"], got["out"][..., -1:]], axis=-1)
    assert first_result(workload) in wrong(compare(workload, workload.host(), got))


OWNERS = [(function, name) for function in SMALL for name in first(function, "float32").updated]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("function", "name"), OWNERS)
def test_a_state_that_is_one_token_old_is_wrong_and_nothing_else(function: str, name: str, dtype: str) -> None:
    workload = first(function, dtype)
    got = right_results(function, dtype)
    # Tokens are the columns of a convolution's state; a selective one must have been updated.
    got[name] = np.roll(got[name], 1, axis=-1) if name.startswith("conv") else workload.host()[name]
    assert wrong(compare(workload, workload.host(), got)) == {name}


@pytest.mark.parametrize("function", SMALL)
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_element_is_enough(function: str, dtype: str) -> None:
    workload = first(function, dtype)
    right = right_results(function, dtype)
    floats = [name for name in workload.results if right[name].dtype.kind not in "iu"]
    for name in floats:
        largest = np.unravel_index(np.argmax(np.abs(right[name].astype(np.float64))), right[name].shape)
        for value in (np.nan, 0.0, float(right[name][largest]) * 1.02):
            got = {**right, name: right[name].copy()}
            got[name][largest] = value
            found = compare(workload, workload.host(), got)
            assert wrong(found) == {name}
            place = f"{name}[{', '.join(map(str, largest))}]: got {float(got[name][largest]):.8g}; wanted "
            assert next(each for each in found if each.name == name).detail.startswith(place)


@pytest.mark.parametrize("function", [name for name in SMALL if name not in EXACT])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_fewer_bits_than_the_dtype_has_are_wrong(function: str, dtype: str) -> None:
    workload = first(function, dtype)
    got = right_results(function, dtype)
    name = first_result(workload)
    got[name] = got[name].astype(ml_dtypes.bfloat16).astype(got[name].dtype)
    assert name in wrong(compare(workload, workload.host(), got))


def test_rounding_down_is_wrong() -> None:
    workload = first("causal_conv1d_fn", "bfloat16")
    wider = {name: array.astype(np.float32) for name, array in workload.host().items()}
    bits = numpy_path(workload, wider)["out"].view(np.uint32) >> np.uint32(16)
    cut_off = bits.astype(np.uint16).view(ml_dtypes.bfloat16)
    assert wrong(compare(workload, workload.host(), {"out": cut_off})) == {"out"}


@pytest.mark.parametrize("function", SMALL)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_part_can_be_compared_as_the_whole(function: str, dtype: str) -> None:
    workload = first(function, dtype)
    arrays, right = workload.host(), right_results(function, dtype)
    assert {each.name for each in compare(workload, arrays, right)} == set(workload.results)
    for part, names in workload.compared:
        inputs = {name: part.cut(name, array) for name, array in arrays.items()}
        got = {name: part.cut(name, right[name]) for name in names}
        assert not wrong(compare(part, inputs, got, part.cut_options))
        name = names[0]
        got[name] = got[name].copy()
        got[name].flat[-1] += 1
        assert wrong(compare(part, inputs, got, part.cut_options)) == {name}


def test_another_shape_is_wrong() -> None:
    workload = first("causal_conv1d_fn", "float32")
    got = {"out": right_results("causal_conv1d_fn", "float32")["out"][:, 1:]}
    (found,) = compare(workload, workload.host(), got)
    assert not found.is_right and found.detail == "out: got the shape (2, 69, 1029); wanted (2, 70, 1029)"


def test_nan_is_never_right() -> None:
    assert not Difference("out", np.nan, 1.0).is_right
    assert not Difference("out", np.inf, 1.0).is_right
    assert Difference("out", 0.5, 2.0).used == 0.25
    assert Difference("out", 0.0, 0.0).used == 0.0 and Difference("out", 1e-9, 0.0).used == np.inf
