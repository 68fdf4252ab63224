"""Checks of arguments. All have passed before anything is launched or written."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from cuconv.runtime.dtypes import FLOAT32, FLOATS, INDICES, DType
from cuconv.runtime.errors import message, one_of
from cuconv.runtime.launch import MAX_DIVIDEND
from cuconv.runtime.layout import HOST, Layout, View


def rank(argument: str, shape: tuple[int, ...], axes: str) -> None:
    """The array has as many axes as `axes` names: `batch, dim, seqlen`."""
    wanted = axes.count(",") + 1
    if len(shape) != wanted:
        raise ValueError(message(argument, f"shape {tuple(shape)}", f"{wanted} axes ({axes})"))


def shape(argument: str, got: tuple[int, ...], wanted: tuple[int, ...], axes: str) -> None:
    """The array has exactly this shape."""
    if tuple(got) != wanted:
        raise ValueError(message(argument, f"shape {tuple(got)}", f"{wanted} ({axes})"))


def dtype(argument: str, got: DType | str, wanted: Sequence[DType | str]) -> None:
    """The element type is one of these."""
    if got not in wanted:
        raise TypeError(message(argument, f"dtype {got}", one_of(wanted)))


def between(argument: str, got: int, low: int, high: int) -> None:
    """A number lies in a closed range."""
    if not low <= got <= high:
        raise ValueError(message(argument, got, f"{low} to {high}"))


def choice(argument: str, got: object, wanted: Sequence[object]) -> None:
    """A value is one of these."""
    if got not in wanted:
        raise ValueError(message(argument, repr(got), one_of([repr(item) for item in wanted])))


def activation(got: object) -> None:
    """A value is the name of an activation, or None."""
    # The comparison comes last: an array would compare element by element.
    if got is not None and (not isinstance(got, str) or got not in ("silu", "swish")):
        wanted = one_of([repr(item) for item in (None, "silu", "swish")])
        raise ValueError(message("activation", _short(got), wanted))


def taps(weight: Layout | None, bias: Layout | None, dim: int, widths: range) -> None:
    """weight and bias are a filter of (dim, width), with one of these widths."""
    if weight is None:
        raise TypeError(message("weight", "None", "an array (dim, width)"))
    rank("weight", weight.shape, "dim, width")
    dtype("weight", weight.dtype, FLOATS)
    width = weight.shape[1]
    between("width of weight", width, widths[0], widths[-1])
    shape("weight", weight.shape, (dim, width), "dim of x, width")
    if bias is not None:
        dtype("bias", bias.dtype, tuple(dict.fromkeys((weight.dtype, FLOAT32))))
        shape("bias", bias.shape, (dim,), "dim of x")


def pool(argument: str, got: Layout, dim: int, columns: tuple[int, str], slots: tuple[int, str]) -> None:
    """An array is a pool (slots, dim, state_len) of convolution states.

    `columns` are the least columns per state, and their reason; `slots` the least slots, and the argument with which
    there may be fewer.
    """
    rank(argument, got.shape, "slots, dim, state_len")
    dtype(argument, got.dtype, FLOATS)
    count, _, state_len = got.shape
    between(f"slots of {argument}", count, 0, MAX_DIVIDEND)
    shape(argument, got.shape, (count, dim, state_len), "slots, dim of x, state_len")
    if state_len < columns[0]:
        raise ValueError(message(f"state_len of {argument}", state_len, f"at least {columns[0]} ({columns[1]})"))
    if count < slots[0]:
        wanted = f"at least {slots[0]}, one a sequence, or {slots[1]}"
        raise ValueError(message(f"slots of {argument}", count, wanted))


def device(argument: str, got: int, wanted: int, first: str) -> None:
    """The array is on the device of the first one."""
    if got != wanted:
        raise ValueError(message(argument, _device(got), f"{_device(wanted)}, where {first} is"))


def on_gpu(argument: str, got: int, hint: str) -> None:
    """The array is on a CUDA device, or on the GPU that a plan assumes."""
    if got == HOST:
        raise ValueError(message(argument, _device(got), f"a CUDA device ({hint})"))


def _device(number: int) -> str:
    return "an array on the CPU" if number == HOST else f"an array on CUDA device {number}"


def not_self_overlapping(argument: str, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    """An array to be written has no two elements at one address."""
    if 0 in shape:
        return
    reach = 0
    for stride, length in sorted((abs(s), n) for s, n in zip(strides, shape, strict=True) if n > 1):
        if stride <= reach:
            got = f"strides {tuple(strides)} for shape {tuple(shape)}"
            raise ValueError(message(argument, got, "an address of its own for every element"))
        reach += stride * (length - 1)


def overlap(one: View, other: View) -> bool:
    """Whether two views share an element."""
    return bool(np.shares_memory(_ghost(one), _ghost(other)))


def disjoint(argument: str, written: View, other_argument: str, other: View) -> None:
    """Two views share no element; the first is to be written."""
    if overlap(written, other):
        raise ValueError(message(argument, f"memory that overlaps {other_argument}", "memory of its own"))


class _Ghost:
    """An array for NumPy at an address that is never read: NumPy only compares its bounds."""

    def __init__(self, interface: dict[str, Any]) -> None:
        self.__array_interface__ = interface


def _ghost(view: View) -> Any:
    layout = view.layout
    return np.asarray(
        _Ghost(
            {
                "version": 3,
                "data": (view.pointer, True),
                "shape": layout.shape,
                "strides": tuple(stride * layout.itemsize for stride in layout.strides),
                "typestr": f"|V{layout.itemsize}",
            }
        )
    )


def integer(argument: str, got: object) -> int:
    """A value is an integer of 64 bits, Python's or NumPy's; returned as Python's."""
    # The exact type is tested first, because this is on the path of every call.
    if type(got) is not int:
        if isinstance(got, bool) or not isinstance(got, (int, np.integer)):
            raise TypeError(message(argument, _short(got), "an int"))
        got = int(got)
    if not -(2**63) <= got < 2**63:
        raise ValueError(message(argument, got, "an int of 64 bits"))
    return got


def natural(argument: str, got: object) -> int:
    """A value is an integer of at least 1; returned as Python's."""
    number = integer(argument, got)
    if number < 1:
        raise ValueError(message(argument, number, "at least 1"))
    return number


def column(got: object) -> int | None:
    """A value says which columns of a state hold its inputs: 0 the first, -1 the last, None the function's default."""
    if got is None:
        return None
    number = integer("first_column", got)
    choice("first_column", number, (0, -1, None))
    return number


def flag(argument: str, got: object) -> bool:
    """A value is true or false, a bool of Python or NumPy or one of the numbers 0 and 1; returned as Python's."""
    # The exact type is tested first, because this is on the path of every call.
    if type(got) is bool:
        return got
    if isinstance(got, np.bool_) or (isinstance(got, (int, np.integer)) and got in (0, 1)):
        return bool(got)
    raise TypeError(message(argument, _short(got), "True or False"))


def not_negative(argument: str, got: object) -> float:
    """A value is a finite number of at least 0; returned as Python's float."""
    if not isinstance(got, (int, float, np.integer, np.floating)) or isinstance(got, bool):
        raise TypeError(message(argument, _short(got), "a number"))
    if not 0.0 <= got < math.inf:
        raise ValueError(message(argument, got, "a number of at least 0"))
    return float(got)


def _short(got: object) -> str:
    """A value as an error shows it: an array by its type, because its contents may be long, or on a GPU."""
    return f"a {type(got).__name__}" if hasattr(got, "__dlpack__") else repr(got)


def sequence(argument: str, got: object) -> None:
    """A value is a list or a tuple."""
    if not isinstance(got, (list, tuple)):
        raise TypeError(message(argument, repr(got) if isinstance(got, int) else f"a {type(got).__name__}", "a tuple"))


def total(argument: str, parts: Sequence[int], wanted: int, axis: str) -> None:
    """Parts of an axis add up to its length."""
    if sum(parts) != wanted:
        raise ValueError(message(argument, f"{tuple(parts)}, in all {sum(parts)}", f"{wanted} in all ({axis})"))


def starts(argument: str, layout: Layout | None, most: int) -> int:
    """Check the boundaries of at most `most` packed sequences; returns how many there are, 1 without boundaries."""
    if layout is None:
        return 1
    rank(argument, layout.shape, "sequences + 1")
    dtype(argument, layout.dtype, INDICES)
    between(f"sequences of {argument}", layout.shape[0] - 1, 0, most)
    return layout.shape[0] - 1


def boundaries(argument: str, got: np.ndarray[Any, Any], wanted: int) -> None:
    """Sequences begin at 0, follow each other, and end within `wanted` tokens."""
    if len(got) and got[0] != 0:
        raise ValueError(message(f"{argument}[0]", got[0], "0"))
    if (falls := np.flatnonzero(np.diff(got) < 0)).size:
        i = int(falls[0]) + 1
        raise ValueError(message(f"{argument}[{i}]", got[i], f"at least {got[i - 1]}, where the sequence begins"))
    if len(got) and got[-1] > wanted:
        raise ValueError(message(f"{argument}[{len(got) - 1}]", got[-1], f"at most {wanted}, the number of tokens"))


def inside(argument: str, got: np.ndarray[Any, Any], count: int) -> None:
    """Slots are inside the pool."""
    if (outside := got[(got < 0) | (got >= count)]).size:
        raise ValueError(message(argument, f"slot {outside[0]}", f"0 to {count - 1}, or pad_slot_id"))


def slots(argument: str, got: np.ndarray[Any, Any], count: int) -> None:
    """Slots are inside the pool, and no two sequences share one."""
    inside(argument, got, count)
    used, times = np.unique(got, return_counts=True)
    if (twice := used[times > 1]).size:
        raise ValueError(message(argument, f"slot {twice[0]} for several sequences", "a slot of its own for each"))


def rows(argument: str, got: np.ndarray[Any, Any], count: int, pad_slot_id: int) -> None:
    """Rows are inside the buffer, and no two sequences share one. Negative numbers are no rows, and neither is a
    pad_slot_id outside the buffer.
    """
    slots(argument, got[(got >= 0) & ((got != pad_slot_id) | (pad_slot_id < count))], count)


def not_read_by_others(
    argument: str,
    written: np.ndarray[Any, Any],
    writers: np.ndarray[Any, Any],
    read: np.ndarray[Any, Any],
    readers: np.ndarray[Any, Any],
) -> None:
    """No sequence starts from a slot that another one writes: the order of the two would not be defined."""
    writer = dict(zip(written.tolist(), writers.tolist(), strict=True))
    for slot, reader in zip(read.tolist(), readers.tolist(), strict=True):
        if writer.get(slot, reader) != reader:
            raise ValueError(message(argument, f"slot {slot}, which another sequence starts from", "a slot of its own"))
