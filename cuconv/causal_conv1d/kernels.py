"""The kernels of whole sequences, and what all kernels of convolutions share: frozen dataclasses with the template
parameters as fields.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, ClassVar

from cuconv.jit import source, structs
from cuconv.runtime.dtypes import FLOAT32, FLOATS, DType
from cuconv.runtime.kernel import Kernel
from cuconv.runtime.launch import (
    MAX_DIVIDEND,
    MAX_VECTOR_BYTES,
    WARP_SIZE,
    LaunchConfig,
    TooLarge,
    ceil_div,
    fast_div,
    vectors,
    widest_vector,
)
from cuconv.runtime.layout import Layout, strides_or_zeros

WIDTHS = range(1, 1 + structs.constant(source.load(), "causal_conv1d/conv.cuh", "kMaxWidth"))
"""Filter widths, in taps."""

WIDE_WIDTHS = range(6, WIDTHS.stop)
"""Filter widths for which 16-bit inputs have separate kernels; with 4 taps memory is the limit in any case."""

GATES = ("pre_gate", "post_gate", "residual")
"""The arguments that are elementwise around a convolution: arrays of the shape of x."""

MAX_TOKENS = 2**30
"""Most tokens of a packed call or a decode step: kernels count in 32 bits up to a few tokens beyond the last one."""

MAX_SEQUENCES = 2**30
"""Most sequences of a decode step: kernels count in 32 bits up to a few sequences beyond the last one."""

Division = dict[str, Any]
"""The fields of an argument struct that describe how a launch divides the work."""


def channel_vector_bytes(itemsize: int, width: int) -> int:
    """Bytes of the widest access along channels that leaves enough registers for a thread's taps and window.

    Larger accesses, measured on an H200: width 4 with 16 bytes reaches 0.77 of copy instead of 0.97, width 16 in
    bfloat16 with 8 bytes 0.44 instead of 0.52.
    """
    return 4 if itemsize == 2 and width > 6 else 8


def channel_tile_tokens(itemsize: int, width: int, dim_vecs: int) -> int:
    """Tokens per thread of a kernel with vectors along channels.

    With fewer tokens the halo costs more loads; with more, registers run short. Tokens of only a few vectors also get
    fewer per thread, because the lanes of a warp would lie too far apart in memory.
    """
    tokens = 8 if width <= (4 if itemsize == 2 else 8) else 16
    return tokens if dim_vecs >= 8 else tokens // 2 if dim_vecs > 1 else tokens // 4


SMALL_TILES = 64, 256
"""Threads per multiprocessor, were each to have a whole tile, up to which tiles have a quarter and half of its tokens:
a thread takes its tokens one after another, so a small call is over sooner with more threads. By tokens per thread, us
on an H200, inputs in the L2 cache:

| | threads | 2 | 4 | 8 |
|---|--:|--:|--:|--:|
| dense, bfloat16, 1 x 64 tokens of 512 channels | 8 | 1.68 | 1.77 | 2.03 |
| 1 x 257 of 1024 | 62 | 1.98 | 1.98 | 2.10 |
| 1 x 1025 of 1024 | 248 | 2.88 | 2.71 | 2.70 |
| 1 x 4097 of 1024 | 993 | 6.59 | 5.41 | 5.08 |
| packed, float32, 32 x 7 of 512 | 54 | 3.14 | 3.31 | 3.57 |
| 1 x 512 of 1024 | 248 | 3.49 | 3.25 | 3.33 |
| 1 x 1025 of 1024 | 497 | 5.14 | 4.02 | 3.90 |
"""

SMALL_NORMALIZED_TILES = 128, 512
"""SMALL_TILES where heads are normalised, which takes longer. With 2, 4 and 8 tokens per thread, 64 tokens of 4 heads
of 128 take 4.20, 4.69 and 5.35 us on an H200 in float32, and 2.95, 3.03 and 3.28 in bfloat16; 256 tokens of 16 heads
take 5.94, 4.25 and 4.55 in bfloat16, and 10.8, 9.02 and 8.05 in float32.
"""


def small_tile_tokens(
    itemsize: int, width: int, dim_vecs: int, rows: int, processors: int, small: tuple[int, int] = SMALL_TILES
) -> int:
    """Tokens per thread for a call of `rows` tokens: those of channel_tile_tokens(), or fewer if threads were few.

    A tile reads width - 1 tokens in front of it, so tiles of much fewer tokens seldom pay: with 16 taps in float32
    one sequence of 257 tokens of 4096 channels takes 6.05 us with 16 tokens per thread, and 8.08 with 8.
    """
    most = channel_tile_tokens(itemsize, width, WARP_SIZE)
    threads = rows / most * dim_vecs / processors
    if threads <= small[0]:
        tokens = most // 4 if most // 4 >= width - 2 else most // 2
    else:
        tokens = most // 2 if threads <= small[1] and most // 2 >= width - 2 else most
    return min(tokens, channel_tile_tokens(itemsize, width, dim_vecs))


MAX_LANE_VECS = 4
"""Most vectors of a row per lane, in flight at once: causal_conv1d_fwd reaches 0.96 of copy with 4, 0.87 with 2 and
0.94 with 8."""


GATED_LANE_VECS = 2
"""Most vectors of a row per lane with gates and a residual. With two, three and four, 8 x 4096 x 2048 takes 153.6, 177
and 166 us on an H200, 1 x 2048 x 2048 12.2, 15.0 and 14.3. Packed sequences, which do more besides, have four: 16 x 512
tokens of 8192 channels take 171.8 us with four, and 175.5 with two."""


def lane_vecs_for(row_vecs: int, most: int = MAX_LANE_VECS) -> int:
    """Vectors per lane, `most` at most, with which the tiles of rows of `row_vecs` vectors are filled evenly."""
    tiles = ceil_div(row_vecs, WARP_SIZE * most)
    return ceil_div(ceil_div(row_vecs, tiles), WARP_SIZE)


FEW_WARPS, SOME_WARPS = 4, 12
"""Warps per multiprocessor below which a lane has one vector, and two at most; two also with more warps where rows are
not packed. One row of 512 channels in float32, by vectors per lane, one, two and four: 512 tokens, 4 warps, take 2.17,
2.20 and 2.47 us on an H200, 1024 tokens, 8 warps, 2.67, 2.48 and 2.71, and packed 3.55, 3.38 and 3.57; packed 1024
tokens of 2048 channels, 31 warps, 9.45, 6.68 and 6.08.
"""


def small_lane_vecs(
    row_vecs: int, rows: int, processors: int, some: int = SOME_WARPS, most: int = MAX_LANE_VECS
) -> int:
    """Vectors per lane for `rows` rows: those of lane_vecs_for(), or fewer if warps were few.

    Args:
        row_vecs: vectors per row.
        rows: rows of the call.
        processors: multiprocessors of the GPU.
        some: warps per multiprocessor below which a lane has two vectors at most.
        most: vectors per lane at most.
    """
    lane_vecs = lane_vecs_for(row_vecs, most)
    warps = rows * ceil_div(row_vecs, WARP_SIZE * lane_vecs) / processors
    if warps < FEW_WARPS:
        return 1
    return lane_vecs_for(row_vecs, min(most, 2)) if warps < some else lane_vecs


def taps_are_packed(weight: Layout, bias: Layout | None, vec: int) -> bool:
    """Whether the taps and the biases of `vec` channels can be read by the widest accesses that divide them."""
    dim, width = weight.shape
    access = widest_vector(weight.itemsize, vec * width)
    if (width > 1 and weight.strides[1] != 1) or (dim > 1 and weight.strides[0] != width):
        return False
    if bias is not None and ((dim > 1 and bias.strides[0] != 1) or bias.first % vec):
        return False
    return weight.first % access == 0


def filter_numbers(weight: Layout, bias: Layout | None, vec: int) -> dict[str, object]:
    """The fields of an argument struct for a filter that is read for `vec` channels at a time."""
    return {
        "weight_stride": weight.strides,
        "bias_stride": strides_or_zeros(bias, 1)[0],
        "bias_is_float32": bias is not None and bias.dtype is FLOAT32,
        "taps_are_packed": taps_are_packed(weight, bias, vec),
    }


def states_are_packed(states: Layout, column: int, vec: int) -> bool:
    """Whether vectors of `vec` channels of x are aligned vectors of a pool's columns, too, from this column on."""
    if states.shape[1] > 1 and states.strides[1] != 1:
        return False
    return not any(quantity % vec for quantity in (states.first + column * states.strides[2], *states.active(0, 2)))


def _dense_axes() -> Iterator[dict[str, Any]]:
    """Every combination of the template parameters that all kernels of whole sequences have."""
    flags = (False, True)
    for width, input_t, weight_t in product(WIDTHS, FLOATS, FLOATS):
        for vec, silu, seq_idx, states in product(vectors(input_t), flags, flags, flags):
            types = {"input_t": input_t, "weight_t": weight_t}
            yield {"width": width, **types, "vec": vec, "silu": silu, "seq_idx": seq_idx, "states": states}


@dataclass(frozen=True)
class FilterKernel(Kernel):
    """Base of the kernels with a filter."""

    width: int
    """Taps of the filter."""
    input_t: DType
    """The dtype of x and the results, and of initial and final states."""
    weight_t: DType
    """The dtype of the filter, and of the bias unless it is float32."""


@dataclass(frozen=True)
class PoolKernel(FilterKernel):
    """Base of the kernels with states in a pool."""

    state_t: DType
    """The dtype of the pool of states."""
    vec: int
    """Elements per access to x."""


@dataclass(frozen=True)
class RowKernel(FilterKernel):
    """Base of the kernels of whole sequences with vectors along the sequence."""

    LANE_VECS: ClassVar[tuple[int, ...]]
    """The values of `lane_vecs`."""

    vec: int
    """Elements per access along tokens."""
    lane_vecs: int
    """Vectors per lane."""
    silu: bool
    """Whether SiLU follows the sum."""
    seq_idx: bool
    """Whether tokens have sequence numbers and see only inputs with their own."""
    states: bool
    """Whether initial or final states are given."""

    @classmethod
    def variants(cls) -> Iterator[RowKernel]:
        for axes in _dense_axes():
            for lane_vecs in cls.LANE_VECS:
                yield cls(lane_vecs=lane_vecs, **axes)


@dataclass(frozen=True)
class CausalConv1dFwd(RowKernel):
    """Long rows: a warp owns a tile of one (batch, channel) row, with `lane_vecs` vectors per lane."""

    LANE_VECS: ClassVar[tuple[int, ...]] = tuple(range(1, MAX_LANE_VECS + 1))

    gated: bool = False
    """Whether inputs and results are multiplied by gates, or residuals added to results."""
    shifted: bool = False
    """Whether rows of x are at another distance from alignment than rows of the results."""

    @classmethod
    def variants(cls) -> Iterator[CausalConv1dFwd]:
        for axes, lane_vecs in product(_dense_axes(), cls.LANE_VECS):
            yield cls(lane_vecs=lane_vecs, **axes)
            if lane_vecs <= GATED_LANE_VECS:
                yield cls(lane_vecs=lane_vecs, gated=True, **axes)
            if axes["vec"] == vectors(axes["input_t"])[-1]:
                yield cls(lane_vecs=lane_vecs, shifted=True, **axes)

    def launch_config(self, batch: int, dim: int, row_vecs: int) -> tuple[LaunchConfig, Division]:
        """The launch for batch * dim rows of `row_vecs` vectors."""
        row_tiles = ceil_div(row_vecs, WARP_SIZE * self.lane_vecs)
        tiles = batch * dim * row_tiles
        if tiles > MAX_DIVIDEND:
            raise TooLarge(f"the problem needs {tiles} warps; a launch takes at most {MAX_DIVIDEND}")
        division = {"row_tiles": fast_div(row_tiles), "dim_div": fast_div(dim), "tiles": tiles, "row_vecs": row_vecs}
        return self.config(ceil_div(tiles, self.warps)), division


@dataclass(frozen=True)
class CausalConv1dShortseqFwd(RowKernel):
    """Short rows: the vectors of all rows of a batch entry are one list, and a lane owns the same vector of `lane_vecs`
    consecutive batch entries.
    """

    LANE_VECS: ClassVar[tuple[int, ...]] = (1, 2)
    """Vectors per lane, one per batch entry: 2 reach 0.95 of copy on rows of 64 tokens, 4 only 0.93."""

    def launch_config(self, batch: int, dim: int, row_vecs: int) -> tuple[LaunchConfig, Division]:
        """The launch for batch * dim rows of `row_vecs` vectors."""
        blocks = ceil_div(dim * row_vecs, self.threads)
        division = {"row_vecs": fast_div(row_vecs), "blocks": fast_div(blocks), "batch_vecs": dim * row_vecs}
        return self.config(blocks * ceil_div(batch, self.lane_vecs)), division


@dataclass(frozen=True)
class CausalConv1dOddseqFwd(RowKernel):
    """Short rows of any length that lie end to end: a batch entry is taken as one row, and a lane owns the same vector
    of `lane_vecs` consecutive batch entries.
    """

    LANE_VECS: ClassVar[tuple[int, ...]] = (1, 2)
    """Vectors per lane, one per batch entry."""

    @classmethod
    def variants(cls) -> Iterator[RowKernel]:
        # With one element per access every row is aligned.
        return (kernel for kernel in super().variants() if kernel.vec > 1)

    def launch_config(self, batch: int, dim: int, seqlen: int) -> tuple[LaunchConfig, Division]:
        """The launch for batch entries of `dim` rows of `seqlen` elements, end to end."""
        batch_vecs = ceil_div(dim * seqlen, self.vec)
        blocks = ceil_div(batch_vecs, self.threads)
        division = {"row": fast_div(seqlen), "blocks": fast_div(blocks), "batch_vecs": batch_vecs}
        return self.config(blocks * ceil_div(batch, self.lane_vecs)), division


@dataclass(frozen=True)
class CausalConv1dChannellastFwd(FilterKernel):
    """Contiguous channels: a thread owns `vec` channels of `tokens` consecutive tokens."""

    vec: int
    """Channels per thread."""
    tokens: int
    """Tokens per thread."""
    silu: bool
    """Whether SiLU follows the sum."""
    seq_idx: bool
    """Whether tokens have sequence numbers and see only inputs with their own."""
    states: bool
    """Whether initial or final states are given."""
    gated: bool = False
    """Whether inputs and results are multiplied by gates, or residuals added to results."""

    @classmethod
    def variants(cls) -> Iterator[CausalConv1dChannellastFwd]:
        for axes in _dense_axes():
            width, itemsize = axes["width"], axes["input_t"].itemsize
            if axes["vec"] * itemsize <= channel_vector_bytes(itemsize, width):
                for dim_vecs, gated in product((8, 2, 1), (False, True)):
                    yield cls(tokens=channel_tile_tokens(itemsize, width, dim_vecs), gated=gated, **axes)

    def launch_config(self, batch: int, dim: int, seqlen: int) -> tuple[LaunchConfig, Division]:
        """The launch for x of (batch, dim, seqlen)."""
        dim_blocks, block_vecs = share_channels(ceil_div(dim, self.vec))
        tiles = self.threads // block_vecs
        time_blocks = max(1, ceil_div(seqlen, tiles * self.tokens))
        return self.config(dim_blocks * time_blocks * batch), {
            "block_vecs": fast_div(block_vecs),
            "dim_blocks": fast_div(dim_blocks),
            "time_blocks": fast_div(time_blocks),
            "tiles": tiles,
        }


@dataclass(frozen=True)
class WideKernel(FilterKernel):
    """Base of the kernels of wide filters on 16-bit inputs; all accesses have 16 bytes."""

    VEC: ClassVar[int] = 8
    """Elements per access."""

    silu: bool
    """Whether SiLU follows the sum."""

    @classmethod
    def axes(cls) -> Iterator[dict[str, Any]]:
        """Every combination of the template parameters that the kernels with states have."""
        flags = (False, True)
        inputs = [each for each in FLOATS if each.itemsize * cls.VEC == MAX_VECTOR_BYTES]
        for width, input_t, weight_t, silu, states in product(WIDE_WIDTHS, inputs, FLOATS, flags, flags):
            yield {"width": width, "input_t": input_t, "weight_t": weight_t, "silu": silu, "states": states}


@dataclass(frozen=True)
class CausalConv1dWideFwd(WideKernel):
    """Rows of whole vectors: a warp walks a part of a row, with `lane_vecs` vectors per lane at a time."""

    WALK: ClassVar[int] = 256
    """Vectors per warp, rounded up to whole units."""

    states: bool
    """Whether initial or final states are given."""
    lane_vecs: int
    """Vectors per lane."""

    @classmethod
    def variants(cls) -> Iterator[CausalConv1dWideFwd]:
        for axes, lane_vecs in product(cls.axes(), (1, 2, 3)):
            yield cls(lane_vecs=lane_vecs, **axes)

    @staticmethod
    def lane_vecs_for(row_vecs: int) -> int:
        """Vectors per lane for rows of `row_vecs` vectors: 2 unless 3 leave fewer lanes idle.

        Measured on an H200 with 16 taps: 8 x 4096 x 2048 takes 69.2 us with 2 and 76.4 with 4, 32 x 2048 x 768 takes
        63.9 with 3 and 74.5 with 2.
        """
        if row_vecs <= WARP_SIZE:
            return 1
        return min((2, 3), key=lambda lane_vecs: ceil_div(row_vecs, lane_vecs * WARP_SIZE) * lane_vecs)

    def launch_config(self, batch: int, dim: int, row_vecs: int) -> tuple[LaunchConfig, Division]:
        """The launch for batch * dim rows of `row_vecs` vectors."""
        unit = self.lane_vecs * WARP_SIZE
        walk_vecs = unit * ceil_div(min(row_vecs, self.WALK), unit)
        row_walks = ceil_div(row_vecs, walk_vecs)
        walks = batch * dim * row_walks
        if walks > MAX_DIVIDEND:
            raise TooLarge(f"the problem needs {walks} warps; a launch takes at most {MAX_DIVIDEND}")
        return self.config(ceil_div(walks, self.warps)), {
            "row_walks": fast_div(row_walks),
            "dim_div": fast_div(dim),
            "walks": walks,
            "walk_vecs": walk_vecs,
            "row_vecs": row_vecs,
        }


@dataclass(frozen=True)
class CausalConv1dWideshortFwd(WideKernel):
    """Short rows of whole vectors, without states: a warp has the rows of some channels, and walks batch entries."""

    ENTRIES: ClassVar[range] = range(4, 33)
    """Batch entries per warp: with fewer the kernel is not used; with more the last warps would run alone for long."""

    @classmethod
    def variants(cls) -> Iterator[CausalConv1dWideshortFwd]:
        for axes in cls.axes():
            if not axes.pop("states"):
                yield cls(**axes)

    def entries(self, batch: int, dim: int, row_vecs: int, multiprocessors: int) -> int:
        """Batch entries per warp, so that all warps run in a whole number of waves."""
        work = batch * ceil_div(dim, WARP_SIZE // row_vecs)
        resident = multiprocessors * self.constants["kMinBlocks"] * self.warps
        waves = ceil_div(work, resident * self.ENTRIES[-1])
        return ceil_div(work, resident * waves) if work else 0

    def launch_config(self, batch: int, dim: int, row_vecs: int, entries: int) -> tuple[LaunchConfig, Division]:
        """The launch for batch * dim rows of `row_vecs` vectors."""
        channel_warps = ceil_div(dim, WARP_SIZE // row_vecs)
        warps = channel_warps * ceil_div(batch, entries)
        if warps > MAX_DIVIDEND:
            raise TooLarge(f"the problem needs {warps} warps; a launch takes at most {MAX_DIVIDEND}")
        return self.config(ceil_div(warps, self.warps)), {
            "row_vecs": fast_div(row_vecs),
            "channel_warps": fast_div(channel_warps),
            "warps": warps,
            "entries": entries,
        }


@dataclass(frozen=True)
class CausalConv1dChannellastWideFwd(WideKernel):
    """Contiguous channels: a warp walks tokens of 64 channels, side by side with the others of its block."""

    MOST_TOKENS: ClassVar[int] = 512
    """Most tokens per block."""
    START_TOKENS: ClassVar[int] = 64
    """The tokens that a block could convolve in the time in which it begins."""

    states: bool
    """Whether initial or final states are given."""

    @classmethod
    def variants(cls) -> Iterator[CausalConv1dChannellastWideFwd]:
        for axes in cls.axes():
            yield cls(**axes)

    def walk_tokens(self, batch: int, dim: int, seqlen: int, multiprocessors: int) -> int:
        """Tokens per block: many share the loads of the filter, few lie close together in memory and leave more blocks.

        Measured on an H200 for 8 x 4096 x 2048: 8 taps take 72.4 us with 64 tokens and 76.5 with 256, 16 taps 85.9 and
        79.2. 1 x 4096 x 2048 with 16 taps takes 13.8 us with 128 and 14.3 with 256, 1 x 2048 x 1024 6.2 with 64 and 8.1
        with 128. The larger numbers are chosen to make whole waves of blocks: 75.8 us with 512 tokens instead of 76.3
        with 256, and for 2 x 5120 x 4096 49.7 with 320.
        """
        tokens = 64 if self.width <= 8 else 128 if self.width <= 12 else 256
        columns = batch * ceil_div(dim, self.constants["kChannels"])
        while tokens > 16 and columns * ceil_div(seqlen, tokens) < (6 if tokens > 64 else 2) * multiprocessors:
            tokens //= 2
        if tokens < self.MOST_TOKENS // 2:
            return tokens
        rows, at_once = batch * self.share(dim)[0], multiprocessors * self.constants["kMinBlocks"]

        def cost(tokens: int) -> tuple[int, int]:
            waves = ceil_div(rows * ceil_div(seqlen, tokens), at_once)
            return waves * (tokens + self.START_TOKENS), -tokens

        return min(range(tokens, self.MOST_TOKENS + 1, self.constants["kTokens"]), key=cost)

    def share(self, dim: int) -> tuple[int, int]:
        """Blocks across the channels, and warps per block: an even share."""
        warps = ceil_div(dim, self.constants["kChannels"])
        dim_blocks = ceil_div(warps, self.warps)
        return dim_blocks, ceil_div(warps, dim_blocks)

    def launch_config(self, batch: int, dim: int, seqlen: int, tokens: int) -> tuple[LaunchConfig, Division]:
        """The launch for x of (batch, dim, seqlen), with this many tokens per block."""
        dim_blocks, warps = self.share(dim)
        walks = max(1, ceil_div(seqlen, tokens))
        division = {"dim_blocks": fast_div(dim_blocks), "walks": fast_div(walks), "tokens": tokens}
        return LaunchConfig((batch * dim_blocks * walks, 1, 1), (warps * WARP_SIZE, 1, 1)), division


ODD_CHANNELS, ODD_LANES, ODD_WIDTHS = 4, 30, range(1, 5)
"""Channels per thread of CausalConv1dOddchannelsFwd, lanes per warp with results, and the filter widths that it takes.
With 6 taps one channel per thread is quicker, 60.5 us instead of 63.3 for 8 x 2049 x 2048 (measured on an H200).
"""

ODD_TOKENS, MORE_ODD_TOKENS, MOST_ODD_TOKENS = 8, 9, 16
"""Tokens per thread of CausalConv1dOddchannelsFwd. Without sequence numbers and states there are more where they make
fewer blocks, and most where a block then has a whole sequence. On an H200 9 take 71.4 us instead of 74.1 for 8 x 4097 x
2048, and for 1 x 2049 x 2048, which then is one wave of blocks, 7.8 instead of 8.9; 16 take 24.7 instead of 25.5 for
512 x 515 x 64, but 9.3 for 1 x 2049 x 2048.
"""

LONG_ODD_TOKENS = 256
"""Tokens of a sequence from which MORE_ODD_TOKENS are best with sequence numbers or states, and tiles inside a sequence
have separate code. On an H200 64 x 4097 x 256 take 74.8 us with sequence numbers instead of 75.8, and 81.7 with states
instead of 84.1; 128 x 4097 x 128 take 79.7 instead of 75.7, and 88.9 instead of 87.5.
"""


@dataclass(frozen=True)
class CausalConv1dOddchannelsFwd(FilterKernel):
    """Contiguous channels of 16 bits, of tokens that begin at any element: a thread owns `vec` channels of `tokens`
    consecutive tokens, and a warp consecutive channels of the same tokens.
    """

    vec: int
    """Channels per thread."""
    tokens: int
    """Tokens per thread."""
    silu: bool
    """Whether SiLU follows the sum."""
    seq_idx: bool
    """Whether tokens have sequence numbers and see only inputs with their own."""
    states: bool
    """Whether initial or final states are given."""

    @classmethod
    def variants(cls) -> Iterator[CausalConv1dOddchannelsFwd]:
        for axes in _dense_axes():
            if axes["input_t"].itemsize == 2 and axes["width"] in ODD_WIDTHS and axes["vec"] == ODD_CHANNELS:
                yield cls(tokens=ODD_TOKENS, **axes)
                yield cls(tokens=MORE_ODD_TOKENS, **axes)
                if not (axes["seq_idx"] or axes["states"]):
                    yield cls(tokens=MOST_ODD_TOKENS, **axes)

    def with_most_tokens(self, seqlen: int) -> CausalConv1dOddchannelsFwd:
        """The kernel with the best number of tokens per thread for x of this length."""
        if self.seq_idx or self.states:
            return replace(self, tokens=MORE_ODD_TOKENS) if seqlen >= LONG_ODD_TOKENS else self
        fewer, more, most = (self.warps * n for n in (ODD_TOKENS, MORE_ODD_TOKENS, MOST_ODD_TOKENS))
        if more < seqlen <= most:
            return replace(self, tokens=MOST_ODD_TOKENS)
        return replace(self, tokens=MORE_ODD_TOKENS) if ceil_div(seqlen, more) < ceil_div(seqlen, fewer) else self

    def launch_config(self, batch: int, dim: int, seqlen: int) -> tuple[LaunchConfig, Division]:
        """The launch for x of (batch, dim, seqlen)."""
        dim_blocks, _ = share_odd_channels(dim)
        time_blocks = max(1, ceil_div(seqlen, self.warps * self.tokens))
        division = {"dim_blocks": fast_div(dim_blocks), "time_blocks": fast_div(time_blocks)}
        return self.config(dim_blocks * time_blocks * batch), division


def share_odd_channels(dim: int) -> tuple[int, int]:
    """Blocks across `dim` channels of CausalConv1dOddchannelsFwd, and the lanes that have any, one warp of each block.

    The results of a lane begin in its channels, so the first ones are those of a lane in front of the first channel.
    """
    lanes = 1 + ceil_div(dim, ODD_CHANNELS)
    return ceil_div(lanes, ODD_LANES), lanes


def share_channels(dim_vecs: int, most: int = WARP_SIZE) -> tuple[int, int]:
    """Blocks across `dim_vecs` channel vectors, and the channel vectors of each: an even share of at most `most`."""
    dim_blocks = ceil_div(dim_vecs, most)
    return dim_blocks, ceil_div(dim_vecs, dim_blocks)
