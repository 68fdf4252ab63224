"""Which kernels a selective scan runs, and how: a pure function of layouts."""

from __future__ import annotations

from typing import Any, NamedTuple

from cuconv.runtime.call import Launch, Plan
from cuconv.runtime.dtypes import FLOAT32, DType
from cuconv.runtime.launch import ceil_div, fast_div
from cuconv.selective_scan.kernels import (
    CHUNK,
    CUT,
    TILE_TIMES,
    SegmentKernel,
    SelectiveScanCarry,
    SelectiveScanChunk,
    SelectiveScanFwd,
    SelectiveScanTilesChunk,
    SelectiveScanTilesFwd,
    TileShape,
    lanes_for,
    tile_time,
)
from cuconv.selective_scan.operands import Operands, has_tiles, is_float32, matrix_vector, numbers, vector

FILL = 132 * 512
"""The threads that keep an H200 busy. With far fewer rows are cut into segments: every exponential is taken twice."""

WORTH_CUTTING = 2.5
"""How many times fewer: on an H200 cutting in 4 takes 1.9 ms instead of 2.6 (1 x 5120 x 16384), in 3 2.8 instead of 2.6
(1 x 8192 x 16384), in 2 0.54 instead of 0.39 (8 x 1536 x 2048)."""


class Segments(NamedTuple):
    """How rows are cut."""

    parts: int
    tokens: int
    """Of each but the last, a multiple of CHUNK."""


def plan(o: Operands) -> Plan:
    """What a call launches: one scan, or those of the segments, what they carry on, and the results."""
    batch, dim, _ = o.u.shape
    if not batch or not dim or (o.out.size == 0 and o.last_state is None):
        return Plan()
    cut = segments(o)
    scan, chunk = _kernels(o)
    config, division = scan.launch_config(dim, batch * cut.parts)
    known = {**numbers(o), **_segment_numbers(o, cut), **division}
    last = Launch(scan, config, scan.params.pack_numbers(**known))
    if cut.parts == 1:
        return Plan((last,))
    carry = SelectiveScanCarry()
    carry_config, carry_division = carry.launch_config(batch, dim, o.d_state)
    launches = (
        Launch(chunk, config, chunk.params.pack_numbers(**known)),
        Launch(carry, carry_config, carry.params.pack_numbers(**known, **carry_division)),
        last,
    )
    # Of every segment a state and the sum of dt for each channel.
    return Plan(launches, scratch=batch * cut.parts * dim * (o.d_state + 1) * FLOAT32.itemsize)


def _kernels(o: Operands) -> tuple[SegmentKernel, SegmentKernel]:
    """The kernel that writes the results, and that of the states behind segments."""
    assert isinstance(o.u.dtype, DType)
    if shapes := tile_shapes(o):
        rows = o.u.shape[0] * o.u.shape[1]
        shape = CUT if segments(o).parts > 1 else min(shapes, key=lambda shape: tile_time(rows, shape))
        return SelectiveScanTilesFwd(o.u.dtype, *shape), SelectiveScanTilesChunk(o.u.dtype, *CUT)
    lanes, states = lanes_for(o.d_state)
    axes: dict[str, Any] = {"input_t": o.u.dtype, "lanes": lanes, "states": states}
    axes |= {"vec": vector(o, lanes), "b_vec": matrix_vector(o.B)}
    return SelectiveScanFwd(**axes, c_vec=matrix_vector(o.C)), SelectiveScanChunk(**axes)


def tile_shapes(o: Operands) -> list[TileShape]:
    """How the lanes of a block may share tokens; none where they cannot."""
    return [
        shape
        for shape in TILE_TIMES
        if (shape.lanes == 1 or shape.lanes * shape.tokens <= o.u.shape[2])
        and o.d_state % (shape.parts * shape.at_once) == 0
        and has_tiles(o, shape.channels)
    ]


def segments(o: Operands) -> Segments:
    """The fewest segments of a row, of whole chunks, that fill the GPU; one when its channels fill it."""
    batch, dim, seqlen = o.u.shape
    shapes = tile_shapes(o)
    most, lanes = (shapes[-1].group, CUT.group) if shapes else (lanes_for(o.d_state)[0],) * 2
    threads_per_block = SelectiveScanFwd.threads
    threads = batch * ceil_div(dim * lanes, threads_per_block) * threads_per_block
    chunks = max(1, ceil_div(seqlen, CHUNK))
    wanted = min(ceil_div(FILL, max(1, threads)), seqlen // CHUNK)
    if wanted < 2 or (shapes and CUT not in shapes) or WORTH_CUTTING * threads * most > FILL * lanes:
        return Segments(1, chunks * CHUNK)
    tokens = ceil_div(chunks, wanted) * CHUNK
    return Segments(ceil_div(seqlen, tokens), tokens)


def _segment_numbers(o: Operands, cut: Segments) -> dict[str, Any]:
    batch, _, seqlen = o.u.shape
    return {
        "batch": batch,
        "seqlen": seqlen,
        "segments": fast_div(cut.parts),
        "segment_tokens": cut.tokens,
        "B_is_float32": is_float32(o.B),
        "C_is_float32": is_float32(o.C),
        "initial_state_stride": o.initial_state.strides if o.initial_state else (0, 0, 0),
        "last_state_stride": o.last_state.strides if o.last_state else (0, 0, 0),
        "chunk_states_stride": o.chunk_states.strides if o.chunk_states else (0, 0, 0, 0),
    }
