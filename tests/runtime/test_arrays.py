"""Arrays without a GPU: what is imported, what a NumPy call returns, what comes in through DLPack."""

from __future__ import annotations

import gc
import itertools
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cuconv
from cuconv.bench.workloads import SMALL, workloads
from cuconv.runtime import arrays
from cuconv.runtime.dtypes import BFLOAT16, FLOAT32
from cuconv.runtime.layout import dense
from tests.causal_conv1d.cases_dense import STATES, Case
from tests.support.compare import check_values
from tests.support.discovery import ROOT
from tests.support.foreign import Foreign, StandardForeign

CASE = Case(2, 5, 9, 4, "float32", **STATES)
LAST = Case(2, 5, 9, 4, "bfloat16", layout="channel_last", **STATES)

NUMPY_CALL = """
import numpy as np
cuconv.causal_conv1d_fn(np.ones((1, 2, 3), np.float32), np.ones((2, 4), np.float32))
"""


@pytest.mark.parametrize("code", ["", NUMPY_CALL], ids=["import", "numpy-call"])
def test_nothing_heavy_is_imported(code: str) -> None:
    ask = "import sys; print(sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run(
        [sys.executable, "-c", f"import cuconv\n{code}\n{ask}"], check=True, capture_output=True, text=True, cwd=ROOT
    )
    imported = done.stdout
    assert "'cuconv'" in imported
    for heavy in ("torch", "cupy", "cupy_backends"):
        assert f"'{heavy}'" not in imported


@pytest.mark.parametrize("case", [CASE, LAST], ids=["channel_first", "channel_last"])
def test_results_lie_as_x_does(case: Case) -> None:
    inputs: dict[str, Any] = case.inputs()
    out, states = cuconv.causal_conv1d_fn(**inputs, **case.options())
    size = inputs["x"].itemsize
    for result, length in ((out, 9), (states, 3)):
        assert type(result) is np.ndarray and result.dtype == inputs["x"].dtype
        assert result.shape == (2, 5, length)
        inner = (length * size, size) if case is CASE else (size, 5 * size)
        assert result.strides == (5 * length * size, *inner)
    check_values(case, inputs, {"out": out, "final_states_out": states})


def test_one_channel_or_one_token_is_laid_out_as_x() -> None:
    weight = np.ones((1, 2), np.float32)
    assert cuconv.causal_conv1d_fn(np.ones((2, 1, 7), np.float32), weight).strides == (28, 28, 4)
    tokens = np.ones((2, 1, 3), np.float32).transpose(0, 2, 1)
    assert cuconv.causal_conv1d_fn(tokens, np.ones((3, 2), np.float32)).shape == (2, 3, 1)


def test_only_what_is_asked_for_is_returned() -> None:
    inputs: dict[str, Any] = CASE.inputs()
    out = cuconv.causal_conv1d_fn(**inputs)
    assert type(out) is np.ndarray
    both = cuconv.causal_conv1d_fn(**inputs, return_final_states=True)
    assert isinstance(both, tuple) and [each.shape for each in both] == [(2, 5, 9), (2, 5, 3)]


def test_swish_is_silu() -> None:
    inputs: dict[str, Any] = CASE.inputs()
    linear, silu, swish = (cuconv.causal_conv1d_fn(**inputs, activation=name) for name in (None, "silu", "swish"))
    np.testing.assert_array_equal(silu, swish)
    assert (silu != linear).any()


def test_a_foreign_array_beside_a_numpy_one_is_refused() -> None:
    inputs: dict[str, Any] = CASE.inputs()
    with pytest.raises(TypeError, match=r"^weight: got a Foreign; wanted a NumPy array, as the first is$"):
        cuconv.causal_conv1d_fn(inputs["x"], Foreign(inputs["weight"]))


@pytest.mark.parametrize(
    "change",
    [
        lambda tensor, other: tensor.t_(),
        lambda tensor, other: tensor.resize_(3, 4),
        lambda tensor, other: tensor.unsqueeze_(0),
        lambda tensor, other: tensor.set_(other),
        lambda tensor, other: setattr(tensor, "data", other),
        lambda tensor, other: setattr(tensor, "data", other.half()),
    ],
)
def test_what_changes_in_a_torch_tensor_is_seen(change: Callable[[Any, Any], Any]) -> None:
    torch = pytest.importorskip("torch")
    tensor, other = torch.ones(4, 6), torch.ones(8, 6)[::2]
    family = arrays.family(tensor)
    assert family is not None
    before = family.inspect(("x",), (tensor,))
    assert family.inspect(("x",), (tensor,)) == before
    change(tensor, other)
    (pointer,), (facts,) = family.inspect(("x",), (tensor,))
    assert pointer == tensor.data_ptr() and facts is not None and [facts] != before[1]
    layout = family.layout("x", facts)
    assert (layout.shape, layout.strides) == (tuple(tensor.shape), tensor.stride())
    assert str(layout.dtype) == str(tensor.dtype).removeprefix("torch.")


def test_the_environment_may_change_at_any_time(monkeypatch: pytest.MonkeyPatch) -> None:
    family = arrays.family(np.zeros(1))
    assert family is not None
    words = {True: ("1", "true", "yes", "on", "YES", "True"), False: ("", "0", "false", "no", "off", "No", "OFF")}
    for value, wanted in [(value, wanted) for wanted, values in words.items() for value in values]:
        monkeypatch.setenv("CUCONV_CHECK", value)
        assert family.checks_contents() is wanted
        monkeypatch.delenv("CUCONV_CHECK")
        assert family.checks_contents() is False


@pytest.mark.parametrize("value", ["2", "01", "maybe", "nein", " "])
def test_an_unknown_word_in_the_environment_is_refused(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUCONV_CHECK", value)
    family = arrays.family(np.zeros(1))
    assert family is not None
    with pytest.raises(ValueError, match=rf"^CUCONV_CHECK: got '{value}'; wanted one of '', '0', "):
        family.checks_contents()


def test_threads_that_bring_the_first_array_at_once_share_one_family(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(arrays.NumpyFamily):
        def __init__(self) -> None:
            time.sleep(0.02)

    monkeypatch.setattr(arrays, "NumpyFamily", Slow)
    monkeypatch.setattr(arrays, "_families", {})
    monkeypatch.setattr(arrays, "_family_of_type", {})
    barrier, found = threading.Barrier(8), []

    def first() -> None:
        barrier.wait()
        found.append(arrays.family(np.zeros(1)))

    threads = [threading.Thread(target=first) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and len(set(map(id, found))) == 1
    assert arrays.family(np.zeros(1)) is found[0]


def test_types_that_programs_define_are_not_kept_alive() -> None:
    def call(base: type) -> weakref.ref[type]:
        kind = type("Own", (base,), {})
        inputs: dict[str, Any] = CASE.inputs()
        if base is np.ndarray:
            inputs = {name: array.view(kind) for name, array in inputs.items()}
        else:
            inputs = {name: kind(array) for name, array in inputs.items()}
        np.testing.assert_array_equal(
            np.asarray(cuconv.causal_conv1d_fn(**inputs)), cuconv.causal_conv1d_fn(**CASE.inputs())
        )
        return weakref.ref(kind)

    for base in (np.ndarray, Foreign):
        kind = call(base)
        gc.collect()
        assert kind() is None


def test_what_changes_in_a_numpy_array_is_seen() -> None:
    x, weight = np.arange(24, dtype=np.float32), np.ones((6, 2), np.float32)
    for shape in ((1, 6, 4), (2, 6, 2), (1, 6, 4)):
        x.shape = shape
        np.testing.assert_array_equal(cuconv.causal_conv1d_fn(x, weight), cuconv.causal_conv1d_fn(x.copy(), weight))


@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 1, 3), (1, 5, 1), (1, 1, 1), (4, 1, 1)])
@pytest.mark.parametrize("order", [*itertools.permutations(range(3))])
def test_a_new_array_lies_as_asked(shape: tuple[int, ...], order: tuple[int, ...]) -> None:
    like = np.zeros(1, np.float32)
    family = arrays.family(like)
    assert family is not None
    layout = dense(shape, order, layout_of(like))
    array, address = family.maker(layout)()
    assert address == array.ctypes.data and array.dtype == like.dtype
    assert array.shape == shape and array.strides == tuple(4 * stride for stride in layout.strides)


def layout_of(array: Any) -> arrays.Layout:
    family = arrays.family(array)
    assert family is not None and family.name == "NumPy"
    _, (facts,) = family.inspect(("x",), (array,))
    assert facts is not None and hash(facts) == hash(family.inspect(("x",), (array,))[1][0])
    return family.layout("x", facts)


def test_a_layout_counts_in_elements() -> None:
    array = np.zeros((4, 6), BFLOAT16.numpy)[::2, ::-3]
    layout = layout_of(array)
    assert layout.shape == (2, 2) and layout.strides == (12, -3) and layout.dtype is BFLOAT16
    assert (layout.device, layout.size, layout.itemsize) == (arrays.HOST, 4, 2)
    assert layout.offset == array.ctypes.data % 16


def test_a_foreign_byte_order_is_not_the_tables_dtype() -> None:
    assert layout_of(np.zeros(3, ">f4")).dtype == ">f4"
    assert layout_of(np.zeros(3, "<f4")).dtype is FLOAT32


@pytest.mark.parametrize("function", cuconv.OPERATORS)
def test_every_function_takes_and_gives_dlpack_arrays(function: str) -> None:
    workload = next(iter(workloads(SMALL, function, dtype="float32")))
    plain, wrapped = workload.host(), workload.host()
    wanted = getattr(cuconv, function)(**workload.call(plain))
    foreign = {name: StandardForeign(array) for name, array in wrapped.items()}
    got = getattr(cuconv, function)(**workload.call(foreign))
    for name in workload.updated:
        np.testing.assert_array_equal(wrapped[name], plain[name])
    for one, other in zip(wanted_of(got), wanted_of(wanted), strict=True):
        assert type(one) is StandardForeign
        np.testing.assert_array_equal(one.array, other)
    outs = [Foreign(np.full(out.shape, np.nan, np.float32)) for out in workload.outs.values()]
    foreign = {name: Foreign(array) for name, array in workload.host().items()}
    for one, other in zip(
        wanted_of(getattr(cuconv, function)(**workload.call(foreign))), wanted_of(wanted), strict=True
    ):
        assert type(one) is np.ndarray
        np.testing.assert_array_equal(one, other)
    foreign = {name: Foreign(array) for name, array in workload.host().items()}
    returned = wanted_of(getattr(cuconv, function)(**workload.call(foreign, outs)))
    assert all(one is other for one, other in zip(returned, outs, strict=True))
    for out, other in zip(outs, wanted_of(wanted), strict=True):
        np.testing.assert_array_equal(out.array, other)


def wanted_of(results: Any) -> list[Any]:
    """The results of a call that are not None."""
    return [each for each in (results if isinstance(results, tuple) else (results,)) if each is not None]
