"""Which kernels the gradients of a selective scan run, and how: a pure function of layouts."""

from __future__ import annotations

from operator import attrgetter
from typing import Any, NamedTuple

from cuconv.runtime.dtypes import FLOAT32, INT64, DType
from cuconv.runtime.launch import LaunchConfig, ceil_div, fast_div, widest_vector
from cuconv.runtime.layout import Layout
from cuconv.runtime.machine import has_shared_memory, multiprocessors
from cuconv.runtime.plan import Launch, Plan
from cuconv.selective_scan.check import Inputs, is_variable
from cuconv.selective_scan.kernels import MAX_TOKENS, chunk_tokens, tile_time
from cuconv.selective_scan.kernels_backward import (
    SelectiveScanBwd,
    SelectiveScanBwdFewStates,
    SelectiveScanBwdOverlapped,
    SelectiveScanBwdShort,
    SelectiveScanBwdStart,
    SelectiveScanBwdStates,
    SelectiveScanBwdSums,
    SelectiveScanBwdSweeps,
    group_channels,
)
from cuconv.selective_scan.plan import CHANNELS, is_float32, tile_axis
from cuconv.selective_scan.plan_dense import tile_shapes
from cuconv.selective_scan.plan_turned import LEAST_TOKENS, Turned, packed, turned

COUNTERS = 4
"""Floats of scratch before everything else: kCounters of selective_scan/scan_bwd.cuh."""

BLOCK_CHANNELS = 3
"""The time of a block before its first channel and after its last one, in channels of 16 states that it could walk
meanwhile."""

SUMS_OF_CHANNEL = 2000
"""Rows of sums that take as long, to be written and to be added up, as a block takes for a channel of 16 states. With
it the choice for 24 small calls, from 16 to 256 blocks a group, takes on average 0.6 % longer than the quickest.
"""

SUMS_OF_STEP = 4000
"""Rows of sums that take as long as a step where channels are walked side by side: rows of sums are shorter, and a step
is longer. With it the choice for 30 calls, from 1 to 640 blocks a group, takes on average 0.1 % longer than the
quickest, and 2 % with a value of 2000.
"""

LONG = 512
"""Mean tokens per packed sequence from which on sequences have separate chunks, where tokens are accessed one by one,
and in float32 with states. On an H200 16 sequences of 512 tokens and 1536 channels take 684 us with separate chunks in
float32, and 788 with shared ones; in bfloat16 one by one 2341 and 2512, and 512 sequences of 8192 tokens in all 8906
and 2842.
"""

MANY_ROWS = 16384
"""Rows from which on the time of a batch is that of all its chunks: sharing is then quicker if it leaves half as many
chunks, with fewer rows if it leaves a third. On an H200 64 x 1536 of 32 tokens, contiguous channels, take 165 us with
shared chunks and 750 with a chunk per row, of 128 tokens 592 and 780; 16 x 1536 of 128 166 and 207, contiguous tokens
183 and 195; 4 x 1536 of 64 65.8 and 80.8, but of 100 94.3 and 80.8 (bfloat16).
"""

SMALL_SUMS = 8 * 2**20
"""Bytes that sums of dB and dC may always take, however small the gradients are: a block walks its channels one by one,
so that few tokens need many blocks."""

APART = 8000
"""Elements of u per multiprocessor up to which short rows, with tokens apart in memory, are walked side by side. On an
H200 16 x 256 contiguous channels of 24 tokens take 15.1 us side by side and 34.3 as packed sequences, 16 x 1536 of 32
50.8 and 64.4, but 256 x 256 of 24 137 and 125 (bfloat16).
"""

FEW_ROWS = 16
"""Rows per multiprocessor below which there are enough blocks for a chunk per row."""

WORTH_SWEEPING = 10
"""The time of a forward scan by sweeps, tile_time() times multiprocessors for each row, up to which the same sweeps
find the states before chunks sooner than blocks of chunks do. On an H200, at 5.7 (1 x 5120 x 4096, bfloat16), sweeps
take 154 us, 0.7 of the forward scan; blocks of chunks 264, in proportion to the rows."""


READ = ("u", "delta", "z", "dout", "B", "C")
"""The arrays of rows and matrices that are read, and may be copied."""


class BackwardOperands(NamedTuple):
    """The layouts of one valid call; None stands for an argument that is absent. Packed tokens count as one row."""

    u: Layout
    """(batch, dim, tokens), and so are delta, z, dout, du, ddelta and dz."""
    delta: Layout
    A: Layout
    B: Layout
    """(batch, ngroups, d_state, tokens), or (dim, d_state) of a constant; and so are C, dB and dC."""
    C: Layout
    D: Layout | None
    z: Layout | None
    delta_bias: Layout | None
    dout: Layout
    initial_state: Layout | None
    """(sequences, dim, d_state), and so are dlast_state and dinitial_state."""
    dlast_state: Layout | None
    chunk_states: Layout | None
    query_start_loc: Layout | None
    du: Layout
    ddelta: Layout
    dA: Layout
    dB: Layout
    dC: Layout
    dD: Layout | None
    dz: Layout | None
    ddelta_bias: Layout | None
    dinitial_state: Layout | None
    delta_softplus: bool
    is_packed: bool
    row_tokens: int = 0
    """Tokens of each packed sequence where these are rows of a batch; the first launch then writes their borders."""

    @property
    def input_t(self) -> DType:
        """The dtype of rows and of variable B and C."""
        assert isinstance(self.u.dtype, DType)
        return self.u.dtype

    @property
    def d_state(self) -> int:
        """States per channel."""
        return self.A.shape[1]

    @property
    def sequences(self) -> int:
        """Rows of the arrays of states."""
        if not self.is_packed:
            return self.u.shape[0]
        return 1 if self.query_start_loc is None else self.query_start_loc.shape[0] - 1

    @property
    def shares_chunks(self) -> bool:
        """Whether packed sequences share chunks. Where sequences have states this needs shared memory that not all
        devices have."""
        if self.query_start_loc is None or self.d_state > SelectiveScanBwd.MOST_STATES:
            return False
        # Sharing chunks takes longer where tokens are apart in memory, and in float32 with states.
        is_apart = self.vector == 0 and not self.by_channel(shares_chunks=True)
        is_slower = is_apart or (self.has_states and self.u.itemsize == 4)
        if is_slower and self.sequences * LONG <= self.u.shape[2]:
            return False
        return self._has_room(self._kernel(by_channel=False, shares_chunks=True))

    @property
    def has_states(self) -> bool:
        """Whether rows begin with states or end with gradients of states."""
        return any((self.initial_state, self.dlast_state))

    @property
    def has_short_rows(self) -> bool:
        """Whether rows of a batch are quicker as packed sequences, which share chunks."""
        batch, dim, tokens = self.u.shape
        if self.is_packed or not self.has_variables or not 0 < batch * tokens <= MAX_TOKENS:
            return False
        if batch * dim < FEW_ROWS * multiprocessors(self.u.device):
            return False
        times = 2 if batch * dim >= MANY_ROWS else 3
        return times * ceil_div(batch * tokens, chunk_tokens()) <= batch * self.chunks

    @property
    def rows(self) -> list[Layout]:
        """The layouts of (batch, dim, tokens) that are given."""
        found = (self.u, self.delta, self.z, self.dout, self.du, self.ddelta, self.dz)
        return [row for row in found if row is not None]

    @property
    def has_variables(self) -> bool:
        """Whether B and C both depend on the token."""
        return is_variable(self.B) and is_variable(self.C)

    def by_channel(self, *, shares_chunks: bool) -> bool:
        """Whether channels come in groups: they are neighbours in every row, in whole vectors, and there is room."""
        size = group_channels(self.input_t)
        if not self.has_variables or self.u.shape[1] // self.groups % size:
            return False
        if any(
            row.strides[1] != 1 or widest_vector(row.itemsize, row.first, *row.active(0, 2)) < size for row in self.rows
        ):
            return False
        kernel = self._kernel(by_channel=True, shares_chunks=shares_chunks)
        return kernel.fits and self._has_room(kernel)

    @property
    def kernel(self) -> SelectiveScanBwd:
        """The general kernel for these operands."""
        shares = self.shares_chunks
        return self._kernel(by_channel=self.by_channel(shares_chunks=shares), shares_chunks=shares)

    @property
    def has_few_states(self) -> bool:
        """Whether there are so few states that a lane can have all of them."""
        return self.has_variables and not self.is_packed and self.d_state <= SelectiveScanBwdFewStates.STATES[-1]

    @property
    def of_few_states(self) -> SelectiveScanBwdFewStates | None:
        """The kernel in which lanes have all states, where these operands can run it."""
        if not self.has_few_states or any(row.strides[2] != 1 for row in self.rows):
            return None
        widest = min(widest_vector(row.itemsize, row.first, *row.active(0, 1)) for row in self.rows)
        vec = max(vec for vec in SelectiveScanBwdFewStates.accesses(self.input_t) if vec <= widest)
        states = next(states for states in SelectiveScanBwdFewStates.STATES if self.d_state <= states)
        return SelectiveScanBwdFewStates(self.input_t, vec, states)

    @property
    def of_short_rows(self) -> SelectiveScanBwdShort | None:
        """The kernel with rows side by side, where these operands can run it."""
        kernel, tokens = SelectiveScanBwdShort, self.u.shape[2]
        if self.is_packed or not self.has_variables or self.d_state > kernel.STATES[-1]:
            return None
        are_apart = tokens == 1 or any(row.strides[2] != 1 for row in self.rows)
        if not 0 < tokens <= kernel.most_tokens(self.d_state, are_apart=are_apart):
            return None
        if are_apart:
            is_slower = self.u.size > APART * multiprocessors(self.u.device)
            return None if is_slower else kernel.of(self.input_t, 0, self.d_state, tokens)
        widest = min(widest_vector(row.itemsize, row.first, tokens, *row.active(0, 1)) for row in self.rows)
        return kernel.of(self.input_t, widest, self.d_state, tokens)

    @property
    def is_apart(self) -> bool:
        """Whether each number of a row is accessed alone."""
        kernel = self.kernel
        return not kernel.vec and not kernel.by_channel

    @property
    def has_words(self) -> bool:
        """Whether rows can be read by words of two tokens: rows of all arrays begin with the same half of a word, and
        where this is the second half, the first is the end of another row.
        """
        if self.u.itemsize == FLOAT32.itemsize:
            return True
        batch, dim, tokens = self.u.shape

        def steps(row: Layout) -> tuple[int, int]:
            return (row.strides[0] if batch > 1 else 0), (row.strides[1] if dim > 1 else 0)

        def is_readable(row: Layout) -> bool:
            of_batch, of_dim = steps(row)
            return row.first % 2 == 0 and (
                (of_batch % 2 == 0 and of_dim % 2 == 0)
                or (of_dim == tokens and (of_batch % 2 == 0 or of_batch == dim * tokens))
                or (of_batch == tokens and (of_dim % 2 == 0 or of_dim == batch * tokens))
            )

        rows = [row for row in (self.u, self.delta, self.dout, self.z) if row is not None]
        alike = {tuple(step % 2 for step in steps(row)) for row in rows}
        return len(alike) == 1 and all(map(is_readable, rows))

    def _kernel(self, *, by_channel: bool, shares_chunks: bool) -> SelectiveScanBwd:
        # Packed sequences with separate chunks begin anywhere.
        most = 2 if self.query_start_loc is None or shares_chunks else 1
        return SelectiveScanBwd(
            self.input_t,
            vec=0 if by_channel else min(self.vector, most),
            by_channel=by_channel,
            many_states=self.d_state > SelectiveScanBwd.MOST_STATES,
            constant_b=not is_variable(self.B),
            constant_c=not is_variable(self.C),
            shares_chunks=shares_chunks,
            has_states=shares_chunks and self.has_states,
        )

    def _has_room(self, kernel: SelectiveScanBwd) -> bool:
        """Whether the device has the shared memory of a block, where that is more than every device has."""
        return not kernel.dynamic_bytes or has_shared_memory(self.u.device, kernel.shared_bytes)

    @property
    def vector(self) -> int:
        """Tokens per access, 2 or 1; 0 where B or C is constant, or the tokens of a row are not contiguous."""
        if not self.has_variables:
            return 0
        rows, tokens = self.rows, self.u.shape[2]
        if tokens > 1 and any(row.strides[2] != 1 for row in rows):
            return 0
        is_even = tokens % 2 == 0
        is_aligned = all(widest_vector(row.itemsize, row.first, *row.active(0, 1)) >= 2 for row in rows)
        return 2 if is_even and is_aligned else 1

    @property
    def groups(self) -> int:
        """Groups of channels that share B and C, as far as these depend on the token."""
        return max((matrix.shape[1] for matrix in (self.B, self.C) if is_variable(matrix)), default=1)

    @property
    def likely_chunks(self) -> int:
        """Places for chunks in a row that are likely used: a guess that every second sequence uses its further
        place."""
        tokens = self.u.shape[2]
        return min(self.chunks, max(1, ceil_div(tokens, chunk_tokens()) + self.sequences // 2))

    @property
    def matrix_rows(self) -> int:
        """Rows of tokens in a group's dB and dC."""
        return self.d_state * (is_variable(self.B) + is_variable(self.C))

    @property
    def rows_of_sums(self) -> int:
        """Rows of tokens in a group's dB and dC of all chunks."""
        return self.u.shape[0] * self.chunks * self.groups * self.matrix_rows

    @property
    def chunks(self) -> int:
        """Places for chunks in a row. If packed sequences do not share chunks, each has one further place, and so has
        the padding at both ends. Only the device knows which places are used."""
        tokens = self.u.shape[2]
        if self.query_start_loc is not None and not self.shares_chunks:
            return tokens // chunk_tokens() + self.sequences + 2
        return max(1, ceil_div(tokens, chunk_tokens()))


class Division(NamedTuple):
    """How the channels of a group are divided over blocks."""

    splits: int
    channels: int
    """Channels per block. The last block of a group may have fewer."""


class Scratch(NamedTuple):
    """Where the parts of scratch begin, in floats."""

    states_at: int
    filled: int
    """Floats at the front that are marked as not yet written."""
    zeros: int
    """Floats behind them that begin as zeros: the sums over tokens, which no block writes for a chunk without
    tokens."""
    rates_at: int
    vectors_at: int
    constants_at: int
    more_constants_at: int
    matrices_at: int
    floats: int


def plan(o: BackwardOperands) -> Plan:
    """The launches of a call and the bytes of its scratch.

    Where rows have several chunks, the first launch marks the numbers that blocks wait for as not yet written. The next
    one computes the states before chunks, unless the forward pass has kept them. Then come the gradients, and last the
    sums over blocks. Arrays that are laid out otherwise than u, or not aligned, are copied first, and their gradients
    copied back last. Short rows are walked side by side, or are packed sequences.
    """
    if alike := _alike(o):
        return alike.joined(plan(alike.operands))
    batch, dim, _ = o.u.shape
    input_t, kernel = o.input_t, _kernel(o)
    # Every block leaves sums for all its tokens: in all at most as much as du and ddelta, or SMALL_SUMS, unless one
    # block has more.
    most = max(
        dim // o.groups * o.u.itemsize // (FLOAT32.itemsize * o.d_state),
        SMALL_SUMS // max(1, batch * o.chunks * o.groups * _sums_floats(o) * FLOAT32.itemsize),
    )
    by_channel = isinstance(kernel, SelectiveScanBwd) and kernel.by_channel
    abreast = kernel.rows if isinstance(kernel, SelectiveScanBwdShort) else 0
    at_once = group_channels(input_t) if by_channel else max(1, abreast)
    division = divide(o, kernel.resident, most, at_once, abreast)
    scratch = _scratch(o, division)
    known = {**_numbers(o, scratch), **_division_numbers(o, division)}
    launches = []

    def add(kernel: Any, config: LaunchConfig) -> None:
        launches.append(Launch(kernel, config, kernel.params.pack_numbers(**known)))

    if batch and dim:
        # Rows of a batch are never empty sequences.
        has_states = o.shares_chunks and o.initial_state is not None and not o.row_tokens
        if o.chunks > 1 or has_states or o.row_tokens:
            start = SelectiveScanBwdStart(has_states=has_states, has_rows=o.row_tokens > 0)
            add(start, start.config(ceil_div(scratch.filled + scratch.zeros, start.vec * start.threads)))
        if _needs_states(o) and (swept := _swept(o)) is not None:
            config, sweeps = swept.launch_config(dim, batch)
            launches.append(Launch(swept, config, swept.params.pack_numbers(**known | sweeps)))
        elif _needs_states(o):
            states = SelectiveScanBwdStates(input_t, by_channel, not is_variable(o.B), o.shares_chunks)
            resident = states.constants["kFewBlocks" if o.shares_chunks or by_channel else "kBlocks"]
            own = divide(o, resident, dim // o.groups, at_once, leaves_sums=False)
            numbers = states.params.pack_numbers(**known | _division_numbers(o, own))
            launches.append(Launch(states, states.config(_blocks(o, own)), numbers))
        add(kernel, kernel.config(_blocks(o, division), kernel.dynamic_bytes))
    # Sums over nothing are zeros.
    rows = o.rows_of_sums
    if rows or dim:
        sums = SelectiveScanBwdSums.of(input_t, rows, division.splits)
        config, places = sums.launch_config(rows, dim, o.d_state, has_constants=not o.has_variables)
        launches.append(Launch(sums, config, sums.params.pack_numbers(**known | places)))
    return Plan(tuple(launches), scratch=scratch.floats * FLOAT32.itemsize)


def _alike(o: BackwardOperands) -> Turned | None:
    """Operands with copies for a quicker kernel, or with short rows as packed sequences; None where neither helps."""
    if o.of_short_rows:
        return None
    written = ("du", "ddelta", "dz")
    few = o.of_few_states
    if o.u.size and o.has_few_states and not few:
        fits = attrgetter("of_few_states")
        copied = turned(o, READ, written, fits, tokens_at_once=1, least_copied=LEAST_TOKENS)
        if copied:
            return copied
    short = packed(o, READ, (*written, "dB", "dC")) if o.has_short_rows and not few else None
    if short and short.operands.shares_chunks and not short.operands.is_apart:
        return short
    if o.u.size and o.has_variables and o.is_apart:
        return turned(o, READ, written, lambda alike: not alike.is_apart, tokens_at_once=1)
    return None


Kernels = SelectiveScanBwd | SelectiveScanBwdFewStates | SelectiveScanBwdOverlapped | SelectiveScanBwdShort


def _kernel(o: BackwardOperands) -> Kernels:
    if special := o.of_short_rows or o.of_few_states:
        return special
    kernel = o.kernel
    # The overlapped kernel also advances absent rows from channel to channel, so it has to be given z.
    is_possible = kernel.vec == 2 or (kernel.vec == 1 and not o.is_packed and o.has_words)
    if is_possible and not kernel.shares_chunks and o.z is not None:
        overlapped = SelectiveScanBwdOverlapped(o.input_t, kernel.many_states, kernel.vec)
        # If only one block fits on a multiprocessor, no other block fills its waiting times.
        if has_shared_memory(o.u.device, overlapped.resident * overlapped.dynamic_bytes):
            return overlapped
    return kernel


def divide(
    o: BackwardOperands, resident: int, most: int, at_once: int = 1, abreast: int = 0, *, leaves_sums: bool = True
) -> Division:
    """The fastest division of each group's channels over at most `most` blocks; `at_once` channels stay together.

    A multiprocessor holds `resident` blocks at once. A block's time is that of its channels, or of its steps where
    `abreast` channels are walked side by side, and of BLOCK_CHANNELS more. Where blocks leave sums, these are written
    and added up.
    """
    batch, dim, _ = o.u.shape
    own = dim // o.groups
    rows, places = batch * o.likely_chunks * o.groups, multiprocessors(o.u.device) * resident

    def channels_of(splits: int) -> int:
        return max(1, ceil_div(ceil_div(own, splits), at_once) * at_once)

    runs = ceil_div(o.d_state, SelectiveScanBwd.MOST_STATES)

    def time(splits: int) -> int:
        walks = ceil_div(rows * splits, places) * (channels_of(splits) // max(1, abreast) * runs + BLOCK_CHANNELS)
        return walks * (SUMS_OF_CHANNEL if abreast == 0 else SUMS_OF_STEP) + o.rows_of_sums * splits * leaves_sums

    splits = min(range(1, max(1, min(most, own)) + 1), key=time)
    channels = channels_of(splits)
    return Division(max(1, ceil_div(own, channels)), channels)


def _sums_floats(o: BackwardOperands) -> int:
    """Floats of the sums of dB and dC that a block leaves."""
    return 2 * o.d_state * chunk_tokens()


def _blocks(o: BackwardOperands, division: Division) -> int:
    return o.u.shape[0] * o.groups * division.splits * o.chunks


def _needs_states(o: BackwardOperands) -> bool:
    return o.chunk_states is None and ((o.query_start_loc is not None and not o.shares_chunks) or o.chunks > 1)


def _swept(o: BackwardOperands) -> SelectiveScanBwdSweeps | None:
    """The kernel with lanes that sweep channels to the states before chunks, if there is one and it is quicker."""
    if o.is_packed or not is_variable(o.B):
        return None
    # Neither C nor z is read, and nothing is written but states.
    inputs = Inputs(o.u, o.delta, o.A, o.B, o.B, None, None, o.delta_bias, o.u, o.delta_softplus)
    shapes = [shape for shape in tile_shapes(inputs) if shape.sweeps]
    if not shapes:
        return None
    rows, processors = o.u.shape[0] * o.u.shape[1], multiprocessors(o.u.device)
    by_channel = tile_axis(inputs, shapes[0].channels) == CHANNELS
    shape = min(shapes, key=lambda shape: tile_time(rows, shape, processors, by_channel))
    if tile_time(rows, shape, processors, by_channel) * processors > WORTH_SWEEPING * rows:
        return None
    return SelectiveScanBwdSweeps(o.input_t, shape.parts, shape.at_once, by_channel)


def _scratch(o: BackwardOperands, division: Division) -> Scratch:
    batch, dim, _ = o.u.shape
    chunks = batch * o.chunks
    per_state = chunks * dim * o.d_state
    has_matrices = is_variable(o.B) or is_variable(o.C)
    begins = [0]
    for size in (
        COUNTERS + per_state,
        per_state if _needs_states(o) else 0,
        per_state,
        chunks * dim * SelectiveScanBwd.warps * 2,
        0 if is_variable(o.B) else per_state,
        0 if is_variable(o.C) else per_state,
        chunks * o.groups * division.splits * _sums_floats(o) if has_matrices else 0,
    ):
        # Vectors begin at multiples of four floats.
        begins.append(begins[-1] + ceil_div(size, 4) * 4)
    _, states, rates, vectors, constants, more_constants, matrices, end = begins
    zeros = matrices - rates if o.query_start_loc is not None and not o.shares_chunks else 0
    return Scratch(states, rates, zeros, rates, vectors, constants, more_constants, matrices, end)


def _numbers(o: BackwardOperands, scratch: Scratch) -> dict[str, Any]:
    batch, dim, tokens = o.u.shape
    found: dict[str, Any] = {}
    for name in ("u", "delta", "z", "dout", "du", "ddelta", "dz", "initial_state", "dlast_state", "dinitial_state"):
        found[f"{name}_stride"] = _strides(getattr(o, name), 3)
    for name in ("A", "dA"):
        found[f"{name}_stride"] = getattr(o, name).strides
    for name in ("B", "C", "dB", "dC"):
        matrix = getattr(o, name)
        # A constant has no axes of batch and tokens.
        found[f"{name}_stride"] = matrix.strides if is_variable(matrix) else (0, *matrix.strides, 0)
    for name in ("D", "dD", "delta_bias", "ddelta_bias", "query_start_loc"):
        found[f"{name}_stride"] = _strides(getattr(o, name), 1)[0]
    for name in ("B", "C", "D", "delta_bias"):
        found[f"{name}_is_float32"] = is_float32(getattr(o, name))
    own_states = (o.chunks * dim * o.d_state, dim * o.d_state, o.d_state, 1)
    where = scratch._asdict()
    del where["floats"]
    return {
        **found,
        **where,
        "chunk_states_stride": o.chunk_states.strides if o.chunk_states else own_states,
        "groups": fast_div(o.groups),
        "group_dim": fast_div(max(1, dim // o.groups)),
        "dim_blocks": fast_div(1),
        "matrix_rows": fast_div(max(1, o.matrix_rows)),
        "constant_B": not is_variable(o.B),
        "constant_C": not is_variable(o.C),
        "batch": batch,
        "dim": dim,
        "total": tokens,
        "chunks": o.chunks,
        "sequences": o.sequences,
        "d_state": o.d_state,
        "group_channels": dim // o.groups,
        "delta_softplus": o.delta_softplus,
        "shares_chunks": o.shares_chunks,
        "row_tokens": o.row_tokens,
        "query_start_loc_is_int64": o.query_start_loc is not None and o.query_start_loc.dtype is INT64,
    }


def _division_numbers(o: BackwardOperands, division: Division) -> dict[str, Any]:
    return {
        "rows": fast_div(max(1, o.u.shape[0]) * o.groups * division.splits),
        "batch_rows": fast_div(o.groups * division.splits),
        "splits": fast_div(division.splits),
        "split_channels": division.channels,
    }


def _strides(layout: Layout | None, rank: int) -> tuple[int, ...]:
    return layout.strides if layout else (0,) * rank
