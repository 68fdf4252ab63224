"""What tests of all plans share: sizes, where elements of layouts lie, and what holds of every launch."""

from __future__ import annotations

from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from cuconv.runtime.kernel import Kernel
from cuconv.runtime.launch import MAX_DIVIDEND, WARP_SIZE
from cuconv.runtime.layout import Layout
from cuconv.runtime.operation import Operation
from cuconv.runtime.plan import Launch, Plan
from tests.cases import numbers_of
from tests.support.placement import Placement

FEW = st.sampled_from([1, 2, 3, 8, 64, 127])
MANY = st.sampled_from([1000, 4096, 65537, 2**20, 2**24 + 1, 2**30, MAX_DIVIDEND])
ANY = st.one_of(FEW, MANY)


@cache
def variants(cls: type[Kernel]) -> frozenset[Kernel]:
    """Everything that a kernel is compiled for."""
    return frozenset(cls.variants())


def planned(operation: Operation[Any], given: dict[str, Placement], *options: Any) -> tuple[Any, Launch]:
    """A valid call as its family has checked it, and its one launch; no example where there is nothing to compute."""
    names = dict.fromkeys([*operation.inputs, *operation.outputs, *given])
    layouts = {name: given[name].layout if name in given else None for name in names}
    checked = operation.check(layouts, *options)
    return checked.operands, only(operation.plan(checked.operands))


def only(plan: Plan) -> Launch:
    """The one launch of a plan; no example where there is none."""
    if not plan.launches:
        assume(False)
    (launch,) = plan.launches
    assert_launchable(launch)
    return launch


def assert_launchable(launch: Launch) -> None:
    """The kernel is compiled, and its blocks are along one axis, which an int32 counts, or along two or three."""
    assert launch.kernel in variants(type(launch.kernel))
    x, y, z = launch.config.grid
    assert x <= MAX_DIVIDEND and max(y, z) < 2**16 and launch.config.block[1:] == (1, 1)
    assert launch.config.block[0] <= 1024 and launch.config.block[0] % WARP_SIZE == 0


def some(length: int) -> list[int]:
    """Enough indices of an axis: what is a multiple for 0 and 1 is one for all."""
    return sorted({i for i in (0, 1, 2, 3, 7, length // 2, length - 1) if 0 <= i < length})


def addresses(layout: Layout, *axes: int) -> set[int]:
    """Where enough elements along these axes are, in elements from an aligned address."""
    found = {layout.first}
    for axis in axes:
        found = {at + index * layout.strides[axis] for at in found for index in some(layout.shape[axis])}
    return found


def assert_vectors(layout: Layout, vec: int, axis: int) -> None:
    """An axis divides into vectors of contiguous elements, which begin at aligned addresses."""
    if vec > 1:
        others = [i for i in range(len(layout.shape)) if i != axis % len(layout.shape)]
        assert layout.strides[axis] == 1 and layout.shape[axis] % vec == 0
        assert all(at % vec == 0 for at in addresses(layout, *others))


def assert_ranges_have_their_places(outs: tuple[Layout, ...], launch: Launch) -> None:
    """What the kernels find from the packed numbers of (…, heads, head_dim) is where the layouts say."""
    n = numbers_of(launch)
    ends = [*accumulate(out.shape[-2] * out.shape[-1] for out in outs)]
    assert n["ranges"] == len(outs) and list(n["range_end"][: len(outs)]) == ends and ends[-1] == n["dim"]
    for number, out in enumerate(outs):
        strides = tuple(n["out_stride"][4 * number : 4 * number + 4])
        assert strides == (0,) * (4 - len(out.strides)) + out.strides
        assert n["head_dim"][3 * number] == out.shape[-1]


def assert_packed_ranges_are_aligned(outs: tuple[Layout, ...], launch: Launch) -> None:
    """Where a range is written in vectors, they are whole and aligned."""
    vec, begin = launch.kernel.vec, 0  # type: ignore[attr-defined]
    for number, out in enumerate(outs):
        if vec > 1 and numbers_of(launch)["range_is_packed"][number]:
            axes = range(len(out.shape) - 1)
            assert out.strides[-1] == 1 or out.shape[-1] == 1
            assert out.shape[-1] % vec == 0 and begin % vec == 0
            assert all(at % vec == 0 for at in addresses(out, *axes))
        begin += int(np.prod(out.shape[-2:]))
