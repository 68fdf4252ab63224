"""Arguments that do not fit, or have no meaning together: the error names them, and nothing was written.

Tables are found in tests/<family>/bad_input*.py and tests/<family>/good_calls.py.
"""

from __future__ import annotations

import importlib
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from tests import cases
from tests.support.bad_input import KINDS, Change, Fine, Row, function_of, module_of, refuse, rows
from tests.support.placement import Array, bits


def found(name: str) -> dict[str, Any]:
    """The tables of this name of all families, as one."""
    files = sorted([*cases.TESTS.glob("*/bad_input*.py"), *cases.TESTS.glob("*/good_calls.py")])
    modules = [importlib.import_module(f"tests.{file.parent.name}.{file.stem}") for file in files]
    tables = [item for module in modules for item in getattr(module, name, {}).items()]
    assert len(dict(tables)) == len(tables) > 0
    return dict(tables)


GOOD = found("GOOD")
WRITTEN = found("WRITTEN")
EACH_KIND = pytest.mark.parametrize("kind", KINDS)


def changed(name: str, change: Change, kind: str) -> dict[str, Any]:
    """The arguments of a good call but for this change."""
    xp = module_of(kind)
    arguments: dict[str, Any] = GOOD[name](xp)
    return {**arguments, **change(xp, arguments)}


@EACH_KIND
@pytest.mark.parametrize(("name", "row"), rows(found("BAD")))
def test_a_bad_argument_is_named_and_nothing_is_written(name: str, row: Row, kind: str) -> None:
    change, error, wanted = row
    refuse(name, changed(name, change, kind), error, wanted.replace("{kind}", kind))


@EACH_KIND
@pytest.mark.parametrize(("name", "row"), rows(found("CONTENTS")))
def test_contents_are_checked_when_asked_for(name: str, row: Row, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUCONV_CHECK", "1")
    change, error, wanted = row
    refuse(name, changed(name, change, kind), error, wanted)
    monkeypatch.delenv("CUCONV_CHECK")
    function_of(name)(**changed(name, change, kind))


@EACH_KIND
@pytest.mark.parametrize(("name", "row"), rows(found("FINE")))
def test_checked_contents_may_be_padded_and_shared(
    name: str, row: Fine, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUCONV_CHECK", "1")
    change, is_live, slots = row
    arguments = changed(name, change, kind)
    pool = next(arguments[each] for each in ("state", "conv_state", "conv_states") if each in arguments)
    before = pool.copy()
    arguments["x"][...] = 2
    out = function_of(name)(**arguments)
    starts = arguments.get("query_start_loc")
    if starts is not None and "conv_state" not in arguments:
        out = out.swapaxes(0, 1)  # tokens behind channels
    outs = [*out] if starts is None else [out[begin:end] for begin, end in pairwise(starts.tolist()) if begin < end]
    assert [bool((each != 0).all()) for each in outs] == is_live
    assert [bool((each == 0).all()) for each in outs] == [not each for each in is_live]
    assert {slot for slot in range(len(pool)) if bool((pool[slot] != before[slot]).any())} == slots


def on_host(array: Any) -> Array:
    """A copy of a NumPy or CuPy array."""
    return np.array(array.get() if hasattr(array, "get") else array)


@EACH_KIND
@pytest.mark.parametrize("checked", ["", "0", "1"])
@pytest.mark.parametrize("name", GOOD)
def test_the_good_call_is_good(name: str, checked: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It returns the arrays that it is given for its results, without NaN, and changes others where it is to."""
    monkeypatch.setenv("CUCONV_CHECK", checked)
    arguments = GOOD[name](module_of(kind))
    written = {each: on_host(arguments[each]) for each in WRITTEN.get(name, {})}
    results = function_of(name)(**arguments)
    returned = results if isinstance(results, tuple) else () if results is None else (results,)
    names = [each for each in cases.kind(name.partition(":")[0]).OUTPUTS if each in arguments and each not in written]
    outs = arguments.get("out")
    given = outs if isinstance(outs, tuple) else [arguments[each] for each in names]
    assert all(result is out for result, out in zip(returned, given, strict=True))
    assert not any(bool((out != out).any()) for out in given)
    for each, before in written.items():
        is_to_change, after = np.zeros(before.shape, bool), on_host(arguments[each])
        is_to_change[WRITTEN[name][each]] = True
        assert ((bits(after) != bits(before)) == is_to_change).all() and np.isfinite(after[is_to_change]).all()


@EACH_KIND
@pytest.mark.parametrize(("name", "change"), rows(found("APART")))
def test_memory_that_nothing_else_is_written_to_is_taken(name: str, change: Change, kind: str) -> None:
    """Results are those of arrays in memory of their own."""
    arguments = changed(name, change, kind)
    alone = {each: given.copy() if hasattr(given, "copy") else given for each, given in arguments.items()}
    for call in (arguments, alone):
        results = function_of(name)(**call)
        assert (results[0] if isinstance(results, tuple) else results) is call["out"]
    case = cases.kind(name.partition(":")[0])
    for each in {*case.OUTPUTS, *case.UPDATED} & arguments.keys():
        assert arguments[each].tobytes() == alone[each].tobytes()


@pytest.mark.gpu
@pytest.mark.parametrize("argument", ["weight", "bias", "seq_idx", "initial_states", "out", "final_states_out"])
@pytest.mark.parametrize(("first", "second"), [("NumPy", "CuPy"), ("CuPy", "NumPy")])
def test_arrays_of_two_kinds_are_refused(argument: str, first: str, second: str) -> None:
    good = GOOD["causal_conv1d_fn"]
    arguments = {**good(module_of(first)), argument: good(module_of(second))[argument]}
    error = f"{argument}: got a {second} array; wanted a {first} array, as the first is"
    refuse("causal_conv1d_fn", arguments, TypeError, error)
