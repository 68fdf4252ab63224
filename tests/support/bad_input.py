"""Good calls that are changed, and the one error that each change must raise before anything is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import cuconv
from tests.support.placement import POISON

FLOATS = "one of float32, float16, bfloat16"
INDICES = "one of int32, int64"
TAPS = "2 axes (dim, width)"
OWN_MEMORY = "memory of its own"
OWN_ADDRESS = "an address of its own for every element"
"""What errors say is wanted."""

KINDS = ("NumPy", pytest.param("CuPy", marks=pytest.mark.gpu))

Change = Callable[[Any, dict[str, Any]], dict[str, Any]]
"""The new arguments, from the module that makes arrays and a good call's arguments."""

Row = tuple[Change, type[Exception], str]
"""How a good call's arguments change, and the error that this must raise."""

Good = Mapping[str, Callable[[Any], dict[str, Any]]]
"""Good calls' arguments by public function, from the module that makes arrays."""


def module_of(kind: str) -> Any:
    return np if kind == "NumPy" else pytest.importorskip("cupy")


def poisoned(xp: Any, *shape: int) -> Any:
    array = xp.empty(shape, np.float32)
    array.view(np.uint8)[...] = POISON
    return array


def zeros(name: str, shape: tuple[int, ...], dtype: Any = np.float32) -> Change:
    return lambda xp, a: {name: xp.zeros(shape, dtype)}


def ints(name: str, values: list[int], dtype: Any = np.int32) -> Change:
    return lambda xp, a: {name: xp.asarray(values, dtype)}


def value(name: str, given: Any) -> Change:
    return lambda xp, a: {name: given}


def alias(written: str, of: str) -> Change:
    return lambda xp, a: {written: a[of]}


def also(*changes: Change) -> Change:
    """Several changes at once."""
    return lambda xp, a: {name: new for change in changes for name, new in change(xp, a).items()}


def broadcast(name: str, *lengths: int) -> Change:
    """An array that is to be written, with one address for all along its first axis."""
    return lambda xp, a: {name: xp.broadcast_to(a[name][:1], lengths)}


def of_one_memory(first: str, second: str, *, shared: int = 1) -> Change:
    """Two arrays, one behind the other but for this many shared elements."""

    def change(xp: Any, a: dict[str, Any]) -> dict[str, Any]:
        one, other = a[first], a[second]
        memory = xp.ones(one.size + other.size - shared, np.float32)
        return {
            first: memory[: one.size].reshape(one.shape),
            second: memory[one.size - shared :].reshape(other.shape),
        }

    return change


def overlapping(argument: str, other: str) -> str:
    return f"{argument}: got memory that overlaps {other}; wanted {OWN_MEMORY}"


def snapshot(arguments: dict[str, Any]) -> dict[str, list[bytes]]:
    """What every array holds, alone or one of several."""
    arrays = {name: given if isinstance(given, tuple) else (given,) for name, given in arguments.items()}
    return {name: [a.tobytes() for a in some if getattr(a, "size", 2**31) < 2**31] for name, some in arrays.items()}


def rows(tables: Mapping[str, Mapping[str, Row]]) -> list[Any]:
    """A pytest parameter for every row of every public function."""
    return [pytest.param(name, row, id=f"{name}-{key}") for name, table in tables.items() for key, row in table.items()]


def refuse(name: str, row: Row, kind: str, calls: Good) -> None:
    """The call, one of `calls` but for the row's change, raises this error, and all arrays hold what they held.

    Of an error that begins with "…" only what follows is compared.
    """
    xp = module_of(kind)
    change, error, wanted = row
    arguments = calls[name](xp)
    arguments |= change(xp, arguments)
    before = snapshot(arguments)
    with pytest.raises(error) as caught:
        getattr(cuconv, name)(**arguments)
    assert type(caught.value) is error
    got, end = str(caught.value), wanted.removeprefix("…").format(kind=kind)
    assert got.endswith(end) if wanted.startswith("…") else got == end
    assert snapshot(arguments) == before


def assert_good(name: str, arguments: dict[str, Any]) -> None:
    """The call gives back the arrays it was given for its results, and no NaN in them."""
    results = getattr(cuconv, name)(**arguments)
    outs = arguments["out"] if isinstance(arguments["out"], tuple) else (arguments["out"],)
    returned = results if isinstance(results, tuple) else (results,)
    assert all(result is out for result, out in zip(returned, outs, strict=True))
    assert not any(bool((out != out).any()) for out in outs)
