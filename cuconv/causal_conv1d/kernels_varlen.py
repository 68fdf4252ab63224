"""The kernels of packed sequences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, product
from typing import Any

from cuconv.causal_conv1d.kernels import (
    MAX_LANE_VECS,
    WIDTHS,
    Division,
    PoolKernel,
    channel_tile_tokens,
    channel_vector_bytes,
    share_channels,
)
from cuconv.causal_conv1d.ranges import MAX_RANGES
from cuconv.jit import source, structs
from cuconv.runtime.dtypes import FLOAT16, FLOATS, DType
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
)

SNAPSHOTS_AT_ONCE = structs.constant(source.load(), "causal_conv1d/conv_snapshots.cuh", "kSnapshotsAtOnce")
"""Rows of snapshots per thread."""


def _mix_groups(
    width: int, tile_groups: int, sequences: int, snapshots: int, rows: int, prefixes: int = 1
) -> tuple[int, Division]:
    """The number of groups of blocks, and the fields that tell them apart: `tile_groups` with tiles, others with the
    prefixes of `rows` * `prefixes` sequences, or with `rows` * SNAPSHOTS_AT_ONCE rows of snapshots.
    """
    snapshot_groups = ceil_div(snapshots, rows * SNAPSHOTS_AT_ONCE)
    prefix_groups = (ceil_div(sequences, rows * prefixes) if width > 1 else 0) + snapshot_groups
    groups = tile_groups + prefix_groups
    mix = groups, prefix_groups, ceil_div(prefix_groups << 32, groups)
    return groups, {"mix": mix, "snapshot_groups": snapshot_groups}


def _varlen_axes() -> Iterator[dict[str, Any]]:
    """Every combination of the template parameters that all kernels of packed sequences have."""
    for width, input_t, weight_t, state_t in product(WIDTHS, FLOATS, FLOATS, FLOATS):
        for vec, silu in product(vectors(input_t), (False, True)):
            types = {"input_t": input_t, "weight_t": weight_t, "state_t": state_t}
            for addressed in (False, True):
                yield {"width": width, **types, "vec": vec, "silu": silu, "addressed": addressed}


def varlen_vector_axes() -> Iterator[dict[str, Any]]:
    """Every combination of the template parameters of kernels of packed sequences with vectors along channels."""
    for axes in _varlen_axes():
        itemsize = axes["input_t"].itemsize
        if axes["vec"] * itemsize <= channel_vector_bytes(itemsize, axes["width"]):
            yield axes


def varlen_channel_axes() -> Iterator[dict[str, Any]]:
    """Every combination of these parameters of kernels that also have tiles of tokens in every thread."""
    for axes in varlen_vector_axes():
        for dim_vecs in (8, 2, 1):
            yield {**axes, "tokens": channel_tile_tokens(axes["input_t"].itemsize, axes["width"], dim_vecs)}


MOST_PREFIXES = {1: ((16, 1), (200, 2), (300, 3), (math.inf, 4)), 32: ((300, 3), (math.inf, 4))}
"""Sequences per warp of blocks with prefixes, by the tokens that a warp convolves as a whole, and by the largest number
of prefixes per multiprocessor, counted by warps. On an H200 128 single tokens of 2048 channels, 16 such prefixes, take
3.37 us with 1, 3.49 with 2 and 3.74 with 3, of 4096 channels 4.40, 4.34 and 4.66; 256 of 8192 channels 12.9 with 2 and
13.3 with 3, 2048 75.9 with 3 and 74.6 with 4; 2048 sequences of two 93.5 and 92.4, 128 9.5 and 10.0 (bfloat16).
"""

MANY_PREFIXES = 40
"""Prefixes per multiprocessor, counted by warps, from which on warps convolve short sequences as a whole: 64 sequences
of three tokens and 4096 channels, with 16 prefixes, take 4.03 us by warps on an H200 and 3.71 otherwise. A tile with a
longer sequence then takes 12 us, however few tokens the call has.
"""

MANY_SINGLES = 32
"""Sequences from which on warps convolve short sequences as a whole where there are as many tokens as sequences, which
are single tokens in practice. 32 of 512 channels take 2.76 us by warps and 2.98 otherwise, 16 2.65 and 2.17; 256 of
1024 channels 3.97 and 4.64 (float32).
"""

WHOLE = {1: 2, 32: 4.5}
"""Tokens of a sequence up to which a warp convolves it as a whole, and the mean tokens per sequence below which it does
so. More than one token only with four taps and without float16, which would spill hundreds of bytes. On an H200 2048
sequences of two tokens and 8192 channels take 92 us by whole sequences instead of 112, of four 125 instead of 151; 512
of random lengths with a mean of four tokens take 37 instead of 38, but 62 instead of 54 with eight.
"""

SHORT_WIDTHS = range(2, 5)
"""Filter widths, in taps, of kernels for single tokens and short sequences: taps stay in registers."""


@dataclass(frozen=True)
class CausalConv1dVarlenFwd(PoolKernel):
    """Contiguous channels: a thread owns `vec` channels of `tokens` consecutive tokens, or of a sequence's prefix."""

    tokens: int
    """Tokens per thread."""
    silu: bool
    """Whether SiLU follows the sum."""
    routed: bool
    """Whether vectors may cross the borders of ranges, or not be aligned in a result."""
    addressed: bool
    """Whether slots may be in columns, states go to other slots, be only read or have snapshots, or padding stay."""
    gated: bool = False
    """Whether inputs and results are multiplied by gates, or residuals added to results."""
    payload: bool = False
    """Whether raw inputs are copied to a payload."""
    whole: int = 0
    """Tokens of a sequence up to which a warp, which has the prefixes of several, convolves it as a whole, so that few
    tiles have other tokens; else 0.
    """

    @classmethod
    def variants(cls) -> Iterator[CausalConv1dVarlenFwd]:
        for axes in varlen_channel_axes():
            for routed, more in product((False, True)[: axes["vec"]], (None, "gated", "payload")):
                yield cls(routed=routed, gated=more == "gated", payload=more == "payload", **axes)
            yield from (cls(routed=False, whole=whole, **axes) for whole in cls(routed=False, **axes).wholes())

    def wholes(self) -> list[int]:
        """The values of `whole`, except 0, that kernels for these types have."""
        if self.width not in SHORT_WIDTHS:
            return []
        has_float16 = FLOAT16 in (self.input_t, self.weight_t, self.state_t)
        return [whole for whole in WHOLE if whole == 1 or (self.width == 4 and not has_float16)]

    def most_whole(self, dim: int, total: int, sequences: int, snapshots: int, processors: int) -> int:
        """The best `whole` where sequences are short and numerous enough for warps with the prefixes of several; else
        0.

        Several prefixes of longer sequences would wait for each other: 512 of random lengths take 88 us on an H200
        instead of 86.
        """
        _, block_vecs = share_channels(ceil_div(dim, self.vec))
        if self.routed or self.gated or self.payload or snapshots or block_vecs != WARP_SIZE:
            return 0
        are_singles = total == sequences >= MANY_SINGLES
        if not are_singles and self._prefixes(dim, sequences) < MANY_PREFIXES * processors:
            return 0
        return next((whole for whole in self.wholes() if total < WHOLE[whole] * sequences), 0)

    def prefixes(self, dim: int, sequences: int, processors: int) -> int:
        """Sequences per warp of blocks with prefixes."""
        if not self.whole:
            return 1
        count = self._prefixes(dim, sequences)
        return next(each for most, each in MOST_PREFIXES[self.whole] if count <= most * processors)

    def _prefixes(self, dim: int, sequences: int) -> int:
        """Prefixes of all sequences, counted by warps."""
        return share_channels(ceil_div(dim, self.vec))[0] * sequences

    def launch_config(
        self, dim: int, total: int, sequences: int, snapshots: int = 0, prefixes: int = 1
    ) -> tuple[LaunchConfig, Division]:
        """The launch for x of (dim, total), this many rows of snapshots and this many sequences per warp."""
        dim_blocks, block_vecs = share_channels(ceil_div(dim, self.vec))
        tiles = self.threads // block_vecs
        tile_groups = ceil_div(total, self.tokens * tiles)
        if self.whole:
            # A block has the tiles of several across the channels.
            shares = ceil_div(dim_blocks, self.constants["kShare"])
            tile_groups = ceil_div(tile_groups * shares, dim_blocks)
        groups, division = _mix_groups(self.width, tile_groups, sequences, snapshots, tiles, prefixes)
        return self.config(dim_blocks * groups), {
            **division,
            "prefixes": prefixes,
            "block_vecs": fast_div(block_vecs),
            "dim_blocks": fast_div(dim_blocks),
            "tiles": tiles,
        }


@dataclass(frozen=True)
class CausalConv1dVarlenCachedFwd(PoolKernel):
    """CausalConv1dVarlenFwd with one range and a prefix cache that keeps the state at the end of every block."""

    tokens: int
    """Tokens per thread."""
    silu: bool
    """Whether SiLU follows the sum."""

    @classmethod
    def variants(cls) -> Iterator[CausalConv1dVarlenCachedFwd]:
        for axes in varlen_channel_axes():
            if axes.pop("addressed"):
                yield cls(**axes)

    def launch_config(self, dim: int, total: int, sequences: int, snapshots: int) -> tuple[LaunchConfig, Division]:
        """The launch for x of (dim, total) and at most this many snapshots."""
        dim_blocks, block_vecs = share_channels(ceil_div(dim, self.vec))
        tiles = self.threads // block_vecs
        tile_groups = ceil_div(total, self.tokens * tiles)
        groups, division = _mix_groups(self.width, tile_groups, sequences, snapshots, tiles)
        division |= {"block_vecs": fast_div(block_vecs), "dim_blocks": fast_div(dim_blocks), "tiles": tiles}
        return self.config(dim_blocks * groups), division


def _units(heads: Sequence[tuple[int, int]], normalized: int, vec: int) -> tuple[int, Division]:
    """The parts of a token's channels that one warp has, and the fields that describe them, for ranges of (heads,
    head_dim), of which the first `normalized` are normalised head by head.
    """
    units, widths, lanes = [], [], []
    for number, (count, head_dim) in enumerate(heads):
        width = head_dim if number < normalized else min(count * head_dim, WARP_SIZE * vec)
        widths.append(width)
        lanes.append(min(WARP_SIZE, 1 << (ceil_div(width, vec) - 1).bit_length()))
        units.append(ceil_div(ceil_div(count * head_dim, width), WARP_SIZE // lanes[-1]))
    ends = list(accumulate(units))
    absent = MAX_RANGES - len(units)
    return ends[-1], {
        "unit_end": ends + [0] * absent,
        "unit_width": widths + [0] * absent,
        "unit_lanes": lanes + [1] * absent,
        "normalized": normalized,
    }


WALKED = (16, 8)
"""Tokens per warp of CausalConv1dVarlenL2normShortFwd, where its blocks fill a GPU and where they do not. On an H200
512 single tokens of 48 heads take 22.2 us with 16 and 18.7 with 8, 512 random lengths with a mean of 16 tokens 67.6 and
74.8.
"""

LONG_TILE, LONG_TILE_ELEMENTS = 14, 2**17
"""Tokens per warp of CausalConv1dVarlenL2normFwd where `has_long_tiles`, and the elements of x per multiprocessor from
which it has that many: on an H200 8192 tokens of 48 heads took 56.4 us instead of 59.2, but 2048 19.5 instead of 18.4.
10, 12, 14 and 16 tokens take 55.9, 55.0, 54.1 and 54.6 us, and for 512 random lengths 75.8, 75.9, 76.0 and 76.8.
"""


def has_long_tiles(itemsize: int, width: int) -> bool:
    """Whether CausalConv1dVarlenL2normFwd takes LONG_TILE tokens per warp of heads that a warp takes at once."""
    return itemsize == 2 and width <= 4


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
    addressed: bool
    """Whether slots may be in columns, states go to other slots, be only read or have snapshots, or padding stay."""
    payload: bool = False
    """Whether raw inputs are copied to a payload."""

    @classmethod
    def variants(cls) -> Iterator[CausalConv1dVarlenL2normFwd]:
        for axes in varlen_vector_axes():
            most = channel_tile_tokens(axes["input_t"].itemsize, axes["width"], WARP_SIZE)
            for payload in (False, True):
                for wide, tokens in product((False, True), (most, most // 2, most // 4)):
                    yield cls(tokens=tokens, wide=wide, payload=payload, **axes)
                if has_long_tiles(axes["input_t"].itemsize, axes["width"]):
                    yield cls(tokens=LONG_TILE, wide=False, payload=payload, **axes)

    def launch_config(
        self, heads: Sequence[tuple[int, int]], normalized: int, total: int, sequences: int, snapshots: int = 0
    ) -> tuple[LaunchConfig, Division]:
        """The launch for ranges of (heads, head_dim), of which the first `normalized` are normalised head by head, and
        this many rows of snapshots.
        """
        units, division = _units(heads, normalized, self.vec)
        tile_groups = ceil_div(total, self.tokens * self.warps)
        groups, mixed = _mix_groups(self.width, tile_groups, sequences, snapshots, self.warps)
        return self.config(units * groups), division | mixed | {"units": fast_div(units)}


MEAN_SHORT, MANY_SHORT = 48, 64
"""The mean tokens per sequence below which, and the prefixes per multiprocessor, counted by warps, from which
CausalConv1dVarlenL2normShortFwd is faster. On an H200 256 x 32 of 48 heads take 62.0 us with it and 63.3 without, 128
of random lengths with a mean of 64 tokens 59.1 and 58.0; 256 single tokens, 93 such prefixes, 14.9 and 17.4, but 64 of
them 12.2 and 8.2.
"""


@dataclass(frozen=True)
class CausalConv1dVarlenL2normShortFwd(PoolKernel):
    """Contiguous channels, heads L2-normalised, short sequences: a warp owns `tokens` consecutive tokens, and the
    states of the sequences that begin there, in one head or several.
    """

    tokens: int
    """Tokens per warp."""
    silu: bool
    """Whether SiLU follows the sum."""

    @classmethod
    def variants(cls) -> Iterator[CausalConv1dVarlenL2normShortFwd]:
        for axes in varlen_vector_axes():
            itemsize, width = axes["input_t"].itemsize, axes["width"]
            is_full = axes["vec"] * itemsize == channel_vector_bytes(itemsize, width)
            if itemsize == 2 and width in SHORT_WIDTHS and is_full and not axes.pop("addressed"):
                yield from (cls(tokens=tokens, **axes) for tokens in WALKED)

    @classmethod
    def suited(cls, axes: dict[str, Any], dim: int, total: int, processors: int) -> CausalConv1dVarlenL2normShortFwd:
        """The kernel with these axes and the longest tiles that fill this many multiprocessors; if none do, the
        shortest."""
        most, least = (cls(tokens=tokens, **axes) for tokens in WALKED)
        warps = ceil_div(dim, WARP_SIZE * most.vec) * ceil_div(total, most.tokens)
        return most if warps >= processors * most.warps * cls.constants["kMinBlocks"] else least

    def launch_config(
        self, heads: Sequence[tuple[int, int]], normalized: int, total: int
    ) -> tuple[LaunchConfig, Division]:
        """The launch for ranges of (heads, head_dim), of which the first `normalized` are normalised head by head."""
        units, division = _units(heads, normalized, self.vec)
        shares = ceil_div(units, self.warps)
        division |= {"snapshot_groups": 0, "units": units, "shares": fast_div(shares)}
        return self.config(shares * ceil_div(total, self.tokens)), division


@dataclass(frozen=True)
class CausalConv1dVarlenRowsFwd(PoolKernel):
    """Contiguous tokens: a warp owns a tile of one channel's tokens, with `lane_vecs` vectors per lane, or a sequence's
    prefix in 32 channels.
    """

    lane_vecs: int
    """Vectors per lane."""
    silu: bool
    """Whether SiLU follows the sum."""
    addressed: bool
    """Whether slots may be in columns, states go to other slots, be only read or have snapshots, or padding stay."""
    gated: bool = False
    """Whether inputs and results are multiplied by gates, or residuals added to results."""

    @classmethod
    def variants(cls) -> Iterator[CausalConv1dVarlenRowsFwd]:
        for axes in _varlen_axes():
            for lane_vecs, gated in product(range(1, MAX_LANE_VECS + 1), (False, True)):
                yield cls(lane_vecs=lane_vecs, gated=gated, **axes)

    def launch_config(
        self, dim: int, row_vecs: int, sequences: int, snapshots: int = 0
    ) -> tuple[LaunchConfig, Division]:
        """The launch for `dim` rows of `row_vecs` vectors and this many rows of snapshots."""
        row_tiles = ceil_div(row_vecs, WARP_SIZE * self.lane_vecs)
        most = self.constants["kGroup"]
        group = min(dim, most)
        if group * row_tiles + self.warps > MAX_DIVIDEND:
            raise TooLarge(f"the problem needs {group * row_tiles} warps; a launch takes at most {MAX_DIVIDEND}")
        row_blocks = ceil_div(group * row_tiles, self.warps)
        snapshot_blocks = ceil_div(snapshots, self.warps * WARP_SIZE)
        blocks = row_blocks + (ceil_div(sequences, self.warps) if self.width > 1 else 0) + snapshot_blocks
        division = {
            "group_blocks": fast_div(blocks),
            "row_tiles": fast_div(row_tiles),
            "row_blocks": row_blocks,
            "snapshot_groups": snapshot_blocks,
        }
        return self.config(ceil_div(dim, most) * blocks), division


@dataclass(frozen=True)
class CausalConv1dVarlenWalkFwd(PoolKernel):
    """Results over x, and dense batches with a pool: a warp owns one channel of a sequence, and walks its tokens."""

    silu: bool
    """Whether SiLU follows the sum."""

    @classmethod
    def variants(cls) -> Iterator[CausalConv1dVarlenWalkFwd]:
        for axes in _varlen_axes():
            if not axes.pop("addressed"):
                yield cls(**axes)

    def launch_config(self, dim: int, sequences: int, *, is_dense: bool) -> tuple[LaunchConfig, Division]:
        """The launch for packed sequences, with the padding around them, or for a dense batch."""
        dim_blocks = ceil_div(dim, self.warps)
        division = {"dim_blocks": fast_div(dim_blocks), "is_dense": is_dense, "snapshot_groups": 0}
        return self.config(dim_blocks * (sequences if is_dense else sequences + 2)), division


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
    addressed: bool
    """Whether slots may be in columns, states go to other slots, be only read or have snapshots, or padding stay."""
    staged: bool = False
    """Whether sequences are short enough for their states in shared memory, where the columns of a state are one run of
    aligned vectors of 16 bytes.
    """
    singles: bool = False
    """Whether most sequences have one token, and the columns of a state are such a run."""

    @classmethod
    def variants(cls) -> Iterator[CausalConv1dVarlenShortrowsFwd]:
        for axes in _varlen_axes():
            if axes["width"] in cls.WIDTHS:
                yield cls(**axes)
                is_narrow = axes["state_t"].itemsize <= axes["input_t"].itemsize
                if axes["width"] in SHORT_WIDTHS and is_narrow and not axes["addressed"]:
                    yield from (cls(staged=not singles, singles=singles, **axes) for singles in (False, True))

    @property
    def tile(self) -> int:
        """Tokens per block."""
        part_vecs = self.constants["kSinglePartVecs" if self.singles else "kPartVecs"]
        return self.warps * part_vecs * MAX_VECTOR_BYTES // self.input_t.itemsize

    def launch_config(self, dim: int, total: int, sequences: int, snapshots: int = 0) -> tuple[LaunchConfig, Division]:
        """The launch for x of (dim, total) with this many sequences and rows of snapshots."""
        tiles = ceil_div(total, self.tile)
        groups = ceil_div(dim, self.constants["kSingleChannels"] if self.singles else WARP_SIZE)
        share = min(2**32 // tiles + (tiles < 2**16), 2**32 - 1)
        return self.config(groups * tiles), {
            "tiles": fast_div(tiles),
            "channel_groups": fast_div(groups),
            "tile_share": share,
            "sequences_per_token": sequences / total,
            "snapshot_groups": 0,
            "tile_snapshots": ceil_div(snapshots, tiles),
        }


@dataclass(frozen=True)
class CausalConv1dVarlenRowstripsFwd(PoolKernel):
    """Results over x, contiguous tokens: a block takes the tiles of a strip of 32 channels one after another."""

    EARLY = ("x", "weight", "bias")
    FOLLOWS = True

    RESIDENT = PerClass(lambda cls: cls.constants["kLeanBlocks"])
    """Blocks that a multiprocessor runs at a time."""

    WIDTHS = PerClass(_widths)
    """Filter widths, in taps: those of `struct CausalConv1dVarlenRowstripsFwdTraits`."""

    silu: bool
    """Whether SiLU follows the sum."""
    follows: bool
    """Whether there is a launch in front."""

    @classmethod
    def variants(cls) -> Iterator[CausalConv1dVarlenRowstripsFwd]:
        for axes in _varlen_axes():
            if axes.pop("addressed") and axes["width"] in cls.WIDTHS:
                yield from (cls(follows=follows, **axes) for follows in (True, False))

    @property
    def is_follower(self) -> bool:
        return self.follows

    @property
    def tile(self) -> int:
        """Tokens per tile."""
        return self.warps * self.constants["kPartVecs"] * MAX_VECTOR_BYTES // self.input_t.itemsize

    def launch_config(self, dim: int, strips: int) -> tuple[LaunchConfig, Division]:
        """The launch for `dim` channels of this many strips."""
        return self.config(ceil_div(dim, WARP_SIZE) * strips), {"strips": fast_div(strips), "snapshot_groups": 0}


MANY_COLUMNS = 4
"""Columns that a thread of CausalConv1dVarlenStates copies where there are MANY_VECTORS of them. On an H200 the last 3
tokens of 512 sequences of 8192 channels take 14.6 us with 4 columns per thread and 15.8 with one; of 4 sequences 2.41
and 2.30."""

MANY_VECTORS = 2**17
"""Vectors of channels of all columns that keep a GPU busy with a thread for MANY_COLUMNS of them."""


@dataclass(frozen=True)
class CausalConv1dVarlenStates(Kernel):
    """The last tokens of packed sequences: a thread copies `vec` channels of some consecutive columns of `out`."""

    input_t: DType
    """The dtype of x and out."""
    vec: int
    """Channels per thread."""
    columns: int
    """Columns per thread."""

    @classmethod
    def variants(cls) -> Iterator[CausalConv1dVarlenStates]:
        for input_t in FLOATS:
            for vec, columns in product(vectors(input_t), (1, MANY_COLUMNS)):
                yield cls(input_t, vec, columns)

    def launch_config(self, sequences: int, dim: int, columns: int) -> tuple[LaunchConfig, Division]:
        """The launch for out of (sequences, dim, columns)."""
        dim_vecs = ceil_div(dim, self.vec)
        parts = ceil_div(columns, self.columns)
        total_vecs = sequences * parts * dim_vecs
        if total_vecs > MAX_DIVIDEND:
            raise TooLarge(f"the problem needs {total_vecs} threads; a launch takes at most {MAX_DIVIDEND}")
        return self.config(ceil_div(total_vecs, self.threads)), {
            "dim_vecs": fast_div(dim_vecs),
            "parts": fast_div(parts),
            "columns": columns,
            "total_vecs": total_vecs,
        }


@dataclass(frozen=True)
class CausalConv1dVarlenBlocks(Kernel):
    """The snapshots of a prefix cache by blocks: a warp has one sequence."""

    @classmethod
    def variants(cls) -> Iterator[CausalConv1dVarlenBlocks]:
        yield cls()

    def launch_config(self, sequences: int) -> LaunchConfig:
        """The launch for this many sequences."""
        return self.config(ceil_div(sequences, self.warps))
