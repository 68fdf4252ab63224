"""The kernels of the causal convolutions: frozen dataclasses with the template parameters as fields."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, product
from math import gcd
from typing import Any, ClassVar

from cuconv.causal_conv1d.ranges import MAX_RANGES, Ranges
from cuconv.jit import source, structs
from cuconv.runtime.dtypes import FLOAT32, FLOATS, DType
from cuconv.runtime.kernel import Kernel, PerClass
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

MAX_TOKENS = 2**30
"""Most tokens of a packed call or a decode step: kernels count in 32 bits up to a few tokens beyond the last one."""

MAX_SEQUENCES = 2**30
"""Most sequences of a decode step: kernels count in 32 bits up to a few sequences beyond the last one."""

Division = dict[str, Any]
"""The fields of an argument struct that describe how a launch divides the work."""


def channel_vector_bytes(itemsize: int, width: int) -> int:
    """Bytes of the widest access along channels that leaves enough registers for a thread's taps and window.

    Measured on an H200: width 4 with 16 bytes reaches 0.77 of copy instead of 0.97, width 16 in bfloat16 with 8 bytes
    0.44 instead of 0.52.
    """
    return 4 if itemsize == 2 and width > 6 else 8


def channel_tile_tokens(itemsize: int, width: int, dim_vecs: int) -> int:
    """Tokens per thread of a kernel with vectors along channels.

    With fewer the halo costs more loads, with more registers run short. There are fewer also when a token is only a few
    vectors long, where the lanes of a warp would lie too far apart in memory.
    """
    tokens = 8 if width <= (4 if itemsize == 2 else 8) else 16
    return tokens if dim_vecs >= 8 else tokens // 2 if dim_vecs > 1 else tokens // 4


MAX_LANE_VECS = 4
"""Most vectors of a row per lane, in flight at once: with 4 causal_conv1d_fwd has 0.96 of copy, 2 0.87, 8 0.94."""


def lane_vecs_for(row_vecs: int) -> int:
    """Vectors per lane with which the tiles of rows of `row_vecs` vectors are filled evenly."""
    tiles = ceil_div(row_vecs, WARP_SIZE * MAX_LANE_VECS)
    return ceil_div(ceil_div(row_vecs, tiles), WARP_SIZE)


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

    @classmethod
    def variants(cls) -> Iterator[CausalConv1dChannellastFwd]:
        for axes in _dense_axes():
            width, itemsize = axes["width"], axes["input_t"].itemsize
            if axes["vec"] * itemsize <= channel_vector_bytes(itemsize, width):
                for dim_vecs in (8, 2, 1):
                    yield cls(tokens=channel_tile_tokens(itemsize, width, dim_vecs), **axes)

    def launch_config(self, batch: int, dim: int, seqlen: int) -> tuple[LaunchConfig, Division]:
        """The launch for x of (batch, dim, seqlen)."""
        dim_blocks, block_vecs = _share_channels(ceil_div(dim, self.vec))
        tiles = self.threads // block_vecs
        time_blocks = max(1, ceil_div(seqlen, tiles * self.tokens))
        return self.config(dim_blocks * time_blocks * batch), {
            "block_vecs": fast_div(block_vecs),
            "dim_blocks": fast_div(dim_blocks),
            "time_blocks": fast_div(time_blocks),
            "tiles": tiles,
        }


def _backward_axes() -> Iterator[dict[str, Any]]:
    """Every combination of the template parameters that both backward kernels have."""
    for width, input_t, weight_t in product(WIDTHS, FLOATS, FLOATS):
        for vec, silu, states in product(vectors(input_t), (False, True), (False, True)):
            for seq_idx, packed in ((False, False), (True, False), (False, True)):
                types = {"input_t": input_t, "weight_t": weight_t}
                rows = {"seq_idx": seq_idx, "packed": packed}
                yield {"width": width, **types, "vec": vec, "silu": silu, **rows, "states": states}


@dataclass(frozen=True)
class CausalConv1dBwd(Kernel):
    """Gradients of rows with contiguous tokens: a warp walks the vectors of one channel, or of a few when rows are
    very short, as one list over all rows.
    """

    BLOCKS: ClassVar[int] = 792
    """Blocks that run at a time on an H200: 132 multiprocessors with 6 each."""

    WARP_VECS: ClassVar[int] = 4
    """Vectors per lane that are worth a warp of its own. With 2 or 8 short calls take as long."""
    STAGES: ClassVar[tuple[int, int]] = (4, 6)
    LONG_ROW_BYTES: ClassVar[int] = 2048
    """From here on, more groups on their way pay. Measured on an H200, of 384 MiB: rows of 4 KiB 0.961 of copy instead
    of 0.936, of 8 KiB in float32 0.967 instead of 0.911, but of 1 KiB 0.902 instead of 0.925.
    """
    SHORT_ROW_BYTES: ClassVar[int] = 64
    """Below this, lanes share several channels, so that a warp's accesses are longer than a row."""

    width: int
    input_t: DType
    weight_t: DType
    vec: int
    stages: int
    """Groups in shared memory or on their way there: one of STAGES."""
    edges: bool
    """Whether vectors may lie inside a row only in part."""
    silu: bool
    seq_idx: bool
    packed: bool
    states: bool

    @classmethod
    def variants(cls) -> Iterator[CausalConv1dBwd]:
        for axes in _backward_axes():
            for stages, edges in product(cls.STAGES, (False, True)[: axes["vec"]]):
                yield cls(stages=stages, edges=edges, **axes)

    @classmethod
    def stages_for(cls, row_bytes: int) -> int:
        """Groups in the ring for rows of this many bytes."""
        return cls.STAGES[row_bytes >= cls.LONG_ROW_BYTES]

    def launch_config(self, batch: int, dim: int, row_vecs: int, is_dense: bool) -> tuple[LaunchConfig, Division, int]:
        """The launch for batch * dim rows of `row_vecs` vectors, and the parts that sums are left in."""
        vecs = batch * row_vecs
        channels = 1
        while channels < dim and channels * row_vecs * self.vec * self.input_t.itemsize < self.SHORT_ROW_BYTES:
            channels *= 2
        # What a vector needs of others is in its group or the neighbouring ones.
        halo_vecs = ceil_div(self.width - 1, self.vec)
        lanes = max(4, WARP_SIZE // channels, 1 << max(0, halo_vecs - 1).bit_length())
        channels = WARP_SIZE // lanes
        groups = ceil_div(vecs, lanes)
        if groups * lanes > MAX_DIVIDEND:
            raise TooLarge(f"the problem has {vecs} vectors per channel; a launch takes {MAX_DIVIDEND}")
        channel_warps = self.warps
        while channel_warps > 1 and groups < channel_warps * self.WARP_VECS:
            channel_warps //= 2
        channel_groups = ceil_div(dim, channels * self.warps // channel_warps)
        # A second launch to add up the parts is worth it only when there are far too few blocks.
        parts = 1
        if channel_groups < self.BLOCKS // 3:
            parts = max(1, min(2 * self.BLOCKS // channel_groups, ceil_div(groups, channel_warps * self.WARP_VECS)))
        warp_groups = max(1, ceil_div(groups, parts * channel_warps))
        if channels > 1:
            # A warp of several channels has whole rows.
            whole = row_vecs // gcd(row_vecs, lanes)
            warp_groups = ceil_div(warp_groups, whole) * whole
        parts = max(1, ceil_div(groups, warp_groups * channel_warps))
        return (
            self.config(parts * channel_groups),
            {
                "row_vecs": fast_div(row_vecs),
                "channel_groups": fast_div(channel_groups),
                "lanes": lanes,
                "lanes_shift": lanes.bit_length() - 1,
                "warps_shift": channel_warps.bit_length() - 1,
                "vecs": vecs,
                "groups": groups,
                "warp_groups": warp_groups,
                "step_rows": lanes // row_vecs,
                "step_vecs": lanes % row_vecs,
                "is_dense": is_dense,
            },
            parts,
        )


@dataclass(frozen=True)
class CausalConv1dChannellastBwd(Kernel):
    """Gradients of tokens with contiguous channels: a thread walks along runs of tokens of `vec` channels, `tokens` a
    step.
    """

    BLOCKS: ClassVar[int] = 396
    """Blocks that run at a time on an H200: 132 multiprocessors with 3 each."""

    MAX_STEPS: ClassVar[int] = 64
    """Steps per run: in the last one the width - 1 tokens behind the run are computed again, 3 of 512 for width 4."""

    RUN_TOKENS: ClassVar[int] = 4
    BLOCK_TOKENS: ClassVar[int] = 16
    """What the beginning of a run, and that of a block with the sums at its end, cost in tokens. Not measured."""

    width: int
    input_t: DType
    weight_t: DType
    vec: int
    tokens: int
    silu: bool
    seq_idx: bool
    packed: bool
    states: bool

    @classmethod
    def variants(cls) -> Iterator[CausalConv1dChannellastBwd]:
        for axes in _backward_axes():
            width, itemsize = axes["width"], axes["input_t"].itemsize
            if axes["vec"] * itemsize <= channel_vector_bytes(itemsize, width):
                yield cls(tokens=cls.tokens_for(width), **axes)

    @staticmethod
    def tokens_for(width: int) -> int:
        """Tokens per step: at least the width - 1 that the next step needs again."""
        return 8 if width <= 8 else 16

    def launch_config(self, batch: int, dim: int, seqlen: int) -> tuple[LaunchConfig, Division, int]:
        """The launch for x of (batch, dim, seqlen), and the parts that sums are left in."""
        dim_blocks, block_vecs = _share_channels(ceil_div(dim, self.vec))
        block_runs = self.threads // block_vecs
        halo = self.width - 1
        longest = min(self.MAX_STEPS, max(1, ceil_div(seqlen + halo, self.tokens)))

        def shared_out(steps: int, waves: int) -> tuple[int, int, int, int]:
            """The time, in tokens that a thread walks, when runs of `steps` are shared out in `waves` of blocks."""
            row_runs = max(1, ceil_div(seqlen, steps * self.tokens - halo))
            rounds = max(1, ceil_div(batch * row_runs * dim_blocks, block_runs * self.BLOCKS * waves))
            blocks = dim_blocks * max(1, ceil_div(batch * row_runs, block_runs * rounds))
            needed = ceil_div(blocks, self.BLOCKS)
            return (
                needed * (rounds * (steps * self.tokens + self.RUN_TOKENS) + self.BLOCK_TOKENS),
                steps,
                rounds,
                row_runs,
            )

        shortest = min(longest, halo // self.tokens + 1)
        candidates = (shared_out(n, waves) for n in range(shortest, longest + 1) for waves in (1, 2, 3, 4))
        _, steps, rounds, row_runs = min(candidates)
        runs = batch * row_runs
        if runs > MAX_DIVIDEND:
            raise TooLarge(f"the problem needs {runs} runs of tokens; a launch takes at most {MAX_DIVIDEND}")
        parts = max(1, ceil_div(runs, block_runs * rounds))
        return (
            self.config(parts * dim_blocks),
            {
                "block_vecs": fast_div(block_vecs),
                "dim_blocks": fast_div(dim_blocks),
                "row_runs": fast_div(row_runs),
                "block_runs": block_runs,
                "rounds": rounds,
                "runs": runs,
                "steps": steps,
            },
            parts,
        )


@dataclass(frozen=True)
class CausalConv1dBwdSum(Kernel):
    """Gradients of the parameters from the sums that blocks have left."""

    width: int
    weight_t: DType

    @classmethod
    def variants(cls) -> Iterator[CausalConv1dBwdSum]:
        for width, weight_t in product(WIDTHS, FLOATS):
            yield cls(width, weight_t)

    def launch_config(self, dim: int, parts: int) -> tuple[LaunchConfig, Division]:
        """The launch for `parts` sums of each of (width + 1) * dim parameters."""
        sums = (self.width + 1) * dim
        if sums > MAX_DIVIDEND:
            raise ValueError(f"the problem has {sums} parameters to add up; a launch takes at most {MAX_DIVIDEND}")
        # As many sums side by side as leave a thread no more parts than it loads at once.
        at_once = self.constants["kAtOnce"]
        across = next((n for n in (32, 8) if parts <= at_once * (self.threads // n)), 2)
        config = LaunchConfig((ceil_div(sums, across), 1, 1), (across, self.threads // across, 1))
        return config, {"dim_div": fast_div(dim), "parts": parts}


@dataclass(frozen=True)
class CausalConv1dBwdStates(Kernel):
    """Gradients of the initial states of packed sequences: a thread has one channel of one."""

    width: int
    input_t: DType
    weight_t: DType
    silu: bool

    @classmethod
    def variants(cls) -> Iterator[CausalConv1dBwdStates]:
        for width, input_t, weight_t, silu in product(WIDTHS[1:], FLOATS, FLOATS, (False, True)):
            yield cls(width, input_t, weight_t, silu)

    def launch_config(self, dim: int, sequences: int) -> tuple[LaunchConfig, Division]:
        """The launch for the states of `sequences` packed sequences."""
        dim_blocks = ceil_div(dim, self.threads)
        return self.config(dim_blocks * sequences), {"dim_blocks": fast_div(dim_blocks)}


def _share_channels(dim_vecs: int) -> tuple[int, int]:
    """Blocks across `dim_vecs` channel vectors, and the channel vectors of each: an even share of at most 32."""
    dim_blocks = ceil_div(dim_vecs, WARP_SIZE)
    return dim_blocks, ceil_div(dim_vecs, dim_blocks)


def _mix_groups(tile_groups: int, prefix_groups: int) -> tuple[int, int, int]:
    """The fields of conv_tile.cuh's BlockGroups for these numbers of groups of blocks with tiles and with prefixes."""
    groups = tile_groups + prefix_groups
    return groups, prefix_groups, ceil_div(prefix_groups << 32, groups)


def _varlen_axes() -> Iterator[dict[str, Any]]:
    """Every combination of the template parameters that all kernels of packed sequences have."""
    for width, input_t, weight_t, state_t in product(WIDTHS, FLOATS, FLOATS, FLOATS):
        for vec, silu in product(vectors(input_t), (False, True)):
            types = {"input_t": input_t, "weight_t": weight_t, "state_t": state_t}
            yield {"width": width, **types, "vec": vec, "silu": silu}


def _varlen_channel_axes() -> Iterator[dict[str, Any]]:
    """Every combination of the template parameters of kernels of packed sequences with vectors along channels."""
    for axes in _varlen_axes():
        width, itemsize = axes["width"], axes["input_t"].itemsize
        if axes["vec"] * itemsize <= channel_vector_bytes(itemsize, width):
            for dim_vecs in (8, 2, 1):
                yield {**axes, "tokens": channel_tile_tokens(itemsize, width, dim_vecs)}


@dataclass(frozen=True)
class CausalConv1dVarlenFwd(PoolKernel):
    """Contiguous channels: a thread owns `vec` channels of `tokens` consecutive tokens, or of a sequence's prefix."""

    tokens: int
    """Tokens per thread."""
    silu: bool
    """Whether SiLU follows the sum."""
    routed: bool
    """Whether vectors may cross the borders of ranges, or not be aligned in a result."""

    @classmethod
    def variants(cls) -> Iterator[CausalConv1dVarlenFwd]:
        for axes in _varlen_channel_axes():
            for routed in (False, True)[: axes["vec"]]:
                yield cls(routed=routed, **axes)

    def launch_config(self, dim: int, total: int, sequences: int) -> tuple[LaunchConfig, Division]:
        """The launch for x of (dim, total)."""
        dim_blocks, block_vecs = _share_channels(ceil_div(dim, self.vec))
        tiles = self.threads // block_vecs
        prefix_groups = ceil_div(sequences, tiles) if self.width > 1 else 0
        mix = _mix_groups(ceil_div(total, self.tokens * tiles), prefix_groups)
        return self.config(dim_blocks * mix[0]), {
            "block_vecs": fast_div(block_vecs),
            "dim_blocks": fast_div(dim_blocks),
            "mix": mix,
            "tiles": tiles,
        }


@dataclass(frozen=True)
class CausalConv1dVarlenL2normFwd(PoolKernel):
    """Contiguous channels, heads L2-normalised: a warp owns `tokens` consecutive tokens, or the prefix of a sequence,
    in one head or several.
    """

    tokens: int
    """Tokens per warp."""
    silu: bool
    """Whether SiLU follows the sum."""
    wide: bool
    """Whether heads may have more channels than a warp takes at once."""

    @classmethod
    def variants(cls) -> Iterator[CausalConv1dVarlenL2normFwd]:
        for axes in _varlen_channel_axes():
            if axes["tokens"] == channel_tile_tokens(axes["input_t"].itemsize, axes["width"], WARP_SIZE):
                for wide in (False, True):
                    yield cls(wide=wide, **axes)

    def launch_config(
        self, heads: Sequence[tuple[int, int]], normalized: int, total: int, sequences: int
    ) -> tuple[LaunchConfig, Division]:
        """The launch for ranges of (heads, head_dim), of which the first `normalized` are normalised head by head."""
        units, widths, lanes = [], [], []
        for number, (count, head_dim) in enumerate(heads):
            width = head_dim if number < normalized else min(count * head_dim, WARP_SIZE * self.vec)
            widths.append(width)
            lanes.append(min(WARP_SIZE, 1 << (ceil_div(width, self.vec) - 1).bit_length()))
            units.append(ceil_div(ceil_div(count * head_dim, width), WARP_SIZE // lanes[-1]))
        ends = list(accumulate(units))
        prefix_groups = ceil_div(sequences, self.warps) if self.width > 1 else 0
        mix = _mix_groups(ceil_div(total, self.tokens * self.warps), prefix_groups)
        absent = MAX_RANGES - len(units)
        return self.config(ends[-1] * mix[0]), {
            "units": fast_div(ends[-1]),
            "mix": mix,
            "unit_end": ends + [0] * absent,
            "unit_width": widths + [0] * absent,
            "unit_lanes": lanes + [1] * absent,
            "normalized": normalized,
        }


@dataclass(frozen=True)
class CausalConv1dVarlenRowsFwd(PoolKernel):
    """Contiguous tokens: a warp owns a tile of one channel's tokens, with `lane_vecs` vectors per lane, or a sequence's
    prefix in 32 channels.
    """

    lane_vecs: int
    """Vectors per lane."""
    silu: bool
    """Whether SiLU follows the sum."""

    @classmethod
    def variants(cls) -> Iterator[CausalConv1dVarlenRowsFwd]:
        for axes in _varlen_axes():
            for lane_vecs in range(1, MAX_LANE_VECS + 1):
                yield cls(lane_vecs=lane_vecs, **axes)

    def launch_config(self, dim: int, row_vecs: int, sequences: int) -> tuple[LaunchConfig, Division]:
        """The launch for `dim` rows of `row_vecs` vectors."""
        row_tiles = ceil_div(row_vecs, WARP_SIZE * self.lane_vecs)
        most = self.constants["kGroup"]
        group = min(dim, most)
        if group * row_tiles + self.warps > MAX_DIVIDEND:
            raise TooLarge(f"the problem needs {group * row_tiles} warps; a launch takes at most {MAX_DIVIDEND}")
        row_blocks = ceil_div(group * row_tiles, self.warps)
        blocks = row_blocks + (ceil_div(sequences, self.warps) if self.width > 1 else 0)
        division = {"group_blocks": fast_div(blocks), "row_tiles": fast_div(row_tiles), "row_blocks": row_blocks}
        return self.config(ceil_div(dim, most) * blocks), division


def _widths(cls: type[Kernel]) -> range:
    return range(cls.constants["kMinWidth"], 1 + cls.constants["kMaxWidth"])


@dataclass(frozen=True)
class CausalConv1dVarlenShortrowsFwd(PoolKernel):
    """Contiguous tokens, short sequences: a block owns 32 channels of a tile of tokens, and the states of the sequences
    that begin in it.
    """

    WIDTHS = PerClass(_widths)
    """Filter widths, in taps: those of `struct CausalConv1dVarlenShortrowsFwdTraits`."""

    silu: bool
    """Whether SiLU follows the sum."""

    @classmethod
    def variants(cls) -> Iterator[CausalConv1dVarlenShortrowsFwd]:
        for axes in _varlen_axes():
            if axes["width"] in cls.WIDTHS:
                yield cls(**axes)

    @property
    def tile(self) -> int:
        """Tokens per block."""
        return self.warps * self.constants["kPartVecs"] * MAX_VECTOR_BYTES // self.input_t.itemsize

    def launch_config(self, dim: int, total: int) -> tuple[LaunchConfig, Division]:
        """The launch for x of (dim, total)."""
        tiles = ceil_div(total, self.tile)
        return self.config(ceil_div(dim, WARP_SIZE) * tiles), {"tiles": fast_div(tiles)}


@dataclass(frozen=True)
class CausalConv1dVarlenStates(Kernel):
    """The last tokens of packed sequences: a thread copies `vec` channels of one column of `out`."""

    input_t: DType
    """The dtype of x and out."""
    vec: int
    """Channels per thread."""

    @classmethod
    def variants(cls) -> Iterator[CausalConv1dVarlenStates]:
        for input_t in FLOATS:
            for vec in vectors(input_t):
                yield cls(input_t, vec)

    def launch_config(self, sequences: int, dim: int, columns: int) -> tuple[LaunchConfig, Division]:
        """The launch for out of (sequences, dim, columns)."""
        dim_vecs = ceil_div(dim, self.vec)
        total_vecs = sequences * columns * dim_vecs
        if total_vecs > MAX_DIVIDEND:
            raise TooLarge(f"the problem needs {total_vecs} threads; a launch takes at most {MAX_DIVIDEND}")
        return self.config(ceil_div(total_vecs, self.threads)), {
            "dim_vecs": fast_div(dim_vecs),
            "columns": fast_div(columns),
            "total_vecs": total_vecs,
        }


SEQUENCES = (1, 2)
"""Sequences per thread of a decode step of one token."""

MANY_TOKENS_CHANNELS = 4
"""Most channels per thread where a sequence has several tokens: the inputs kept between them take the registers."""


def widest_channels(itemsize: int, width: int) -> int:
    """Most channels per thread of a decode step: one access has them, and their taps fit in registers."""
    channels = MAX_VECTOR_BYTES // itemsize
    while channels > 1 and channels * width > 32:
        channels //= 2
    return channels


def _update_axes() -> Iterator[dict[str, Any]]:
    """Every combination of the template parameters that all kernels of a decode step have."""
    for width, input_t, weight_t, state_t in product(WIDTHS, FLOATS, FLOATS, FLOATS):
        types = {"input_t": input_t, "weight_t": weight_t, "state_t": state_t}
        for vec, silu in product(vectors(input_t), (False, True)):
            if vec <= widest_channels(max(input_t.itemsize, state_t.itemsize), width):
                for kind in tuple(Ranges)[: 1 + vec]:
                    yield {"width": width, **types, "vec": vec, "silu": silu, "ranges": kind}


@dataclass(frozen=True)
class UpdateKernel(PoolKernel):
    """Base of the kernels of a decode step."""

    silu: bool
    """Whether SiLU follows the sum."""
    ranges: Ranges
    """How the channels fall into ranges with a result each."""

    def launch_config(self, dim: int, batch: int, sequences: int) -> tuple[LaunchConfig, Division]:
        """The launch for x of (batch, dim), where a thread owns `vec` channels of `sequences` sequences."""
        dim_vecs = ceil_div(dim, self.vec)
        # Sequences that share a block find the same taps in the L1 cache.
        rows = min(batch, self.warps)
        dim_blocks = ceil_div(dim_vecs, self.threads // rows)
        block_vecs = ceil_div(dim_vecs, dim_blocks)
        rows = self.threads // block_vecs
        division = {"block_vecs": fast_div(block_vecs), "dim_blocks": fast_div(dim_blocks), "rows": rows}
        return self.config(dim_blocks * ceil_div(batch, rows * sequences)), division


@dataclass(frozen=True)
class CausalConv1dUpdate(UpdateKernel):
    """States of any strides: a thread owns `vec` channels of a sequence."""

    sequences: int
    """Sequences per thread where each has one token; 0 where it may have several, a ring or intermediate windows."""

    @classmethod
    def variants(cls) -> Iterator[CausalConv1dUpdate]:
        for axes in _update_axes():
            for sequences in (0, *SEQUENCES):
                if sequences or axes["vec"] <= MANY_TOKENS_CHANNELS:
                    yield cls(sequences=sequences, **axes)


def row_state_lens(width: int) -> list[int]:
    """Columns per state that CausalConv1dUpdateRows takes: as many as the filter reads, or as it has taps."""
    return [length for length in (width - 1, width) if length]


@dataclass(frozen=True)
class CausalConv1dUpdateRows(UpdateKernel):
    """States that are short rows of columns: a thread owns `vec` channels of a sequence and their whole states."""

    state_len: int
    """Columns per state."""
    sequences: int
    """Sequences per thread."""

    @classmethod
    def variants(cls) -> Iterator[CausalConv1dUpdateRows]:
        for axes in _update_axes():
            for state_len, sequences in product(row_state_lens(axes["width"]), SEQUENCES):
                yield cls(state_len=state_len, sequences=sequences, **axes)
