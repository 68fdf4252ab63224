"""Which kernel a selective scan of packed sequences runs, and how: a pure function of layouts and multiprocessors."""

from __future__ import annotations

from typing import Any, NamedTuple

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
    tile_time,
)
from cuconv.selective_scan.plan import (
    CHANNELS,
    input_dtype,
    matrix_vector,
    numbers,
    tile_axis,
    vector,
    wide_shape,
)
from cuconv.selective_scan.plan_turned import Turned, turned_inputs

FILL = 256
"""Channels per multiprocessor that keep an H200 busy with one lane each."""

FEW = 24
"""Tokens up to which a packed sequence is walked token by token in any case: tiles would mostly be empty."""

SHORT = 128
"""Tokens up to which a packed sequence is walked token by token, where that leaves enough work for all lanes. On an
H200 512 sequences of 8192 tokens in all take 0.69 ms with 128 and 0.80 with 64, and 64 x 128 0.54 and 1.27.
"""

LONG = 192
"""Tokens per packed sequence, on average, from which on each sequence has blocks of its own. With fewer, lengths count
as mixed: a few sequences may have nearly all tokens. On an H200 64 x 128 take 0.54 ms as mixed and 0.71 as not,
16 x 512 0.63 and 0.61.
"""

MOSTLY_SHORT = 48
"""Tokens per mixed sequence, on average, below which nearly all are guessed to be short, and few long ones to have most
of the tokens. On an H200 one of 4096 tokens and 256 of 16, 2048 contiguous channels, take 201 us with 16 lanes a
channel and 258 with 8; 12 of 512 and 128 of 16 228 and 177.
"""

PREFILL = 8192
"""Tokens of such sequences for which one is guessed to be long."""

PROMPT = 512
"""The same with more tokens per sequence."""

RUN = 16
"""Consecutive short sequences per block at most, which share its decay rates and accesses of u; fewer than a warp has
lanes.
"""

RUN_TOKENS = 64
"""Tokens per run at most, going by the average length: on an H200 512 sequences of 8192 tokens in all take 0.85 ms with
32 and 0.77 with 64; more change less than 3 %.
"""

WINDOW_RUN_TOKENS = 256
"""The same where short sequences are brought in windows of contiguous tokens: 0.58 ms with 256, 0.65 with 64."""

RUN_BY_RUN = 12
"""Tokens per sequence, on average, from which on the blocks of a run follow each other there. On an H200 512 sequences
of 8192 tokens in all take 0.57 ms so and 0.60 with blocks of the same channels next to each other, 1024 x 8 0.79 and
0.73: blocks that load states at the same time wait for each other.
"""

RUN_BLOCKS = 16
"""Blocks of runs per multiprocessor that keep an H200 busy; with fewer, runs are shorter."""

LONG_BLOCKS = 4
"""Blocks of long sequences per multiprocessor that an H200 runs at a time. More would look for a long one among many
that are short: 0.96 ms instead of 0.86 with 4096 such blocks and 2048 single tokens.
"""


class Division(NamedTuple):
    """The work as blocks: one per sequence, or first those of long sequences and then those of runs of the others."""

    short_tokens: int
    """Tokens up to which a sequence is one of a run; longer ones have blocks of their own."""
    channels: int
    """Channels per block of a long sequence; a block of a run has one per thread."""
    is_mixed: bool = True
    run_tokens: int = RUN_TOKENS
    """Tokens per run at most, going by the average length."""
    run_by_run: bool = False
    """Whether the blocks of a run follow each other, not those of the same channels."""

    def grid(self, o: Operands) -> tuple[LaunchConfig, dict[str, Any]]:
        """The launch, and the params that divide it so."""
        dim, total = o.inputs.u.shape[1], o.total
        threads, processors = SelectiveScanVarlenFwd.threads, multiprocessors(o.inputs.u.device)
        # The padding before the first sequence and behind the last counts as sequences, too.
        rows = o.sequences if o.is_batch else o.sequences + 2
        dim_blocks, run_blocks = ceil_div(dim, self.channels), ceil_div(dim, threads)
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
    """(slots, dim), perhaps with an axis of 1 behind."""
    snapshot_scale: Layout | None = None
    """The scales of snapshot_out: (slots, dim), perhaps with an axis of 1 behind."""
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
    """The launch that computes a call on packed sequences, behind that of a prefix cache where there is one."""
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
    return Plan(launches, o.blocks.scratch, o.blocks.regions)


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
    if axis is None and wide is None and (copied := alike(o)):
        return copied.joined(_plan(o._replace(inputs=copied.operands)))
    if wide is not None:
        shape, by_channel = wide
        states = SelectiveScanVarlenTilesFwd.constants["kFewStates"]
        kernel = SelectiveScanVarlenTilesFwd(
            dtype, state_t, *shape, by_channel, mixed=False, snapshots=o.snapshots is not None, wide=True
        )
        division = Division(0, shape.channels, is_mixed=False)
    elif axis is not None:
        is_mixed = o.total < LONG * o.sequences and not o.is_batch
        shape = _tile_shape(o, is_mixed, axis == CHANNELS)
        by_channel, keeps = axis == CHANNELS, o.snapshots is not None
        is_narrow = state_t.itemsize < FLOAT32.itemsize and not by_channel and not keeps
        states = SelectiveScanVarlenTilesFwd.constants["kNarrowStates" if is_narrow else "kFewStates"]
        kernel = SelectiveScanVarlenTilesFwd(dtype, state_t, *shape, by_channel, is_mixed, keeps)
        runs = (RUN_TOKENS, False) if by_channel else (WINDOW_RUN_TOKENS, o.total >= RUN_BY_RUN * o.sequences)
        division = Division(_short_tokens(o) if is_mixed else 0, shape.channels, is_mixed, *runs)
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


def alike(o: Operands) -> Turned | None:
    """Inputs with copies of some arrays, which lanes can share the tokens of; None where no copies are any help."""

    def fits(copied: Inputs) -> bool:
        inputs = _numbered_through(copied)
        axis = tile_axis(inputs, SelectiveScanVarlenTilesFwd.threads)
        return axis is not None or wide_shape(inputs, o.sequences, snapshots=o.snapshots is not None) is not None

    # A copy of the results has none of what is to stay.
    return None if o.keeps_padding else turned_inputs(o.inputs, o.sequences, fits)


def _numbered_through(inputs: Inputs) -> Inputs:
    """The arrays of a scan with the strides of kernels that number tokens through all rows of a batch.

    The stride of the batch is what a row's first token lies further than the token behind the row before.
    """
    batch, _, seqlen = inputs.u.shape

    def numbered(layout: Layout) -> Layout:
        skew = layout.strides[0] - seqlen * layout.strides[-1] if batch > 1 else 0
        return layout._replace(strides=(skew, *layout.strides[1:]))

    u, delta, B, C, out = map(numbered, (inputs.u, inputs.delta, inputs.B, inputs.C, inputs.out))
    z = None if inputs.z is None else numbered(inputs.z)
    return inputs._replace(u=u, delta=delta, B=B, C=C, z=z, out=out)


def _tile_shape(o: Operands, is_mixed: bool, by_channel: bool) -> TileShape:
    """The quickest shape for as many long sequences as are likely: only the average length is known."""
    dim, total = o.inputs.u.shape[1], o.total
    per_long = PREFILL if total < MOSTLY_SHORT * o.sequences else PROMPT
    rows = dim * (ceil_div(total, per_long) if is_mixed else o.sequences)
    processors = multiprocessors(o.inputs.u.device)
    # All rows of a batch have as many tokens. On an H200 64 rows of 64 tokens of 2048 channels take 91 us, and with the
    # shapes of packed sequences 205.
    seqlen = o.inputs.u.shape[2] if o.is_batch else MAX_TOKENS
    usual = SelectiveScanVarlenTilesFwd.TILES
    shapes = [
        shape
        for shape in (usual if is_mixed else TILE_TIMES)
        if shape.fits(input_dtype(o.inputs), o.inputs.d_state, seqlen)
        and shape.has_room(by_channel=by_channel, snapshots=o.snapshots is not None)
    ]
    # Short rows with states inside them may have no shape of their own.
    return min(shapes or usual[:1], key=lambda shape: tile_time(rows, shape, processors, by_channel))


def _short_tokens(o: Operands) -> int:
    """Tokens up to which sequences are walked token by token: many have less to do in all, but do it one by one."""
    _, dim, total = o.inputs.u.shape
    return SHORT if total * dim >= SHORT * FILL * multiprocessors(o.inputs.u.device) else FEW


def _lane_division(o: Operands, lanes: int, states: int) -> Division:
    # A warp that walks token by token shares B and C, and each of its lanes loads one element of them (FewShape).
    is_shared = o.inputs.groups == 1 or o.inputs.u.shape[1] // o.inputs.groups % WARP_SIZE == 0
    short_tokens = _short_tokens(o) if is_shared and 2 * lanes * states <= WARP_SIZE else 0
    return Division(short_tokens, SelectiveScanVarlenFwd.threads // lanes, is_mixed=short_tokens > 0)


def _is_vectors(layout: Layout, states: int) -> bool:
    """Whether this many consecutive states of a channel can be accessed as vectors."""
    wanted = min(states, MAX_VECTOR_BYTES // layout.itemsize)
    outer = layout.active(*range(len(layout.shape) - 1))
    is_whole = layout.strides[-1] == 1 and layout.shape[-1] % states == 0
    return is_whole and widest_vector(layout.itemsize, layout.first, *outer) >= wanted
