"""Plans of selective scans: accesses are aligned, and every token of every channel has its lanes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuconv.runtime import machine
from cuconv.runtime.dtypes import BFLOAT16, FLOAT32, FLOATS, INT32, DType
from cuconv.runtime.launch import MAX_DIVIDEND, ceil_div
from cuconv.runtime.layout import Layout
from cuconv.runtime.plan import Launch, Plan
from cuconv.selective_scan.check import Inputs
from cuconv.selective_scan.kernels import (
    MAX_STATE,
    MAX_TOKENS,
    SHAPES,
    SHARED,
    TILE_TIMES,
    PartsKernel,
    SelectiveScanAlign,
    SelectiveScanCarry,
    SelectiveScanShortFwd,
    SelectiveScanTilesFwd,
    SelectiveScanVarlenTilesFwd,
    TileShape,
    chunk_tokens,
    lanes_for,
    own_tokens,
)
from cuconv.selective_scan.plan import channels_of_blocks
from cuconv.selective_scan.plan_dense import (
    FEW_SHORT,
    Operands,
    Segments,
    alike,
    plan,
    segments,
    tile_shapes,
    uncut,
    with_phases,
)
from cuconv.selective_scan.plan_short import short_rows
from cuconv.selective_scan.plan_varlen import Operands as PackedOperands
from cuconv.selective_scan.plan_varlen import plan as plan_packed
from tests.cases import numbers_of
from tests.support.placement import place
from tests.support.plans import ANY, FEW, MANY, addresses, assert_launchable, only, some

THREADS = 128
LENGTHS = st.one_of(FEW, MANY.map(lambda n: min(n, MAX_TOKENS)))


def layout(dtype: Any, shape: tuple[int, ...], **lies: Any) -> Layout:
    """The layout of an array on no device, for which plans assume the reference GPU."""
    return place(dtype, shape, **lies).layout._replace(device=machine.assumed_device())


def inputs(shape: tuple[int, int, int], d_state: int, dtype: Any = BFLOAT16, matrix: Any = None, **lies: Any) -> Inputs:
    """The arrays of a call, z absent and delta as u."""
    batch, dim, seqlen = shape
    u, A = layout(dtype, shape, **lies), layout(FLOAT32, (dim, d_state))
    B = matrix or layout(dtype, (batch, 1, d_state, seqlen))
    return Inputs(u, u, A, B, B, None, None, None, u, True)


def operands(shape: tuple[int, int, int], d_state: int, *more: Any, **lies: Any) -> Operands:
    """A call with arrays like u, and a last state."""
    batch, dim, _ = shape
    last = layout(FLOAT32, (batch, dim, d_state))
    return Operands(inputs(shape, d_state, *more, **lies), last_state=last)


def aligned(o: Operands) -> Operands:
    """The call that a plan has left when it has copied arrays that are not aligned, or those of rows with phases."""
    shapes = tile_shapes(o.inputs)
    phases = None if shapes else with_phases(o)
    copied = None if shapes else phases or alike(o.inputs)
    stays = copied is None or short_rows(o.inputs, shapes, lambda: True, lambda: phases is not None)
    return o if stays or copied is None else o._replace(inputs=copied.operands)


def planned_segments(o: Operands) -> Segments:
    """The segments that a plan has, where it copies nothing."""
    shapes = tile_shapes(o.inputs)
    has_phases = not shapes and with_phases(o) is not None
    has_copies = has_phases or (not shapes and alike(o.inputs) is not None)
    is_short = short_rows(o.inputs, shapes, lambda: has_copies, lambda: has_phases)
    return uncut(o.inputs) if is_short else segments(o.inputs, shapes)


def test_lanes_have_every_state() -> None:
    for d_state in range(1, MAX_STATE + 1):
        lanes, states = lanes_for(d_state)
        assert lanes * states >= d_state
        # No fewer would do.
        assert all(a * b < d_state for a, b in SHAPES[: SHAPES.index((lanes, states))])


@given(st.tuples(ANY, ANY, LENGTHS), st.integers(1, MAX_STATE))
@settings(max_examples=400)
def test_segments_are_all_of_a_row(shape: tuple[int, int, int], d_state: int) -> None:
    o = aligned(operands(shape, d_state))
    cut = planned_segments(o)
    assert cut.tokens % chunk_tokens() == 0
    assert (cut.per_row - 1) * cut.tokens < max(shape[2], 1) <= cut.per_row * cut.tokens
    scratch = 0
    if cut.per_row > 1:
        # The kernels count the states of all rows in 32 bits.
        assert shape[0] * shape[1] * d_state <= MAX_DIVIDEND
        scratch = shape[0] * cut.per_row * shape[1] * (d_state + 1) * FLOAT32.itemsize
    try:
        assert plan(o).scratch == scratch
    except ValueError:
        # Too large for one launch: said so, and before anything ran.
        return


def test_segments_follow_the_number_of_multiprocessors() -> None:
    """Half as many multiprocessors are filled by half as many segments."""
    found = []
    for count in (132, 66):
        with machine.assuming(count):
            o = inputs((1, 128, 65536), 16)
            found.append(segments(o, tile_shapes(o)).per_row)
    assert found[0] == 2 * found[1] > 2


@given(st.tuples(ANY, ANY, LENGTHS), st.integers(1, MAX_STATE))
@settings(max_examples=400)
def test_grids_have_every_channel_at_any_size(shape: tuple[int, int, int], d_state: int) -> None:
    batch, dim, _ = shape
    o = aligned(operands(shape, d_state))
    try:
        launches = plan(o).launches
    except ValueError:
        # Too large for one launch: said so, and before anything ran.
        return
    cut = planned_segments(o)
    assert len(launches) == (3 if cut.per_row > 1 else 1)
    for launch in launches:
        assert_launchable(launch)
        kernel: Any = launch.kernel
        n = numbers_of(launch)
        assert launch.config.block == (THREADS, 1, 1)
        if isinstance(launch.kernel, SelectiveScanCarry):
            assert launch.config.threads >= batch * dim * d_state
            assert (n["states"][0], n["channels"][0]) == (d_state, dim)
            continue
        each = ceil_div(channels_of_blocks(o.inputs, kernel.channels), kernel.channels)
        # Where warps share states a block may take several channels one after another.
        assert n["dim_blocks"][0] == each or (isinstance(kernel, PartsKernel) and n["dim_blocks"][0] < each)
        assert launch.config.grid[0] == n["dim_blocks"][0] * n["segments"][0] * batch
        assert (n["segments"][0], n["segment_tokens"]) == cut


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("d_state", [1, 8, 16, 32])
def test_every_way_to_be_unaligned(dtype: Any, d_state: int) -> None:
    """All small offsets of u and B from an aligned address, and of their rows from each other."""
    accesses = set()
    for shift, gap in np.ndindex(8, 8):
        matrix = layout(dtype, (2, 1, d_state, 24), shift=int(gap), pad=(0, 0, 0, int(shift)))
        o = operands((2, 3, 24), d_state, dtype, matrix, shift=int(shift), pad=(0, 0, int(gap)))
        launch = only(plan(o))
        assert_aligned(o.inputs, launch)
        accesses.add(accesses_of(launch)[:2])
    lanes, _ = lanes_for(d_state)
    widest = 16 // dtype.itemsize
    # One state has a kernel of its own, with four tokens a lane.
    assert {vec for vec, _ in accesses} >= {1, min(4 if d_state == 1 else own_tokens(lanes), widest)}
    assert {vec for _, vec in accesses} >= {1, min(4, widest) if d_state == 1 else widest}


def accesses_of(launch: Launch) -> tuple[int, int, int]:
    """Elements an access of u, B and C."""
    kernel: Any = launch.kernel
    if isinstance(kernel, SelectiveScanTilesFwd | SelectiveScanVarlenTilesFwd):
        return (16 // kernel.input_t.itemsize,) * 3
    if isinstance(kernel, PartsKernel | SelectiveScanShortFwd):
        return (kernel.vec,) * 3
    assert kernel.vec <= own_tokens(kernel.lanes)
    return kernel.vec, kernel.b_vec, kernel.c_vec


@pytest.mark.parametrize("seqlen", [1, 15, 16, 63, 64, 255, 256, 4096])
@pytest.mark.parametrize("groups", [1, 2, 48])
def test_tiles_are_no_longer_than_rows_and_channels_of_a_block_are_of_one_group(seqlen: int, groups: int) -> None:
    for dim in (4800, 9600, 19200, 49152):
        matrix = layout(BFLOAT16, (1, groups, 16, seqlen), pad=(0, 0, 0, -seqlen % 8))
        o = operands((1, dim, seqlen), 16, BFLOAT16, matrix, pad=(0, 0, -seqlen % 8))
        kernel = plan(o).launches[-1].kernel
        if isinstance(kernel, SelectiveScanTilesFwd):
            shape = TileShape(kernel.lanes, kernel.parts, kernel.at_once, kernel.tokens, kernel.resident)
            assert shape in TILE_TIMES and shape.fits(BFLOAT16, 16, seqlen)
            assert groups == 1 or dim // groups % shape.channels == 0
        else:
            fitting = [shape for shape in TILE_TIMES if shape.fits(BFLOAT16, 16, seqlen)]
            is_short = seqlen < SHARED and dim <= 2 * FEW_SHORT * machine.multiprocessors(o.inputs.u.device)
            assert seqlen < 8 or is_short or dim // groups % min(shape.channels for shape in fitting)


@pytest.mark.parametrize(
    ("seqlen", "rows", "by_channel", "dtype", "is_there"),
    [
        (24, 128, False, BFLOAT16, False),
        (24, 144, False, BFLOAT16, True),
        (24, 64, True, BFLOAT16, False),
        (24, 80, True, BFLOAT16, True),
        (56, 64, False, FLOAT32, False),
        (56, 80, False, FLOAT32, True),
        (64, 32, False, BFLOAT16, True),
    ],
)
def test_one_lane_takes_short_rows_where_many_fill_the_gpu(
    seqlen: int, rows: int, by_channel: bool, dtype: DType, is_there: bool
) -> None:
    order: Any = {"order": (0, 1, 3, 2)} if by_channel else {}
    matrix = layout(dtype, (1, 1, 16, seqlen), **order)
    lies: Any = {"order": (0, 2, 1)} if by_channel else {}
    dim = rows * machine.multiprocessors(matrix.device)
    kernel = only(plan(operands((1, dim, seqlen), 16, dtype, matrix, **lies))).kernel
    assert isinstance(kernel, SelectiveScanTilesFwd) == is_there


@pytest.mark.parametrize(
    ("batch", "dim", "shape"),
    [(1, 1536, (16, 2, 2)), (1, 5120, (1, 8, 2)), (1, 8192, (1, 8, 2)), (8, 1536, (1, 4, 4)), (8, 8192, (1, 2, 8))],
)
def test_the_shape_of_tiles_is_what_was_quickest(batch: int, dim: int, shape: tuple[int, int, int]) -> None:
    """The quickest shape of all, measured on an H200: a check of the model that chooses."""
    kernel: Any = plan(operands((batch, dim, 4096), 16)).launches[-1].kernel
    assert isinstance(kernel, SelectiveScanTilesFwd)
    assert (kernel.lanes, kernel.parts, kernel.at_once) == shape


@pytest.mark.parametrize(
    ("batch", "dim", "shape"),
    [
        (1, 1024, (16, 2, 4)),
        (1, 2048, (8, 2, 4)),
        (1, 3072, (16, 1, 4)),
        (1, 5120, (1, 8, 2)),
        (1, 8192, (1, 4, 4)),
        (8, 1536, (1, 4, 4)),
        (8, 5120, (1, 4, 4)),
    ],
)
def test_the_shape_of_tiles_is_what_was_quickest_by_channel(batch: int, dim: int, shape: tuple[int, int, int]) -> None:
    """The same where channels are contiguous, not tokens. Shapes with four states at a time were measured with packed
    sequences.
    """
    matrix = layout(BFLOAT16, (batch, 1, 16, 2048), order=(0, 1, 3, 2))
    o = operands((batch, dim, 2048), 16, BFLOAT16, matrix, order=(0, 2, 1))
    kernel: Any = plan(o).launches[-1].kernel
    assert isinstance(kernel, SelectiveScanTilesFwd) and kernel.by_channel
    assert (kernel.lanes, kernel.parts, kernel.at_once) == shape


def names_of(launches: Iterable[Launch], rows: int) -> list[str]:
    """The kernels of a scan of this many channels of all rows or sequences, with the lanes of a channel and: where
    warps share its states, the channels that they take one after another; where lanes own them, the tokens of each;
    where there are tiles, the partitions of the states.
    """
    names: list[str] = []
    for launch in launches:
        kernel: Any = launch.kernel
        name = kernel.unit.removeprefix("selective_scan_").removeprefix("varlen_").removesuffix("_fwd")
        if isinstance(kernel, PartsKernel):
            names.append(f"parts {kernel.lanes} {ceil_div(rows, kernel.channels * launch.config.grid[0])}")
        elif isinstance(kernel, SelectiveScanShortFwd):
            names.append(f"short {kernel.lanes} {kernel.tokens}")
        elif isinstance(kernel, SelectiveScanTilesFwd | SelectiveScanVarlenTilesFwd):
            is_mixed = getattr(kernel, "mixed", False)
            names.append(f"{'mixed' if is_mixed else 'tiles'} {kernel.lanes} {kernel.parts}")
        # B and C are copied by a launch of their own.
        elif name != "align" or names[-1:] != [name]:
            names.append(name)
    return names


@pytest.mark.parametrize(
    ("shape", "d_state", "quickest"),
    [
        ((1, 256, 96), 16, ["parts 16 1"]),
        ((1, 512, 64), 16, ["parts 8 1"]),
        ((1, 1024, 64), 16, ["tiles 1 8"]),
        ((2, 768, 196), 16, ["parts 8 1"]),
        ((8, 384, 197), 16, ["align", "tiles 16 1"]),
        ((16, 384, 197), 16, ["align", "tiles 1 8"]),
        ((1, 1536, 250), 16, ["parts 8 1"]),
        ((1, 1536, 200), 16, ["tiles 8 2"]),
        ((8, 1536, 100), 16, ["align", "tiles 1 4"]),
        ((4, 1536, 96), 16, ["tiles 1 8"]),
        ((64, 1536, 196), 16, ["align", "tiles 1 2"]),
        ((64, 1536, 197), 16, ["align", "tiles 1 2"]),
        ((16, 384, 196), 8, ["parts 8 3"]),
        ((64, 3072, 96), 8, ["tiles 1 1"]),
        ((32, 1024, 1024), 8, ["tiles 4 1"]),
        ((64, 1536, 64), 4, ["tiles 4 1"]),
        ((64, 1536, 196), 4, ["short 8 4"]),
        ((2, 768, 196), 4, ["short 32 4"]),
        ((4, 256, 96), 4, ["parts 16 1"]),
        ((1, 1536, 301), 4, ["parts 8 1"]),
        ((4, 1536, 500), 4, ["short 16 4"]),
        ((8, 1536, 2047), 4, ["align", "tiles 4 1"]),
        ((64, 1536, 196), 1, ["short 8 4"]),
        ((64, 3072, 49), 1, ["short 8 4"]),
        ((4, 128, 49), 1, ["short 16 4"]),
        ((64, 1536, 8), 1, ["tiles 1 1"]),
        ((64, 768, 3136), 1, ["short 8 8"]),
        ((1, 1536, 2048), 1, ["short 32 8"]),
        ((1, 1536, 8192), 1, ["short 32 8"]),
        ((8, 1536, 2047), 1, ["align", "tiles 8 1"]),
        ((1, 256, 4096), 1, ["tiles 8 1", "carry", "tiles 8 1"]),
        ((1, 1536, 2048), 2, ["short 32 4"]),
        ((8, 1536, 2048), 2, ["tiles 4 1"]),
        ((1, 512, 1500), 2, ["parts 32 1"]),
        ((1, 256, 512), 16, ["parts 32 1"]),
        ((1, 256, 4096), 16, ["parts 32 1"]),
        ((1, 256, 1500), 16, ["parts 32 1"]),
        ((1, 1536, 515), 16, ["align", "tiles 16 2"]),
        ((1, 300, 1024), 16, ["tiles 16 2"]),
        ((1, 256, 512), 4, ["parts 32 1"]),
        ((1, 512, 8192), 16, ["tiles 16 2"]),
        ((1, 256, 8192), 16, ["tiles 8 1", "carry", "tiles 8 1"]),
        ((1, 1536, 4096), 3, ["tiles 8 1", "carry", "tiles 8 1"]),
    ],
)
def test_scans_of_few_rows_and_few_states_run_what_was_quickest(
    shape: tuple[int, int, int], d_state: int, quickest: list[str]
) -> None:
    """The kernels that were quickest on an H200."""
    found = names_of(plan(operands(shape, d_state)).launches, shape[0] * shape[1])
    assert found == quickest


@pytest.mark.parametrize("by_channel", [False, True])
@pytest.mark.parametrize(("d_state", "is_there"), [(24, True), (26, False), (MAX_STATE, True)])
def test_lanes_share_the_tokens_of_long_rows_of_many_states(d_state: int, by_channel: bool, is_there: bool) -> None:
    """From as many tokens on as make that quicker, and with as many blocks at a time."""

    def kernel_of(batch: int, seqlen: int) -> Any:
        order = {"order": (0, 1, 3, 2)} if by_channel else {}
        matrix = layout(BFLOAT16, (batch, 1, d_state, seqlen), **order)
        rows = {"order": (0, 2, 1)} if by_channel else {}
        return only(plan(operands((batch, 2048, seqlen), d_state, BFLOAT16, matrix, **rows))).kernel

    least = 256 if by_channel else 128
    assert not isinstance(kernel_of(8, least - 8), SelectiveScanTilesFwd)
    few, many = kernel_of(1, least), kernel_of(8, least)
    assert isinstance(few, SelectiveScanTilesFwd) == is_there
    if is_there:
        assert few.most_states == (128 if d_state <= 128 else MAX_STATE)
        assert (few.by_channel, few.resident, many.resident) == (by_channel, 2, 3 if by_channel else 2)


def packed_operands(dim: int, total: int, sequences: int, d_state: int, *, by_channel: bool = False) -> PackedOperands:
    """The arguments of a call on packed sequences."""
    o = inputs((1, dim, total), d_state)
    if by_channel:
        matrix = layout(BFLOAT16, (1, 1, d_state, total), order=(0, 1, 3, 2))
        o = inputs((1, dim, total), d_state, BFLOAT16, matrix, order=(0, 2, 1))
    starts = layout(INT32, (sequences + 1,))
    return PackedOperands(o, None, starts, None, None, None, None, -1, keeps_padding=False)


def packed(dim: int, total: int, sequences: int, d_state: int, *, by_channel: bool = False) -> Launch:
    """The launch of a call on packed sequences."""
    planned = plan_packed(packed_operands(dim, total, sequences, d_state, by_channel=by_channel))
    # Copies of arrays that are not aligned come in front, and behind.
    scans = tuple(launch for launch in planned.launches if not isinstance(launch.kernel, SelectiveScanAlign))
    return only(planned._replace(launches=scans))


@given(FEW, st.integers(1, 20000), st.integers(0, 5000), st.integers(1, MAX_STATE))
@settings(max_examples=300)
def test_every_packed_sequence_has_its_blocks(dim: int, total: int, sequences: int, d_state: int) -> None:
    launch = packed(dim, total, sequences, d_state)
    n, kernel = numbers_of(launch), cast("Any", launch.kernel)
    lanes = kernel.lanes * getattr(kernel, "parts", 1)
    if isinstance(kernel, PartsKernel):
        assert 1 <= n["dim_blocks"][0] <= ceil_div(dim, kernel.channels)
    else:
        phases = 1 << n["phase_bits"] if isinstance(kernel, SelectiveScanVarlenTilesFwd) else 1
        assert n["dim_blocks"][0] == phases * ceil_div(dim * lanes, THREADS * phases)
    # A warp looks at all sequences of a run at a time, and at where the next one begins.
    assert 1 <= n["run_sequences"] < 32
    run_blocks = launch.config.grid[0] - n["dim_blocks"][0] * n["long_at_a_time"]
    # The padding in front and behind counts as sequences, too.
    possible = min(sequences + 2, total // (n["short_tokens"] + 1))
    assert n["long_goes_on"] == (n["long_at_a_time"] < possible)
    if n["short_tokens"] == 0:
        assert run_blocks == 0 and n["long_at_a_time"] == min(possible, max(1, sequences))
    else:
        runs, rest = divmod(run_blocks, ceil_div(dim, THREADS))
        assert rest == 0 and runs * n["run_sequences"] >= sequences + 2
        assert n["runs"][0] == (ceil_div(dim, THREADS) if n["run_by_run"] else runs)
        assert min(1, possible) <= n["long_at_a_time"] <= possible
    if isinstance(kernel, SelectiveScanVarlenTilesFwd):
        assert kernel.mixed == (n["short_tokens"] > 0)
        assert kernel.mixed or n["long_at_a_time"] == max(1, sequences)


@pytest.mark.parametrize(
    ("dim", "sequences", "total", "d_state", "quickest"),
    [
        (1024, 1, 33, 16, ["parts 8 1"]),
        (1024, 1, 100, 16, ["parts 16 1"]),
        (1024, 1, 250, 16, ["parts 16 1"]),
        (4096, 1, 100, 16, ["align", "tiles 1 8"]),
        (1024, 3, 303, 16, ["align", "tiles 1 8"]),
        (2048, 1, 250, 4, ["parts 8 1"]),
        (1024, 1, 64, 16, ["parts 8 1"]),
        (4096, 1, 64, 16, ["tiles 1 8"]),
        (1024, 1, 104, 16, ["tiles 16 1"]),
        (8192, 1, 51, 16, ["fwd"]),
        (8192, 1, 201, 16, ["align", "tiles 1 8"]),
        (1024, 8, 512, 16, ["tiles 1 8"]),
        (2048, 32, 3072, 16, ["tiles 1 4"]),
        (512, 64, 5120, 16, ["tiles 1 8"]),
        (512, 64, 512, 16, ["mixed 16 1"]),
        (2048, 64, 2048, 16, ["mixed 16 1"]),
        (8192, 512, 8192, 16, ["mixed 8 1"]),
        (1024, 8, 512, 8, ["tiles 4 1"]),
        (1024, 32, 1024, 8, ["mixed 16 1"]),
    ],
)
def test_packed_scans_run_what_was_quickest(
    dim: int, sequences: int, total: int, d_state: int, quickest: list[str]
) -> None:
    """The kernels that were quickest on an H200, or nearly so."""
    launches = plan_packed(packed_operands(dim, total, sequences, d_state)).launches
    found = names_of(launches, sequences * dim)
    assert found == quickest


@pytest.mark.parametrize(
    ("dim", "sequences", "shape"),
    [(8192, 1, (1, 8, 2)), (8192, 393, (8, 1, 1)), (1536, 1, (16, 2, 2)), (1536, 393, (16, 1, 4))],
)
def test_one_long_sequence_among_single_tokens_has_many_lanes_where_channels_are_few(
    dim: int, sequences: int, shape: tuple[int, int, int]
) -> None:
    kernel: Any = packed(dim, 8192, sequences, 16).kernel
    assert isinstance(kernel, SelectiveScanVarlenTilesFwd)
    assert (kernel.lanes, kernel.parts, kernel.at_once) == shape


@pytest.mark.parametrize(
    ("dim", "by_channel", "shape"),
    [
        (512, False, (16, 2, 4, 16, 2)),
        (1024, False, (16, 2, 4, 16, 2)),
        (1536, False, (16, 2, 2, 16, 3)),
        (2048, False, (16, 1, 4, 16, 2)),
        (3072, False, (16, 1, 4, 8, 3)),
        (8192, False, (1, 8, 2, 64, 4)),
        (512, True, (16, 2, 4, 16, 2)),
        (1024, True, (16, 2, 4, 16, 2)),
        (1536, True, (16, 2, 2, 16, 3)),
        (2048, True, (8, 2, 4, 16, 2)),
        (3072, True, (16, 1, 4, 8, 3)),
        (4096, True, (1, 8, 2, 64, 4)),
        (8192, True, (1, 4, 4, 64, 4)),
    ],
)
def test_the_shape_of_a_packed_sequence_s_tiles_is_what_was_quickest(
    dim: int, by_channel: bool, shape: tuple[int, ...]
) -> None:
    kernel: Any = packed(dim, 8192, 1, 16, by_channel=by_channel).kernel
    assert isinstance(kernel, SelectiveScanVarlenTilesFwd) and kernel.by_channel == by_channel
    assert (kernel.lanes, kernel.parts, kernel.at_once, kernel.tokens, kernel.resident) == shape


def assert_aligned(o: Inputs, launch: Launch) -> None:
    """Every address that a width makes a thread access is a multiple of it."""
    for each, vec in zip((o.u, o.B, o.C), accesses_of(launch), strict=True):
        assert vec == 1 or each.strides[-1] == 1
        assert vec * each.itemsize <= 16
        for at in addresses(each, *range(len(each.shape) - 1)):
            assert all((at + token // vec * vec) % vec == 0 for token in some(each.shape[-1]))


def test_nothing_is_launched_where_nothing_is_written() -> None:
    assert plan(operands((0, 3, 5), 4)) == plan(operands((2, 0, 5), 4)) == Plan()
    assert plan(operands((2, 3, 0), 4)._replace(last_state=None)) == Plan()
    assert len(plan(operands((2, 3, 0), 4)).launches) == 1


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("d_state", [8, 32])
def test_rows_of_a_batch_are_read_by_vectors_where_all_begin_alike(dtype: Any, d_state: int) -> None:
    """Vectors begin at multiples of their length in the numbers of tokens, which go on from row to row."""
    accesses = set()
    for seqlen, (gap, shift) in ((n, at) for n in (24, 25, 28) for at in np.ndindex(8, 4)):
        matrix = layout(dtype, (3, 1, d_state, seqlen), pad=(0, 0, 0, int(gap)), shift=int(shift))
        o = inputs((3, 5, seqlen), d_state, dtype, matrix, pad=(0, 0, int(gap)), shift=int(shift))
        launch = only(plan_packed(PackedOperands(o, None, None, None, None, None, None, -1, keeps_padding=False)))
        n = numbers_of(launch)
        assert (n["sequences"], n["total"], n["seqlen"]) == (3, 3 * seqlen, seqlen)
        assert launch.config.grid[0] == n["dim_blocks"][0] * 3
        accesses.add(accesses_of(launch)[:2])
        for each, vec in zip((o.u, o.B), accesses_of(launch)[:2], strict=True):
            for row, channel in np.ndindex(3, 5):
                first = each.first + row * each.strides[0] + channel * each.strides[-2]
                begins = range(-(-row * seqlen // vec) * vec, (row + 1) * seqlen - vec + 1, vec)
                assert all((first + begin - row * seqlen) % vec == 0 for begin in begins)
    widest = 16 // dtype.itemsize
    assert {vec for vec, _ in accesses} >= {1, min(own_tokens(lanes_for(d_state)[0]), widest)}
    assert {vec for _, vec in accesses} >= {1, min(4, widest) if d_state == 1 else widest}
