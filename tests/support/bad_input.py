"""Good calls that are changed, and the one error that each change must raise before anything is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import cuconv
from cuconv.runtime.layout import dense_strides
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

Tables = Mapping[str, Mapping[str, Row]]
"""Rows by call and name."""

Fine = tuple[Change, list[bool], set[int]]
"""How a good call's arguments change, which sequences that have tokens have results then, and what slots are written.
"""

Good = Mapping[str, Callable[[Any], dict[str, Any]]]
"""Good calls' arguments, from the module that makes arrays, by public function.

Behind a colon follows which call it is, where a function has several.
"""


def module_of(kind: str) -> Any:
    return np if kind == "NumPy" else pytest.importorskip("cupy")


def poisoned(xp: Any, *shape: int) -> Any:
    array = xp.empty(shape, np.float32)
    array.view(np.uint8)[...] = POISON
    return array


def zeros(name: str, shape: tuple[int, ...], dtype: Any = np.float32) -> Change:
    return lambda xp, a: {name: xp.zeros(shape, dtype)}


def ints(name: str, values: Any, dtype: Any = np.int32) -> Change:
    return lambda xp, a: {name: xp.asarray(values, dtype)}


def value(name: str, given: Any) -> Change:
    return lambda xp, a: {name: given}


def also(*changes: Change) -> Change:
    """Several changes at once."""
    return lambda xp, a: {name: new for change in changes for name, new in change(xp, a).items()}


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


def shape(name: str, got: tuple[int, ...], wanted: str, dtype: Any = np.float32) -> Row:
    """An array of another shape."""
    return zeros(name, got, dtype), ValueError, f"{name}: got shape {got}; wanted {wanted}"


def dtype(name: str, got: Any, wanted: str) -> Row:
    """The same array in another dtype."""
    error = f"{name}: got dtype {np.dtype(got)}; wanted {wanted}"
    return lambda xp, a: {name: xp.zeros(a[name].shape, got)}, TypeError, error


def given(name: str, got: Any, wanted: str) -> Row:
    """An argument that is no array, of another value."""
    return value(name, got), ValueError, f"{name}: got {got!r}; wanted {wanted}"


def mistyped(name: str, got: Any, wanted: str) -> Row:
    """An argument of another type."""
    return value(name, got), TypeError, f"{name}: got {got!r}; wanted {wanted}"


def no_array(name: str, got: Any) -> Row:
    """In place of any array but the first, what is none."""
    error = f"{name}: got a {type(got).__name__}; wanted a {{kind}} array, as the first is"
    return value(name, got), TypeError, error


def length(name: str, got: tuple[int, ...], axis: str, found: int, wanted: str, dtype: Any = np.float32) -> Row:
    """An array with an axis of another length."""
    return zeros(name, got, dtype), ValueError, f"{axis} of {name}: got {found}; wanted {wanted}"


def too_long(name: str, axis: int, length: int, word: str) -> Row:
    """One index of an axis, as often as one time more than an axis may be long."""

    def change(xp: Any, a: dict[str, Any]) -> dict[str, Any]:
        shape = a[name].shape
        one = a[name][(slice(None),) * axis + (slice(1),)]
        return {name: xp.broadcast_to(one, (*shape[:axis], length, *shape[axis + 1 :]))}

    return change, ValueError, f"{word} of {name}: got {length}; wanted 0 to {length - 1}"


def array(name: str, wanted: str, change: Change) -> Row:
    """An array that is given where it has no meaning, by this change."""
    return change, ValueError, f"{name}: got an array; wanted {wanted}"


def one_address(name: str, *lengths: int) -> Row:
    """An array of this shape that is to be written, with one address for all along its first axis."""
    strides = (0, *dense_strides(lengths, tuple(range(len(lengths))))[1:])
    error = f"{name}: got strides {strides} for shape {lengths}; wanted {OWN_ADDRESS}"
    return lambda xp, a: {name: xp.broadcast_to(a[name][:1], lengths)}, ValueError, error


def overlap(argument: str, other: str, change: Change | None = None) -> Row:
    """Two arrays in one memory: by this change, else as one and the same."""
    error = f"{argument}: got memory that overlaps {other}; wanted {OWN_MEMORY}"
    return change or (lambda xp, a: {argument: a[other]}), ValueError, error


def of_sequences(pool: str, pools: str = "") -> dict[str, Row]:
    """Rows of calls on three packed sequences with their states in a pool; `pools` names all that may be."""
    starts, slots, has = "query_start_loc", "cache_indices", "has_initial_state"
    only_with_pool = f"got an array; wanted None unless {pools or pool} is given"
    few, huge = f"slots of {pool}: got 2; wanted at least 3, one a sequence, or {slots}", 2**63
    return {
        "pool-int8": dtype(pool, np.int8, FLOATS),
        "pool-few-slots": (lambda xp, a: {pool: a[pool][:2], slots: None}, ValueError, few),
        "starts-float32": dtype(starts, np.float32, INDICES),
        "starts-rank-2": shape(starts, (4, 1), "1 axes (sequences + 1)", np.int32),
        "starts-none-at-all": (
            zeros(starts, (0,), np.int32), ValueError, f"sequences of {starts}: got -1; wanted 0 to 1073741824"
        ),
        "slots-int16": dtype(slots, np.int16, INDICES),
        "slots-count": shape(slots, (2,), "(3,) or longer (sequences)", np.int32),
        "slots-list": no_array(slots, [3, 0, 1]),
        "slots-without-pool": (also(value(pool, None), value(has, None)), ValueError, f"{slots}: {only_with_pool}"),
        "has-uint8": dtype(has, np.uint8, "bool"),
        "has-count": shape(has, (2,), "(3,) or longer (sequences)", bool),
        "has-without-pool": (also(value(pool, None), value(slots, None)), ValueError, f"{has}: {only_with_pool}"),
        "pad-float": mistyped("pad_slot_id", 0.0, "an int"),
        "pad-none": mistyped("pad_slot_id", None, "an int"),
        "pad-true": mistyped("pad_slot_id", True, "an int"),
        "pad-huge": (value("pad_slot_id", huge), ValueError, f"pad_slot_id: got {huge}; wanted an int of 64 bits"),
    }  # fmt: skip


def outside(name: str, slot: int, count: int) -> str:
    return f"{name}: got slot {slot}; wanted 0 to {count - 1}, or pad_slot_id"


def of_several(name: str, slot: int) -> str:
    return f"{name}: got slot {slot} for several sequences; wanted a slot of its own for each"


def snapshot(arguments: dict[str, Any]) -> dict[str, list[bytes]]:
    """What every array holds, alone or one of several."""
    arrays = {name: given if isinstance(given, tuple) else (given,) for name, given in arguments.items()}
    return {name: [a.tobytes() for a in some if getattr(a, "size", 2**31) < 2**31] for name, some in arrays.items()}


def rows(tables: Mapping[str, Mapping[str, Any]]) -> list[Any]:
    """A pytest parameter for every row of every call."""
    return [pytest.param(name, row, id=f"{name}-{key}") for name, table in tables.items() for key, row in table.items()]


def function_of(name: str) -> Any:
    """The public function of a call: its name up to a colon."""
    return getattr(cuconv, name.partition(":")[0])


def refuse(name: str, arguments: dict[str, Any], error: type[Exception], wanted: str) -> None:
    """The call raises this error, and all arrays hold what they held.

    Of an error that begins with "…" only what follows is compared.
    """
    before = snapshot(arguments)
    with pytest.raises(error) as caught:
        function_of(name)(**arguments)
    assert type(caught.value) is error
    got, end = str(caught.value), wanted.removeprefix("…")
    assert got.endswith(end) if wanted.startswith("…") else got == end
    assert snapshot(arguments) == before
