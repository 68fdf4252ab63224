"""Which kernels a selective scan of whole rows runs, and how: a pure function of layouts and the multiprocessors."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from cuconv.runtime.dtypes import FLOAT32
from cuconv.runtime.launch import ceil_div, fast_div
from cuconv.runtime.layout import Layout
from cuconv.runtime.machine import multiprocessors
from cuconv.runtime.plan import Launch, Plan
from cuconv.selective_scan.check import Inputs
from cuconv.selective_scan.kernels import (
    CUT,
    SHARED,
    TILE_TIMES,
    TIMED_TOKENS,
    UNUSED,
    SegmentKernel,
    SelectiveScanCarry,
    SelectiveScanFwd,
    SelectiveScanTilesFwd,
    TileShape,
    chunk_tokens,
    lanes_for,
    max_tile_states,
    most_states,
    tile_time,
)
from cuconv.selective_scan.plan import (
    CHANNELS,
    FILL,
    TOKENS,
    channels_of_blocks,
    input_dtype,
    is_float32,
    matrix_vector,
    numbers,
    tile_axis,
    vector,
    wide_shape,
)
from cuconv.selective_scan.plan_phases import phase_numbers, phased
from cuconv.selective_scan.plan_short import PAIR_ROWS, TOKENS_OF_MANY, short_rows
from cuconv.selective_scan.plan_turned import Turned, turned_inputs

WORTH_CUTTING = 2.5
"""The ratio of FILL to the threads of uncut rows, where each lane owns some of the states, from which on rows are cut:
a cut takes every exponential twice.
"""

LAUNCHES_OF_CUT = 3.0
"""Microseconds that a scan of segments takes longer than its two walks over the tokens: it is three launches. On an
H200 1 x 256 x 512 takes 25.3 us in segments and 6.8 in one launch, x 2048 26.2 and 20.0, x 8192 44.4 and 72.0.
"""


FEW_SHORT = 64
"""Rows per multiprocessor up to which lanes share the states of a channel, instead of one lane for all states, where
rows are too short for lanes to share tokens; twice as many in 16 bits with contiguous tokens. On an H200 1 x 8192 x 32
takes 7.0 us with states shared in bfloat16, and 10.1 with one lane; 2 x 8192 x 32 9.4 and 10.4; with contiguous
channels 7.8 and 10.1, and 14.3 and 10.3.
"""


COPIED = 12_000
"""Tokens times channels, per multiprocessor, from which on copies are quicker, where with copies lanes can sweep over
tokens and without them access one token of B or C at a time. On an H200 64 x 1536 x 197 takes 257 us with copies and
347 without, 8 x 1536 x 197 44 and 51, 64 x 1536 x 33 77 and 84, but 16 x 1536 x 50 32 and 30; 64 x 1536 x 196 255 and
234.
"""


SHARED_STATES, SHARED_STATES_SHORT = 8, 4
"""States up to which lanes share the tokens of a channel where they can, in rows of TOKENS_OF_MANY tokens or more and
in shorter ones. A lane that has a channel alone waits for its tokens when it has few states. On an H200 64 x 768 x 3136
of one state takes 407 us with tokens shared and 770 without, 32 x 1024 x 1024 of 8 states 191 and 228, 64 x 1536 x 64
of 4 states 36 and 47; but 64 x 3072 x 96 of 8 states 169 and 113.
"""


LEAST_UNSWEPT = {2: 64, 4: 192}
"""Tokens from which on rows may have phases where lanes cannot sweep over them, by the bytes of an element. On an H200
8 x 1536 x 131 takes 36 us with phases in float32 and 32 without; swept, 64 x 1536 x 33 takes 57 and 78.
"""


LEAST_KEPT_COPIED = 1024
"""Tokens from which on copies are quicker than phases where rows of more than 16 states keep states before chunks."""


class Operands(NamedTuple):
    """The layouts of one valid call; None stands for an argument that is absent."""

    inputs: Inputs
    initial_state: Layout | None = None
    """(batch, dim, d_state)."""
    last_state: Layout | None = None
    """(batch, dim, d_state)."""
    chunk_states: Layout | None = None
    """(batch, chunks, dim, d_state)."""


class Segments(NamedTuple):
    """The segments that rows are cut into."""

    per_row: int
    """Segments per row."""
    tokens: int
    """Tokens per segment, except the last: a multiple of the chunk."""


def plan(o: Operands) -> Plan:
    """The launches of a call: one scan; or the states after segments, the states before segments, and the results.
    Arrays that are laid out otherwise than u, or not aligned, are copied first, and results copied back last; where
    rows can have phases, only B and C are copied.
    """
    batch, dim, _ = o.inputs.u.shape
    if not batch or not dim or (o.inputs.out.size == 0 and o.last_state is None):
        return Plan()
    shapes = tile_shapes(o.inputs)
    states_only: SegmentKernel | None = None
    # Copies are planned only when they are asked for: few rows that are not aligned do not need them.
    phases = cache(lambda: None if shapes else with_phases(o))
    copies = cache(lambda: None if shapes else phases() or alike(o.inputs))
    short = short_rows(o.inputs, shapes, lambda: copies() is not None, lambda: phases() is not None)
    scan: SegmentKernel
    rounds = 1
    if short is not None:
        (scan, rounds), cut = short, uncut(o.inputs)
    elif (copied := copies()) is not None:
        return copied.joined(plan(o._replace(inputs=copied.operands)))
    else:
        cut = segments(o.inputs, shapes)
        scan, states_only = _kernels(o, shapes, cut)
    config, division = scan.launch_config(channels_of_blocks(o.inputs, scan.channels), batch * cut.per_row, rounds)
    known = {**numbers(o.inputs), **_segment_numbers(o, cut), **division}
    last = Launch(scan, config, scan.params.pack_numbers(**known))
    if states_only is None or cut.per_row == 1:
        return Plan((last,))
    carry = SelectiveScanCarry()
    carry_config, carry_division = carry.launch_config(batch, dim, o.inputs.d_state)
    launches = (
        Launch(states_only, config, last.numbers),
        Launch(carry, carry_config, carry.params.pack_numbers(**known, **carry_division)),
        last,
    )
    # The state after every segment, and the sum of dt for each channel.
    return Plan(launches, scratch=batch * cut.per_row * dim * (o.inputs.d_state + 1) * FLOAT32.itemsize)


def with_phases(o: Operands) -> Turned | None:
    """The inputs where rows have phases; None where they cannot, or where another kernel is quicker."""
    batch, dim, seqlen = o.inputs.u.shape
    is_few = batch * dim <= PAIR_ROWS * multiprocessors(o.inputs.u.device)
    is_wide = o.inputs.d_state > max_tile_states()
    if (is_few and not is_wide) or (is_wide and o.chunk_states is not None and seqlen >= LEAST_KEPT_COPIED):
        return None

    def are_quicker(inputs: Inputs) -> bool:
        shapes = tile_shapes(inputs)
        least = LEAST_UNSWEPT[input_dtype(inputs).itemsize]
        return bool(shapes) and (seqlen >= least or any(shape.sweeps for shape in shapes))

    return phased(o.inputs, are_quicker)


def alike(inputs: Inputs) -> Turned | None:
    """Inputs with copies of some arrays, so that lanes can share tokens; None where copies do not help."""
    batch, _, seqlen = inputs.u.shape
    has_sweeps = any(shape.sweeps and shape.fits(input_dtype(inputs), inputs.d_state, seqlen) for shape in TILE_TIMES)
    return turned_inputs(inputs, batch, tile_shapes, COPIED if has_sweeps else None)


def _kernels(o: Operands, shapes: list[TileShape], cut: Segments) -> tuple[SegmentKernel, SegmentKernel]:
    """The kernel that writes the results, and the kernel that writes the states after segments."""
    inputs, has_phases = o.inputs, o.inputs.phases is not None
    dtype = input_dtype(inputs)
    keeps = has_phases and o.chunk_states is not None
    wide = wide_shape(inputs, inputs.u.shape[0])
    if wide is not None:
        shape, by_channel = wide
        scan = SelectiveScanTilesFwd(dtype, *shape, by_channel, False, most_states(inputs.d_state), has_phases, keeps)
        return scan, scan
    if shapes:
        batch, processors = inputs.u.shape[0], multiprocessors(inputs.u.device)
        by_channel = tile_axis(inputs, shapes[0].channels) == CHANNELS

        def time(shape: TileShape) -> float:
            return tile_time(batch * channels_of_blocks(inputs, shape.channels), shape, processors, by_channel)

        quickest = min(shapes, key=time)
        shape = CUT if cut.per_row > 1 else quickest
        return (
            SelectiveScanTilesFwd(dtype, *shape, by_channel, states_only=False, phases=has_phases, keeps=keeps),
            SelectiveScanTilesFwd(dtype, *CUT, by_channel, states_only=True, phases=has_phases),
        )
    lanes, states = lanes_for(inputs.d_state)
    axes: dict[str, Any] = {"input_t": dtype, "lanes": lanes, "states": states}
    axes |= {"vec": vector(inputs, lanes), "b_vec": matrix_vector(inputs.B)}
    return SelectiveScanFwd(**axes, c_vec=matrix_vector(inputs.C)), SelectiveScanFwd(**axes, c_vec=UNUSED)


def tile_shapes(inputs: Inputs) -> list[TileShape]:
    """The shapes in which lanes of a block can share tokens; empty where they cannot."""
    batch, dim, seqlen = inputs.u.shape
    if (wide := wide_shape(inputs, batch)) is not None:
        return [wide[0]]
    dtype, processors = input_dtype(inputs), multiprocessors(inputs.u.device)

    def is_possible(shape: TileShape) -> bool:
        axis = tile_axis(inputs, shape.channels)
        if axis is None or not shape.fits(dtype, inputs.d_state, seqlen):
            return False
        few = FEW_SHORT * (2 if axis == TOKENS and dtype.itemsize == 2 else 1) * processors
        is_quick = shape.group > 1 or seqlen >= SHARED or batch * dim > few
        return is_quick and shape.has_room(by_channel=axis == CHANNELS)

    possible = [shape for shape in TILE_TIMES if is_possible(shape)]
    shared = [shape for shape in possible if shape.group > 1]
    most = SHARED_STATES if seqlen >= TOKENS_OF_MANY else SHARED_STATES_SHORT
    return shared if shared and inputs.d_state <= most else possible


def uncut(inputs: Inputs) -> Segments:
    """One segment per row."""
    chunk = chunk_tokens()
    return Segments(1, max(1, ceil_div(inputs.u.shape[-1], chunk)) * chunk)


def segments(inputs: Inputs, shapes: list[TileShape]) -> Segments:
    """The fewest segments per row, of whole chunks, that fill the GPU; one where that is quicker."""
    batch, dim, seqlen = inputs.u.shape
    rows, processors = batch * dim, multiprocessors(inputs.u.device)
    chunk, threads_per_block = chunk_tokens(), SelectiveScanFwd.threads
    lanes = CUT.group if shapes else lanes_for(inputs.d_state)[0]
    threads = batch * ceil_div(dim * lanes, threads_per_block) * threads_per_block
    chunks, whole_chunks = ceil_div(seqlen, chunk), seqlen // chunk
    wanted = min(ceil_div(FILL * processors, max(1, threads)), chunks if shapes else whole_chunks)
    if min(wanted, whole_chunks) < 2:
        return uncut(inputs)
    tokens = ceil_div(chunks, wanted) * chunk
    cut = Segments(ceil_div(seqlen, tokens), tokens)
    if not shapes:
        return uncut(inputs) if WORTH_CUTTING * threads > FILL * processors else cut
    if CUT not in shapes:
        return uncut(inputs)
    by_channel = tile_axis(inputs, CUT.channels) == CHANNELS
    whole = min(tile_time(rows, shape, processors, by_channel) for shape in shapes)
    # Beyond one wave the time grows with the number of blocks. tile_time would count a whole second wave, but 576
    # blocks in 528 places take 35 us for 1 x 1536 x 4096 of one state, and uncut rows 53.
    wave = CUT.resident * processors * CUT.channels
    pieces = rows * cut.per_row
    once = tile_time(min(pieces, wave), CUT, processors, by_channel) * max(pieces / wave, 1)
    return cut if LAUNCHES_OF_CUT * TIMED_TOKENS + 2 * once * tokens < whole * seqlen else uncut(inputs)


def _segment_numbers(o: Operands, cut: Segments) -> dict[str, Any]:
    batch, _, seqlen = o.inputs.u.shape
    return {
        "batch": batch,
        "seqlen": seqlen,
        "segments": fast_div(cut.per_row),
        "segment_tokens": cut.tokens,
        "B_is_float32": is_float32(o.inputs.B),
        "C_is_float32": is_float32(o.inputs.C),
        "initial_state_stride": o.initial_state.strides if o.initial_state else (0, 0, 0),
        "last_state_stride": o.last_state.strides if o.last_state else (0, 0, 0),
        "chunk_states_stride": o.chunk_states.strides if o.chunk_states else (0, 0, 0, 0),
        **phase_numbers(o.inputs.phases),
    }
