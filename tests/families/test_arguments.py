"""What every public function does with arguments of unusual kinds: right results, or one error that names them."""

from __future__ import annotations

import inspect
import re
import warnings
from typing import Any

import numpy as np
import pytest

import cuconv
from cuconv.bench.workloads import SMALL, workloads
from cuconv.runtime.abstract import AbstractArray, launches_of
from cuconv.runtime.dtypes import FLOAT32, INT32, DType
from cuconv.runtime.layout import dense_strides
from cuconv.runtime.workload import Workload
from tests.support.foreign import Foreign

Array = np.ndarray[Any, Any]
FUNCTIONS = [function for function in cuconv.OPERATORS if function in SMALL]
EACH_FUNCTION = pytest.mark.parametrize("function", FUNCTIONS)


def small(function: str) -> Workload:
    return next(iter(workloads(SMALL, function, dtype="float32")))


def options_of(function: str, annotation: str) -> dict[str, Any]:
    """The arguments with this annotation, and their values in the small call."""
    given = small(function).options
    parameters = inspect.signature(getattr(cuconv, function)).parameters.values()
    return {
        each.name: given.get(each.name, 0 if each.default is inspect.Parameter.empty else each.default)
        for each in parameters
        if each.annotation == annotation
    }


def each_option(annotation: str) -> list[Any]:
    return [
        pytest.param(function, name, id=f"{function}-{name}")
        for function in FUNCTIONS
        for name in options_of(function, annotation)
    ]


def returned(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


def in_memory(workload: Workload) -> tuple[dict[str, Array], list[Array]]:
    """The call's arrays, and arrays for its results that hold NaN."""
    outs = [np.full(out.shape, np.nan, out.dtype.numpy) for out in workload.outs.values()]
    return {name: np.array(array) for name, array in workload.host().items()}, outs


@EACH_FUNCTION
@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8])
def test_integers_of_numpy_are_integers(function: str, kind: type) -> None:
    workload = small(function)
    numbers = {name: kind(value) for name, value in options_of(function, "int").items() if value >= 0}
    if "sizes" in workload.options:
        numbers["sizes"] = tuple(map(kind, workload.options["sizes"]))
    plain = launches_of(getattr(cuconv, function), **workload.abstract())
    assert launches_of(getattr(cuconv, function), **{**workload.abstract(), **numbers}) == plain or not numbers


@pytest.mark.parametrize(("function", "name"), each_option("bool"))
@pytest.mark.parametrize("value", [np.array([True, False]), np.array(True), "False", 2, None, [True]], ids=repr)
def test_a_flag_is_true_or_false(function: str, name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=rf"^{name}: got .*; wanted True or False$"):
        getattr(cuconv, function)(**{**small(function).abstract(), name: value})


@pytest.mark.parametrize(("function", "name"), each_option("bool"))
@pytest.mark.parametrize("value", [True, False])
def test_a_flag_may_be_a_bool_of_numpy(function: str, name: str, value: bool) -> None:
    def call(flag: Any) -> Any:
        try:
            return launches_of(getattr(cuconv, function), **{**small(function).abstract(), name: flag})
        except ValueError as error:
            return str(error)

    assert call(np.bool_(value)) == call(int(value)) == call(value)


@EACH_FUNCTION
def test_a_class_is_no_array(function: str) -> None:
    workload = small(function)
    for name in list(workload.arrays)[:2]:
        for kind in (np.ndarray, Foreign):
            with pytest.raises(TypeError, match=rf"^\w+: got (the class {kind.__name__}|a NumPy array); wanted "):
                getattr(cuconv, function)(**{**workload.call(workload.host()), name: kind})


@EACH_FUNCTION
@pytest.mark.parametrize("kind", [np.matrix, np.ma.MaskedArray])
def test_matrices_and_arrays_with_masks_are_refused(function: str, kind: type) -> None:
    workload = small(function)
    for name in workload.arrays:
        arrays = workload.host()
        flat = np.ascontiguousarray(arrays[name]).reshape(arrays[name].shape[0], -1)
        arrays[name] = flat.view(kind)
        wanted = f"^{name}: got a ({kind.__name__}|matrix); wanted a plain NumPy array, as numpy.asarray gives$"
        with pytest.raises(TypeError, match=wanted):
            getattr(cuconv, function)(**workload.call(arrays))


WRITTEN = [
    pytest.param(function, name, id=f"{function}-{name}") for function in FUNCTIONS for name in small(function).results
]


@pytest.mark.parametrize("through_dlpack", [False, True], ids=["numpy", "dlpack"])
@pytest.mark.parametrize(("function", "name"), WRITTEN)
def test_an_array_to_be_written_must_be_writable(function: str, name: str, through_dlpack: bool) -> None:
    workload = small(function)
    arrays, outs = in_memory(workload)
    written = {**arrays, **dict(zip(workload.outs, outs, strict=True))}
    before = {key: array.tobytes() for key, array in written.items()}
    written[name].flags.writeable = False
    wrap: Any = Foreign if through_dlpack else (lambda array: array)
    arguments = workload.call({key: wrap(array) for key, array in arrays.items()}, [wrap(out) for out in outs])
    with pytest.raises(ValueError) as caught:
        getattr(cuconv, function)(**arguments)
    assert str(caught.value) == f"{name}: got a read-only array; wanted one that can be written"
    assert {key: array.tobytes() for key, array in written.items()} == before


@EACH_FUNCTION
def test_arrays_that_are_only_read_may_be_read_only(function: str) -> None:
    workload = small(function)
    arrays, _ = in_memory(workload)
    wanted = returned(
        getattr(cuconv, function)(**workload.call({name: array.copy() for name, array in arrays.items()}))
    )
    for name in set(arrays) - set(workload.updated):
        arrays[name].flags.writeable = False
    for got, right in zip(returned(getattr(cuconv, function)(**workload.call(arrays))), wanted, strict=True):
        np.testing.assert_array_equal(got, right)


@EACH_FUNCTION
@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e30, np.inf, np.nan])
def test_valid_values_raise_no_warning(function: str, scale: float) -> None:
    workload = small(function)
    arrays, _ = in_memory(workload)
    for array in arrays.values():
        if array.dtype.kind == "f":
            array *= np.float32(scale) if np.isfinite(scale) else 1
            if not np.isfinite(scale):
                array.reshape(-1)[::3] = scale
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        getattr(cuconv, function)(**workload.call(arrays))


def dense(shape: tuple[int, ...], dtype: DType = FLOAT32) -> AbstractArray:
    return AbstractArray(shape, dense_strides(shape, tuple(range(len(shape)))), dtype)


def dense_arrays(**shapes: tuple[int, ...]) -> dict[str, Any]:
    return {name: dense(shape) for name, shape in shapes.items()}


def step(*rows: int) -> dict[str, Any]:
    """A state update of one sequence with 4 states."""
    groups = (1,) * (len(rows) - 1)
    maps = dict.fromkeys("BC", (1, *groups, 4))
    return dense_arrays(state=(1, *rows, 4), x=(1, *rows), dt=(1, *rows), A=(*rows, 4), **maps)


def last_tokens(state_len: int, sequences: int = 2, dim: int = 4) -> dict[str, Any]:
    return {"x": dense((8, dim)), "cu_seqlens": dense((sequences + 1,), INT32), "state_len": state_len}


MOST = 2**31 - 1
WIDE = {name: (MOST, 2**20, 1) for name in ("u", "delta")} | {"A": (2**20, 4), "B": (MOST, 4, 1), "C": (MOST, 4, 1)}
TOO_LARGE = [
    ("causal_conv1d_varlen_states", last_tokens(2**62), f"state_len: got {2**62}; wanted 1 to {MOST}"),
    ("causal_conv1d_varlen_states", last_tokens(MOST, 2**20, 2**20), f"x: got shape (8, {2**20}), in a call that"),
    ("selective_state_update", step(2**31), f"dim of state: got {2**31}; wanted 0 to {MOST}"),
    ("selective_state_update", step(1, 2**31), f"headdim of state: got {2**31}; wanted 0 to {MOST}"),
    ("selective_state_update", step(2**31, 1), f"nheads of state: got {2**31}; wanted 0 to {MOST}"),
    ("selective_state_update", step(2**30, 64), f"state: got shape (1, {2**30}, 64, 4), in a call that"),
    ("selective_scan_fn", dense_arrays(**WIDE), f"u: got shape ({MOST}, {2**20}, 1), in a call that"),
    ("causal_conv1d_fn", dense_arrays(x=(2, MOST, 2**20), weight=(MOST, 4)), f"x: got shape (2, {MOST}, {2**20}), in"),
    ("causal_conv1d_fn", dense_arrays(x=(MOST, MOST, 2), weight=(MOST, 4)), f"x: got shape ({MOST}, {MOST}, 2), in"),
    ("causal_conv1d_varlen_fn", dense_arrays(x=(MOST, 2**30), weight=(MOST, 4)), f"x: got shape ({MOST}, {2**30}), in"),
]


@pytest.mark.parametrize(("function", "arguments", "error"), TOO_LARGE, ids=[case[2][:40] for case in TOO_LARGE])
def test_what_no_launch_can_take_is_refused_by_name(function: str, arguments: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(error)}"):
        launches_of(getattr(cuconv, function), **arguments)


COLUMNS = [
    ("causal_conv1d_varlen_fn", {"conv_states": (2, 4, 5)}, 1, "1; wanted one of 0, -1, None"),
    ("causal_conv1d_varlen_fn", {"conv_states": (2, 4, 5)}, 0.0, "0.0; wanted an int"),
    ("causal_conv1d_varlen_fn", {}, 0, "0; wanted None unless conv_states or initial_states is given"),
    (
        *("causal_conv1d_update", {"conv_state": (8, 4, 5), "cache_seqlens": (8,)}, 0),
        "0; wanted None beside cache_seqlens, which says where the inputs are",
    ),
    (
        *("causal_conv1d_update", {"conv_state": (8, 4, 5), "num_accepted_tokens": (8,)}, -1),
        "-1; wanted 0 or None beside num_accepted_tokens, which counts from the first column",
    ),
]


@pytest.mark.parametrize(("function", "shapes", "value", "error"), COLUMNS, ids=[case[3] for case in COLUMNS])
def test_the_first_column_is_one_of_two(function: str, shapes: dict[str, Any], value: Any, error: str) -> None:
    dtypes = {"cache_seqlens": INT32, "num_accepted_tokens": INT32}
    arrays = {name: dense(shape, dtypes.get(name, FLOAT32)) for name, shape in shapes.items()}
    arrays |= dense_arrays(x=(4, 9) if "varlen" in function else (8, 4), weight=(4, 3))
    with pytest.raises((TypeError, ValueError), match=f"^first_column: got {re.escape(error)}$"):
        launches_of(getattr(cuconv, function), **arrays, first_column=value)
