"""Which kernel a selective scan of packed sequences runs, and how: a pure function of layouts and multiprocessors."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeVar

from cuconv.runtime import slots
from cuconv.runtime.blocks import Blocks
from cuconv.runtime.dtypes import FLOAT32, INT64, DType
from cuconv.runtime.kernel import Kernel
from cuconv.runtime.launch import MAX_VECTOR_BYTES, WARP_SIZE, LaunchConfig, ceil_div, fast_div, widest_vector
from cuconv.runtime.layout import Layout, index_numbers, strides_or_zeros
from cuconv.runtime.machine import multiprocessors
from cuconv.runtime.plan import Launch, Plan
from cuconv.selective_scan.check import Inputs
from cuconv.selective_scan.kernels import (
    MAX_TOKENS,
    TILE_TIMES,
    SelectiveScanVarlenBlocks,
    SelectiveScanVarlenFwd,
    SelectiveScanVarlenTilesFwd,
    TileShape,
    lanes_for,
    most_states,
    tile_time,
)
from cuconv.selective_scan.plan import (
    CHANNELS,
    channels_of_blocks,
    input_dtype,
    matrix_vector,
    numbers,
    tile_axis,
    vector,
    wide_shape,
)
from cuconv.selective_scan.plan_phases import phase_numbers, phased
from cuconv.selective_scan.plan_short import packed_parts
from cuconv.selective_scan.plan_turned import Turned, turned_inputs

Chosen = TypeVar("Chosen")

FILL = 256
"""Channels per multiprocessor that keep an H200 busy with one lane each."""

FEW = 24
"""Tokens up to which a packed sequence is walked token by token, where otherwise each lane has some of the states and a
call has less work than SHORT tokens of FILL channels per multiprocessor; with more work SHORT.
"""

SHORT = 128
"""Tokens up to which a sequence is walked token by token where lengths are mixed. On an H200 512 sequences of 8192
tokens in all take 0.69 ms with 128 and 0.80 with 64, and 64 of 2048 tokens in all, of 2048 channels, 79 us and 96.
"""

MIXED = ((100, 16), (500, 32), (math.inf, 64))
"""(channels of sequences per multiprocessor, tokens): with fewer channels than the first number, lengths count as mixed
if sequences have fewer tokens than the second on average. Nearly all sequences are then walked token by token, which
takes little work, but is serial. Otherwise each sequence has separate blocks with lanes that sweep over its tokens
(SWEEPS). On an H200, in us, of 512 channels 16 x 64 take 19 as mixed and 8 as not, 16 of 2048 tokens in all 41 and 28;
of 2048 channels 64 x 32 47 and 54, and 64 x 80 90 and 92, but 64 of 5120 tokens in all 168 and 121; of 8192 channels 32
x 16 46 and 76, 64 x 128 493 and 450. One of 829 tokens and 15 of 13, of 2048 channels, take 35 and 53.
"""

MIXED_SHARED = ((100, 16), (300, 64), (math.inf, 192))
"""MIXED where there are no sweeps, in float32 and with fewer states. With 4 states, in us, of 1024 channels 16 x 64
take 25 as mixed and 15 as not, 32 x 32 20 and 25, of 4096 channels 8 x 64 33 and 21, 32 x 96 104 and 114.
"""

SHARED = TileShape(4, 1, 2, 16, 3)
"""The shape for sequences of fewer than SHARED_TOKENS tokens where there are no sweeps."""

SHARED_TOKENS = 96
"""Mean tokens per sequence from which on more lanes may share the tokens of a channel. One sequence of 104 tokens of
1024 channels takes 8.5 us by sweeps and 6.4 with 16 lanes a channel, of 64 tokens 6.0 and 6.4.
"""

LONGEST_TILE = 1.75
"""Most tokens of a tile, as a multiple of the mean tokens per sequence. 2 x 100 of 1024 channels take 10.5 us with
tiles of 256 tokens, and 7.0 with tiles of 128.
"""

SWEEPS = ((80, TileShape(1, 8, 2, 64, 4)), (math.inf, TileShape(1, 4, 4, 64, 4)))
"""The shape for sequences of fewer than PROMPT tokens on average, where a multiprocessor has fewer channels of
sequences than the first number. More lanes per channel would be quicker where all sequences have the same length of at
least a tile, but slower where lengths differ: with 2048 channels 3 x 128 take 11 us with these shapes and 14 with (16,
1, 4, 8), 8 of 512 tokens in all 20 with 4 lanes per channel, 26 with 2 and 48 with 16.
"""

FEW_CHANNELS = 6
"""Channels per multiprocessor below which the first shape of SWEEPS is the safer one: with 512 channels 64 x 80 take 37
us with the first and 28 with the second, but one of 4112 and 63 of 16 tokens 124 and 218.
"""

FEW_ROWS = 12
"""Channels of sequences per multiprocessor from which on there are sweeps for sequences of SHARED_TOKENS tokens."""

LEAST_PHASED = 64
"""Mean tokens per sequence from which on the packed row may have phases."""

COPIED, COPIED_BY_FOUR = 4500, 6800
"""Tokens times channels, per multiprocessor, from which on copies of rows that are not aligned are quicker than lanes
with some of the states each: lanes that access one token of B or C at a time, and lanes that access several. In us with
copies and without: one sequence of 201 tokens of 8192 channels 38 and 52, of 101 28 and 29, of 100 27 and 22, of 51 22
and 17; 9 x 33 of 4096 channels 40 and 60; 3 x 201 of 1024 25 and 36.
"""

MOSTLY_SHORT = 48
"""Mean tokens per sequence of mixed lengths below which nearly all are guessed to be short, and a few long ones to have
most of the tokens. On an H200 one of 4096 tokens and 256 of 16, 2048 contiguous channels, take 201 us with 16 lanes a
channel and 258 with 8; 12 of 512 and 128 of 16 228 and 177.
"""

PREFILL = 8192
"""Tokens of such a call per sequence that is guessed to be long."""

PROMPT = 512
"""Tokens of a call per sequence that is guessed to be long, with MOSTLY_SHORT mean tokens or more; also the mean tokens
from which on all sequences are taken to have the same length.
"""

RUN = 16
"""Most consecutive short sequences per block, which share its decay rates and accesses of u; fewer than a warp has
lanes.
"""

RUN_TOKENS = 64
"""Most tokens per run, at the mean length: on an H200 512 sequences of 8192 tokens in all take 0.85 ms with 32 and 0.77
with 64; more change less than 3 %.
"""

WINDOW_RUN_TOKENS = 256
"""Most tokens per run where short sequences are loaded in windows of contiguous tokens: these take 0.58 ms with 256,
0.65 with 64."""

RUN_BY_RUN = 12
"""Mean tokens per sequence from which on, with such windows, the blocks of a run follow each other. On an H200 512
sequences of 8192 tokens in all take 0.57 ms in that order and 0.60 with blocks of the same channels next to each other,
1024 x 8 0.79 and 0.73: blocks that load states at the same time wait for each other.
"""

RUN_BLOCKS = 16
"""Blocks of runs per multiprocessor that keep an H200 busy; with fewer, runs are shorter."""

LONG_BLOCKS = 4
"""Blocks of long sequences per multiprocessor that an H200 runs at a time. More would only look for a long sequence
among many short ones: 0.96 ms instead of 0.86 with 4096 such blocks and 2048 single tokens.
"""


class Division(NamedTuple):
    """The work as blocks: one per sequence, or first blocks of long sequences and then blocks of runs of short ones."""

    short_tokens: int
    """Tokens up to which a sequence is part of a run; longer ones have separate blocks."""
    channels: int
    """Channels per block of a long sequence; a block of a run has one per thread."""
    is_mixed: bool = True
    run_tokens: int = RUN_TOKENS
    """Most tokens per run, at the mean length."""
    run_by_run: bool = False
    """Whether the blocks of a run follow each other, instead of blocks of the same channels."""

    def grid(self, o: Operands) -> tuple[LaunchConfig, dict[str, Any]]:
        """The launch, and the params that divide its work."""
        dim, total = o.inputs.u.shape[1], o.total
        threads, processors = SelectiveScanVarlenFwd.threads, multiprocessors(o.inputs.u.device)
        # Padding before the first sequence and after the last one counts as a sequence each.
        rows = o.sequences if o.is_batch else o.sequences + 2
        dim_blocks = ceil_div(channels_of_blocks(o.inputs, self.channels), self.channels)
        run_blocks = ceil_div(dim, threads)
        most_long = min(rows, total // (self.short_tokens + 1))
        likely_long = LONG_BLOCKS * processors // dim_blocks if self.is_mixed else o.sequences
        at_a_time = min(most_long, max(1, likely_long))
        most_by_blocks = rows * run_blocks // (RUN_BLOCKS * processors)
        run = max(1, min(RUN, most_by_blocks, self.run_tokens * o.sequences // total))
        runs = ceil_div(rows, run) if self.short_tokens else 0
        return LaunchConfig((dim_blocks * at_a_time + run_blocks * runs, 1, 1), (threads, 1, 1)), {
            "dim_blocks": fast_div(dim_blocks),
            "runs": fast_div(run_blocks if self.run_by_run else max(1, runs)),
            "short_tokens": self.short_tokens,
            "run_sequences": run,
            "run_by_run": self.run_by_run,
            "long_at_a_time": at_a_time,
            "long_goes_on": at_a_time < most_long,
        }


class Chunks(NamedTuple):
    """The layouts of the arrays that say where blocks of a prefix cache end."""

    block_idx_first_scheduled_token: Layout
    """(sequences,)."""
    cu_chunk_seqlen: Layout
    """(chunks + 1,)."""
    last_chunk_indices: Layout
    """(sequences,)."""


class Operands(NamedTuple):
    """The layouts of one valid call on packed sequences; None stands for an argument that is absent."""

    inputs: Inputs
    ssm_states: Layout | None
    """(slots, dim, d_state)."""
    query_start_loc: Layout | None
    """(sequences + 1,)."""
    cache_indices: Layout | None
    """(sequences,), with state_column (sequences, columns)."""
    has_initial_state: Layout | None
    """(sequences,)."""
    state_column: Layout | None
    """(sequences,)."""
    dst_state_indices: Layout | None
    """(sequences,)."""
    pad_slot_id: int
    keeps_padding: bool
    """Whether the results of padding stay as they are."""
    snapshots: Layout | None = None
    """(rows, 3)."""
    snapshot_count: Layout | None = None
    """(1,)."""
    snapshot_out: Layout | None = None
    """(slots, dim, d_state); absent where snapshots go to ssm_states."""
    state_scale: Layout | None = None
    """(slots, dim) or (slots, dim, 1)."""
    snapshot_scale: Layout | None = None
    """The scales of snapshot_out: (slots, dim) or (slots, dim, 1)."""
    philox_rounds: int = 0
    """Rounds of Philox where codes are rounded at random, else 0."""
    blocks: Blocks | None = None
    """The prefix cache that snapshots and final states go to."""
    chunks: Chunks | None = None
    """Where its blocks end."""

    @property
    def is_batch(self) -> bool:
        """Whether sequences are the rows of a batch."""
        return self.inputs.u.shape[0] != 1

    @property
    def snapshots_to(self) -> Layout | None:
        """The array that snapshots go to, if there are any."""
        return None if self.snapshots is None else self.snapshot_out or self.ssm_states

    @property
    def sequences(self) -> int:
        """Sequences, empty ones included."""
        return self.inputs.u.shape[0] if self.query_start_loc is None else self.query_start_loc.shape[0] - 1

    @property
    def total(self) -> int:
        """Tokens of all sequences and of the padding between them."""
        return self.inputs.u.shape[0] * self.inputs.u.shape[2]


def plan(o: Operands) -> Plan:
    """The launches of a call on packed sequences; with a prefix cache, a launch that finds its snapshots comes
    first."""
    if o.blocks is None or o.chunks is None:
        return _plan(o)
    main = _plan(o._replace(**o.blocks.derived))
    if not main.launches:
        return main
    launches = main.launches
    if o.sequences:
        kernel = SelectiveScanVarlenBlocks()
        numbers = o.blocks.numbers | index_numbers(**o.chunks._asdict())
        launches = Launch.packed(kernel, kernel.launch_config(o.sequences), **numbers), *launches
    # This comes before copies of arrays that are not aligned.
    behind = ceil_div(o.blocks.scratch, MAX_VECTOR_BYTES) * MAX_VECTOR_BYTES
    regions = {name: behind + at for name, at in main.regions.items()}
    return Plan(launches, behind + main.scratch, {**o.blocks.regions, **regions})


def _plan(o: Operands) -> Plan:
    inputs, pool = _numbered_through(o.inputs), o.ssm_states
    if inputs.u.size == 0:
        return Plan()
    states_like = pool or o.snapshot_out
    dtype, state_t = input_dtype(inputs), states_like.dtype if states_like else FLOAT32
    assert isinstance(state_t, DType)
    kernel: Kernel
    axis = tile_axis(inputs, SelectiveScanVarlenTilesFwd.threads)
    wide = wide_shape(inputs, o.sequences, snapshots=o.snapshots is not None)
    phases = None if axis is not None or wide is not None else with_phases(o)
    parts = None
    if o.snapshots is None:
        has_tiles, has_phases = axis is not None, phases is not None
        parts = packed_parts(inputs, o.sequences, state_t, has_tiles=has_tiles, has_phases=has_phases)
    if parts is None and axis is None and wide is None and (copied := phases or alike(o)):
        return copied.joined(_plan(o._replace(inputs=copied.operands)))
    if parts is not None:
        kernel, states = parts.kernel, parts.kernel.states
        division = Division(0, kernel.channels * parts.rounds, is_mixed=False)
    elif wide is not None:
        shape, by_channel = wide
        states = SelectiveScanVarlenTilesFwd.constants["kFewStates"]
        kernel = SelectiveScanVarlenTilesFwd(
            dtype,
            state_t,
            *shape,
            by_channel,
            mixed=False,
            snapshots=o.snapshots is not None,
            most_states=most_states(inputs.d_state),
            phases=inputs.phases is not None,
        )
        division = Division(0, shape.channels, is_mixed=False)
    elif axis is not None:
        is_mixed, shape = _tiles(o, axis == CHANNELS)
        by_channel, keeps = axis == CHANNELS, o.snapshots is not None
        is_narrow = state_t.itemsize < FLOAT32.itemsize and not by_channel and not keeps
        states = SelectiveScanVarlenTilesFwd.constants["kNarrowStates" if is_narrow else "kFewStates"]
        kernel = SelectiveScanVarlenTilesFwd(
            dtype, state_t, *shape, by_channel, is_mixed, keeps, phases=inputs.phases is not None
        )
        runs = (RUN_TOKENS, False) if by_channel else (WINDOW_RUN_TOKENS, o.total >= RUN_BY_RUN * o.sequences)
        division = Division(SHORT if is_mixed else 0, shape.channels, is_mixed, *runs)
    else:
        lanes, states = lanes_for(inputs.d_state)
        kernel = SelectiveScanVarlenFwd(
            input_t=dtype,
            lanes=lanes,
            states=states,
            vec=vector(inputs, lanes),
            b_vec=matrix_vector(inputs.B),
            c_vec=matrix_vector(inputs.C),
            state_t=state_t,
            # Kernels of few registers have no rows of a batch.
            snapshots=o.snapshots is not None or o.is_batch,
        )
        division = _lane_division(o, lanes, states)
        if o.is_batch:
            division = Division(0, division.channels, is_mixed=False)
    config, divided = division.grid(o)
    known = {
        **numbers(inputs),
        **divided,
        "sequences": o.sequences,
        "total": o.total,
        "seqlen": inputs.u.shape[2] if o.is_batch else 0,
        "has_states": pool is not None,
        "states_is_vectors": pool is not None and _is_vectors(pool, states),
        "A_is_vectors": _is_vectors(inputs.A, states),
        "slots": pool.shape[0] if pool else 0,
        "ssm_states_stride": pool.strides if pool else (0, 0, 0),
        "pad_slot_id": o.pad_slot_id,
        "keeps_padding": o.keeps_padding,
        "state_scale_stride": strides_or_zeros(o.state_scale, 2)[:2],
        "snapshot_scale_stride": strides_or_zeros(o.snapshot_scale or o.state_scale, 2)[:2],
        **phase_numbers(inputs.phases),
        "philox_rounds": o.philox_rounds,
        "seed": 0,
        **slots.numbers(o.cache_indices, o.state_column, o.dst_state_indices),
        **slots.snapshot_numbers(o.snapshots, o.snapshot_count, pool, o.snapshot_out, o.pad_slot_id),
        "snapshots_is_vectors": o.snapshots_to is not None and _is_vectors(o.snapshots_to, states),
        "query_start_loc_is_int64": o.query_start_loc is not None and o.query_start_loc.dtype is INT64,
        "cache_indices_is_int64": o.cache_indices is not None and o.cache_indices.dtype is INT64,
    }
    for name in ("query_start_loc", "cache_indices", "has_initial_state"):
        layout = getattr(o, name)
        known[f"{name}_stride"] = layout.strides[0] if layout else 0
    return Plan((Launch(kernel, config, kernel.params.pack_numbers(**known)),))


def with_phases(o: Operands) -> Turned | None:
    """The inputs where the packed row of tokens has phases; None where it cannot have any, or where that is no
    quicker."""
    if o.is_batch or not o.sequences or o.total < LEAST_PHASED * o.sequences:
        return None

    def are_quicker(inputs: Inputs) -> bool:
        if wide_shape(inputs, o.sequences, snapshots=o.snapshots is not None) is not None:
            return True
        axis = tile_axis(inputs, SelectiveScanVarlenTilesFwd.threads)
        # Short sequences among longer ones are accessed by aligned windows.
        return axis is not None and not _tiles(o._replace(inputs=inputs), by_channel=False)[0]

    return phased(o.inputs, are_quicker)


def alike(o: Operands) -> Turned | None:
    """Inputs with copies of some arrays, so that lanes can share tokens; None where copies do not help."""

    def fits(copied: Inputs) -> bool:
        inputs = _numbered_through(copied)
        axis = tile_axis(inputs, SelectiveScanVarlenTilesFwd.threads)
        return axis is not None or wide_shape(inputs, o.sequences, snapshots=o.snapshots is not None) is not None

    # A copy of the results would lack the old contents that padding has to keep.
    if o.keeps_padding:
        return None
    return turned_inputs(o.inputs, o.sequences, fits, COPIED, COPIED_BY_FOUR)


def _numbered_through(inputs: Inputs) -> Inputs:
    """The arrays of a scan with the strides of kernels that number tokens through all rows of a batch.

    The stride of the batch becomes the distance from the token that would follow a row to the next row's first token.
    """
    batch, _, seqlen = inputs.u.shape

    def numbered(layout: Layout) -> Layout:
        skew = layout.strides[0] - seqlen * layout.strides[-1] if batch > 1 else 0
        return layout._replace(strides=(skew, *layout.strides[1:]))

    u, delta, B, C, out = map(numbered, (inputs.u, inputs.delta, inputs.B, inputs.C, inputs.out))
    z = None if inputs.z is None else numbered(inputs.z)
    return inputs._replace(u=u, delta=delta, B=B, C=C, z=z, out=out)


def _tiles(o: Operands, by_channel: bool) -> tuple[bool, TileShape]:
    """Whether lengths count as mixed, and the quickest shape for the likely number of long sequences, because only the
    mean length is known.
    """
    dim, processors = o.inputs.u.shape[1], multiprocessors(o.inputs.u.device)
    if o.is_batch:
        # All rows of a batch have as many tokens.
        return False, _quickest(o, dim * o.sequences, TILE_TIMES, o.inputs.u.shape[2], by_channel)
    rows, tokens = dim * o.sequences / processors, o.total / max(1, o.sequences)
    sweep = _by_rows(SWEEPS, rows) if dim >= FEW_CHANNELS * processors else SWEEPS[0][1]
    has_sweeps = _is_possible(o, sweep, MAX_TOKENS, by_channel)
    if tokens < _by_rows(MIXED if has_sweeps else MIXED_SHARED, rows):
        likely = ceil_div(o.total, PREFILL if tokens < MOSTLY_SHORT else PROMPT)
        return True, _quickest(o, dim * likely, SelectiveScanVarlenTilesFwd.TILES, MAX_TOKENS, by_channel)
    if has_sweeps and tokens < PROMPT and (rows >= FEW_ROWS or tokens < SHARED_TOKENS):
        return False, sweep
    if not has_sweeps and tokens < SHARED_TOKENS and _is_possible(o, SHARED, MAX_TOKENS, by_channel):
        return False, SHARED
    return False, _quickest(o, dim * o.sequences, TILE_TIMES, int(LONGEST_TILE * tokens), by_channel)


def _by_rows(chosen: Iterable[tuple[float, Chosen]], rows: float) -> Chosen:
    """The choice with the first number that is greater than `rows`."""
    return next(each for below, each in chosen if rows < below)


def _is_possible(o: Operands, shape: TileShape, seqlen: int, by_channel: bool) -> bool:
    """Whether blocks can have this shape, for sequences of this many tokens."""
    has_room = shape.has_room(by_channel=by_channel, snapshots=o.snapshots is not None)
    return has_room and shape.fits(input_dtype(o.inputs), o.inputs.d_state, seqlen)


def _quickest(o: Operands, rows: int, shapes: Iterable[TileShape], seqlen: int, by_channel: bool) -> TileShape:
    """The quickest of these shapes for `rows` channels of sequences."""
    possible = [shape for shape in shapes if _is_possible(o, shape, seqlen, by_channel)]
    processors = multiprocessors(o.inputs.u.device)
    # Short rows with snapshots may have no separate shape.
    return min(
        possible or SelectiveScanVarlenTilesFwd.TILES[:1],
        key=lambda shape: tile_time(rows, shape, processors, by_channel),
    )


def _lane_division(o: Operands, lanes: int, states: int) -> Division:
    # A warp that walks token by token shares B and C, and each of its lanes loads one element of them (FewShape).
    is_shared = o.inputs.groups == 1 or o.inputs.u.shape[1] // o.inputs.groups % WARP_SIZE == 0
    is_full = o.total * o.inputs.u.shape[1] >= SHORT * FILL * multiprocessors(o.inputs.u.device)
    most = SHORT if is_full else FEW
    short_tokens = most if is_shared and 2 * lanes * states <= WARP_SIZE else 0
    return Division(short_tokens, SelectiveScanVarlenFwd.threads // lanes, is_mixed=short_tokens > 0)


def _is_vectors(layout: Layout, states: int) -> bool:
    """Whether this many consecutive states of a channel can be accessed as vectors."""
    wanted = min(states, MAX_VECTOR_BYTES // layout.itemsize)
    outer = layout.active(*range(len(layout.shape) - 1))
    is_whole = layout.strides[-1] == 1 and layout.shape[-1] % states == 0
    return is_whole and widest_vector(layout.itemsize, layout.first, *outer) >= wanted
