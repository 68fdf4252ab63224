"""What is planned for packed sequences: accesses are aligned, every element and every state is written exactly once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cuconv.causal_conv1d import kernels_varlen, plan_varlen
from cuconv.causal_conv1d.kernels import MAX_TOKENS
from cuconv.causal_conv1d.kernels_varlen import (
    CausalConv1dVarlenFwd,
    CausalConv1dVarlenRowsFwd,
    CausalConv1dVarlenShortrowsFwd,
)
from cuconv.causal_conv1d.plan_varlen import Operands, plan
from cuconv.causal_conv1d.split import WHOLE, Split
from cuconv.runtime.dtypes import FLOAT32, FLOATS, INT32
from cuconv.runtime.launch import MAX_DIVIDEND, WARP_SIZE, ceil_div
from cuconv.runtime.layout import HOST, Layout
from cuconv.runtime.plan import Launch
from tests.cases import numbers_of
from tests.causal_conv1d.varlen_work import WRITES, Problem, problems
from tests.support.placement import place
from tests.support.plans import (
    ANY,
    FEW,
    MANY,
    addresses,
    assert_packed_ranges_are_aligned,
    assert_ranges_have_their_places,
    assert_vectors,
    only,
    some,
)


@given(problems(), st.booleans())
@settings(max_examples=400)
def test_every_element_and_state_is_written_once(p: Problem, are_many: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if are_many:
            # Few sequences count as many.
            patch.setattr(kernels_varlen, "MANY_PREFIXES", 0)
            patch.setattr(plan_varlen, "MANY_SHORT", 0)
        launch = only(plan(p.o))
    assert_written_once(p, launch)


@pytest.mark.parametrize(
    ("count", "length", "singles", "staged"), [(40, 1, True, False), (20, 20, False, True), (2, 140, False, False)]
)
@pytest.mark.parametrize("dim", [100, 136])
def test_short_rows_are_written_once(dim: int, count: int, length: int, singles: bool, staged: bool) -> None:
    total = count * length
    x, weight = place(FLOAT32, (dim, total)).layout, place(FLOAT32, (dim, 4)).layout
    x = x._replace(device=HOST - 1)
    starts, slots = Layout((count + 1,), (1,), INT32, 0, 0), place(FLOAT32, (count, dim, 3)).layout
    out = x._replace(shape=(total, 1, dim), strides=(1, 0, total))
    o = Operands(x, weight, None, slots, starts, *[None] * 5, (out,), Split(), True, -1)
    launch = only(plan(o))
    kernel = launch.kernel
    assert isinstance(kernel, CausalConv1dVarlenShortrowsFwd)
    assert (kernel.singles, kernel.staged) == (singles, staged)
    assert_written_once(Problem(o, tuple(range(0, total + 1, length)), (True,) * count), launch)


def assert_written_once(p: Problem, launch: Launch) -> None:
    """Accesses are aligned, and threads write every element, and every state of a sequence with tokens, once."""
    assert_aligned(p.o, launch)
    assert_ranges_have_their_places(p.o.outs, launch)
    dim, total = p.o.x.shape
    written = np.zeros((dim, total), np.int32)
    states = np.zeros((len(p.is_live), dim), np.int32)
    for write in WRITES[type(launch.kernel)](p, launch):
        assert write.channels.stop <= dim
        written[write.channels.start : write.channels.stop, write.tokens] += 1
        if write.sequence >= 0:
            states[write.sequence, write.channels.start : write.channels.stop] += 1
    assert (written == 1).all()
    if p.o.weight.shape[1] > 1:
        has_state = np.array(p.is_live, bool) & (np.diff(p.starts) > 0)
        assert (states == has_state[:, None]).all()


def assert_aligned(o: Operands, launch: Launch) -> None:
    """Every address that the vector width makes a thread access is a multiple of it."""
    kernel, n = launch.kernel, numbers_of(launch)
    vec: int = kernel.vec  # type: ignore[attr-defined]
    total = o.x.shape[1]
    assert vec * o.x.itemsize <= 16
    if isinstance(kernel, CausalConv1dVarlenRowsFwd):
        assert_rows_are_aligned(o, launch, vec)
        return
    if isinstance(kernel, CausalConv1dVarlenShortrowsFwd):
        assert kernel.tile % vec == 0 and int(n["tiles"][0]) * kernel.tile >= total
        assert all(x % vec == to % vec == 0 for x, to in row_starts(o))
        return
    assert_vectors(o.x, vec, 0)
    assert_packed_ranges_are_aligned(o.outs, launch)
    begin = 0
    for number, out in enumerate(o.outs):
        if vec > 1 and (not n["range_is_packed"][number] or begin % vec):
            assert isinstance(kernel, CausalConv1dVarlenFwd) and kernel.routed
        begin += out.shape[1] * out.shape[2]
    if vec > 1 and o.conv_states is not None and n["states_are_packed"]:
        state, columns = o.conv_states, range(int(n["first_column"]), o.conv_states.shape[2])
        assert state.strides[1] == 1
        assert all((at + column * state.strides[2]) % vec == 0 for at in addresses(state, 0) for column in columns)


def assert_rows_are_aligned(o: Operands, launch: Launch, vec: int) -> None:
    """Vectors of x and out are aligned alike, and are enough wherever among aligned addresses a row begins."""
    n, total = numbers_of(launch), o.x.shape[1]
    phases = []
    for x, to in row_starts(o):
        phases.append(x % vec)
        assert to % vec == phases[-1]
    kernel: Any = launch.kernel
    assert int(n["row_tiles"][0]) * kernel.lane_vecs * WARP_SIZE * vec >= total + max(phases)


def row_starts(o: Operands) -> Iterator[tuple[int, int]]:
    """Where rows of contiguous tokens begin in x and in their output, of some channels."""
    dim, total = o.x.shape
    for channel in some(dim):
        begin = 0
        for out in o.outs:
            _, heads, head_dim = out.shape
            if channel < begin + heads * head_dim:
                head, at = divmod(channel - begin, head_dim)
                to = out.first + head * out.strides[1] + at * out.strides[2]
                break
            begin += heads * head_dim
        assert total == 1 or (o.x.strides[1] == out.strides[0] == 1)
        yield o.x.first + channel * o.x.strides[0], to


SIZES = st.one_of(FEW, MANY.map(lambda n: min(n, MAX_TOKENS)))


@given(
    st.tuples(ANY, SIZES),
    st.sampled_from(FLOATS),
    SIZES,
    st.sampled_from([(0, 1), (1, 0)]),
    st.sampled_from([0, 1]),
)
@example((1, MAX_TOKENS), FLOAT32, MAX_TOKENS, (1, 0), 0)
@settings(max_examples=600)
def test_indices_fit_at_any_size(
    shape: tuple[int, int], dtype: Any, sequences: int, order: tuple[int, int], normalized: int
) -> None:
    x, weight = place(dtype, shape, order=order).layout, place(dtype, (shape[0], 4)).layout
    x = x._replace(device=HOST - 132)
    starts = Layout((sequences + 1,), (1,), INT32, 0, 0)
    channel, token = x.strides
    out = x._replace(shape=(shape[1], 1, shape[0]), strides=(token, 0, channel))
    o = Operands(x, weight, None, None, starts, *[None] * 5, (out,), Split(normalized=normalized, eps=1e-6), True, -1)
    try:
        launch = only(plan(o))
    except ValueError:
        # Too large for one launch: said so, and before anything ran.
        return
    assert_aligned(o, launch)
    n = numbers_of(launch)
    kernel: Any = launch.kernel
    # What the kernels count in 32 bits: tokens, sequences and, unsigned, threads.
    if isinstance(kernel, CausalConv1dVarlenRowsFwd):
        assert int(n["row_tiles"][0]) * kernel.lane_vecs * WARP_SIZE * kernel.vec <= MAX_DIVIDEND
        assert int(n["group_blocks"][0]) * kernel.warps <= MAX_DIVIDEND
    elif isinstance(kernel, CausalConv1dVarlenShortrowsFwd):
        assert shape[1] <= int(n["tiles"][0]) * kernel.tile <= MAX_DIVIDEND
        assert shape[0] <= launch.config.grid[0] // int(n["tiles"][0]) * WARP_SIZE
    else:
        groups, prefix_groups, _ = map(int, n["mix"])
        is_fwd = isinstance(kernel, CausalConv1dVarlenFwd)
        rows, prefixes = (int(n["tiles"]), int(n["prefixes"])) if is_fwd else (kernel.warps, 1)
        tile_groups, most = groups - prefix_groups, MAX_DIVIDEND
        if is_fwd and kernel.whole:
            # A block has the tiles of several, and the last ones, counted unsigned, may have none.
            blocks = int(n["dim_blocks"][0])
            tile_groups, most = tile_groups * blocks // ceil_div(blocks, kernel.constants["kShare"]), 2 * MAX_DIVIDEND
        assert shape[1] <= tile_groups * rows * kernel.tokens <= most
        assert sequences <= prefix_groups * rows * prefixes <= MAX_DIVIDEND


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_every_way_to_be_unaligned(dtype: Any) -> None:
    """All small offsets of x and two outputs from an aligned address, and of their tokens from each other."""
    vectors, routed = set(), set()
    for shift, gap, size in np.ndindex(8, 8, 8):
        x = place(dtype, (16, 9), order=(1, 0), shift=shift, pad=(gap, 0)).layout._replace(device=HOST - 132)
        for out_shift, out_gap in {(0, 0), (shift, gap), (shift ^ 4, gap), (shift, gap ^ 2)}:
            outs = []
            for channels in (16 - size, size):
                lies = place(dtype, (9, 1, channels), shift=int(out_shift), pad=(0, 0, int(out_gap)))
                outs += [lies.layout] * (channels > 0)
            weight = place(dtype, (16, 4)).layout
            o = Operands(x, weight, None, None, *[None] * 6, tuple(outs), WHOLE, True, -1)
            launch = only(plan(o))
            assert_aligned(o, launch)
            vectors.add(launch.kernel.vec)  # type: ignore[attr-defined]
            routed.add(launch.kernel.routed)  # type: ignore[attr-defined]
    assert vectors >= {1, 2} and routed == {False, True}
