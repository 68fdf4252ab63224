"""Which kernel the gradients of a selective scan run, and that every channel of short rows is walked once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuconv.bench import makers
from cuconv.runtime import machine
from cuconv.runtime.abstract import AbstractArray, launches_of
from cuconv.runtime.dtypes import BFLOAT16
from cuconv.runtime.plan import Launch
from cuconv.selective_scan.kernels_backward import LANE_TOKENS, SelectiveScanBwdOverlapped, SelectiveScanBwdShort
from tests.cases import numbers_of
from tests.selective_scan.cases_bwd import Case
from tests.support.layouts import LAYOUTS
from tests.support.plans import assert_launchable

PROCESSORS = 132


def planned(**sizes: Any) -> tuple[Launch, ...]:
    """The launches of gradients without states before chunks, on as many multiprocessors as an H200 has."""
    work = makers.MAKERS["selective_scan_bwd"](states=False, **sizes)
    with machine.assuming(PROCESSORS):
        launches = launches_of(makers.called(work), **work.abstract())
    for launch in launches:
        assert_launchable(launch)
    return launches


def shape_of(launch: Launch) -> tuple[int, int, int] | None:
    """The tokens an access, states and lanes of rows side by side; None of other kernels."""
    kernel = launch.kernel
    return (kernel.vec, kernel.states, kernel.lanes) if isinstance(kernel, SelectiveScanBwdShort) else None


def words_of(launches: Iterable[Launch]) -> list[Any]:
    """The kernels that read rows by words of two tokens, wherever they begin."""
    overlapped = (each.kernel for each in launches if isinstance(each.kernel, SelectiveScanBwdOverlapped))
    return [kernel for kernel in overlapped if kernel.vec == 1]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(1, 7, 259), (3, 6, 259), (2, 5, 300)])
def test_the_token_in_front_of_a_row_is_one_of_the_array(shape: tuple[int, int, int], layout: str) -> None:
    """Where rows are read by words of two tokens, one that begins inside of one."""
    case = Case(*shape, layout=layout)
    # Of others there are copies.
    if not words_of(case.launches()) or case.placements()["u"].layout.strides[2] != 1:
        return
    for name in ("u", "delta", "z", "dout"):
        lies = case.placements()[name].layout
        rows = np.add.outer(*(np.arange(n) * step for n, step in zip(lies.shape[:2], lies.strides[:2], strict=True)))
        elements = {int(each) for row in rows.flat for each in row + np.arange(lies.shape[2])}
        assert all(int(row) - 1 in elements for row in rows.flat if (lies.first + row) % 2)


def test_rows_of_an_odd_number_of_tokens_are_read_by_words() -> None:
    """Those of contiguous arrays of either order, and of halves of one."""
    for layout in ("channel_first", "dim_major"):
        assert words_of(Case(3, 6, 259, layout=layout).launches())
    assert not words_of(Case(3, 6, 259, layout="offset_by_1").launches())


@pytest.mark.parametrize(
    ("sizes", "d_state", "contiguous", "shape"),
    [
        ((16, 256, 24), 16, "tokens", (2, 16, 4)),
        ((1, 5120, 33), 16, "tokens", (1, 16, 8)),
        ((4, 5120, 128), 9, "tokens", (2, 16, 16)),
        ((8, 384, 197), 8, "tokens", (1, 8, 32)),
        ((8, 384, 197), 16, "tokens", None),
        ((64, 3072, 49), 1, "tokens", (1, 2, 8)),
        ((64, 1536, 48), 4, "tokens", (8, 4, 8)),
        ((64, 1536, 196), 3, "tokens", (4, 4, 32)),
        ((64, 1536, 257), 4, "tokens", None),
        ((1, 2048, 40), 17, "tokens", None),
        ((16, 256, 24), 16, "channels", (0, 16, 4)),
        ((256, 256, 24), 16, "channels", None),
        ((4, 256, 96), 16, "channels", None),
        ((8, 384, 128), 8, "channels", (0, 8, 16)),
        ((8, 384, 1), 16, "tokens", (0, 16, 4)),
    ],
)
def test_short_rows_are_walked_side_by_side_where_that_is_quickest(
    sizes: tuple[int, int, int], d_state: int, contiguous: str, shape: tuple[int, int, int] | None
) -> None:
    """Each of these calls runs the kernel that was quickest for it on an H200."""
    batch, dim, seqlen = sizes
    launches = planned(batch=batch, dim=dim, seqlen=seqlen, d_state=d_state, contiguous=contiguous)
    found = [each for each in map(shape_of, launches) if each]
    assert found == ([shape] if shape else [])
    # Nothing has to be marked or copied before.
    assert shape is None or len(launches) == 2


@given(st.integers(1, 40), st.integers(1, 600), st.integers(1, 5), st.integers(2, 128), st.integers(1, 16))
@settings(max_examples=200)
def test_every_channel_of_short_rows_has_one_place_in_one_block(
    batch: int, own: int, groups: int, seqlen: int, d_state: int
) -> None:
    dim = own * groups
    work = makers.MAKERS["selective_scan_bwd"](states=False, batch=batch, dim=dim, seqlen=seqlen, d_state=d_state)
    shape, strides = (batch, groups, d_state, seqlen), (groups * d_state * seqlen, d_state * seqlen, seqlen, 1)
    matrices = {name: AbstractArray(shape, strides, BFLOAT16) for name in ("B", "C", "dB", "dC")}
    with machine.assuming(PROCESSORS):
        launch, sums = launches_of(makers.called(work), **work.abstract() | matrices)
    kernel, numbers = launch.kernel, numbers_of(launch)
    assert isinstance(kernel, SelectiveScanBwdShort) and seqlen <= kernel.lanes * LANE_TOKENS
    splits, channels = numbers["splits"][0], numbers["split_channels"]
    assert channels % kernel.rows == 0 and (splits - 1) * channels < own <= splits * channels
    assert launch.config.grid[0] == batch * groups * splits and numbers_of(sums)["splits"][0] == splits
    assert d_state <= kernel.states
