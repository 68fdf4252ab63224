"""The kernels of the gradients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import gcd
from typing import Any, ClassVar

from cuconv.causal_conv1d.kernels import WIDTHS, Division, channel_vector_bytes
from cuconv.runtime.dtypes import FLOATS, DType
from cuconv.runtime.kernel import Kernel, PerClass
from cuconv.runtime.launch import (
    MAX_DIVIDEND,
    WARP_SIZE,
    LaunchConfig,
    TooLarge,
    ceil_div,
    fast_div,
    vectors,
)


def backward_axes() -> Iterator[dict[str, Any]]:
    """Every combination of the template parameters that both backward kernels have."""
    for width, input_t, weight_t in product(WIDTHS, FLOATS, FLOATS):
        for vec, silu, states in product(vectors(input_t), (False, True), (False, True)):
            for seq_idx, packed in ((False, False), (True, False), (False, True)):
                types = {"input_t": input_t, "weight_t": weight_t}
                rows = {"seq_idx": seq_idx, "packed": packed}
                yield {"width": width, **types, "vec": vec, "silu": silu, **rows, "states": states}


def is_channel_vector(axes: dict[str, Any]) -> bool:
    """Whether kernels of contiguous channels have variants with vectors of this length."""
    itemsize: int = axes["input_t"].itemsize
    return bool(axes["vec"] * itemsize <= channel_vector_bytes(itemsize, axes["width"]))


@dataclass(frozen=True)
class CausalConv1dBwd(Kernel):
    """Gradients of rows with contiguous tokens: a warp walks the vectors of one channel, or of a few when rows are
    very short, as one list over all rows.
    """

    BLOCKS: ClassVar[int] = 792
    """Blocks that run at a time on an H200: 132 multiprocessors with 6 each."""

    WARP_VECS: ClassVar[int] = 8
    """Vectors per lane that are worth a separate warp; half as many when blocks would become few.

    On an H200, B1 D2048 L2048 in bfloat16 takes 10.2 us with 8 and four groups in the ring, 11.1 us with 8 and six, and
    13.6 us with 4 and six.
    """
    PACKED_WARP_VECS: ClassVar[int] = 32
    """Vectors per lane that are worth a separate warp for packed sequences, which a warp first has to find: 8192 tokens
    of one sequence in 8192 channels take 120 us with 32 and 162 us with 8.
    """
    PART_BLOCKS: ClassVar[int] = 528
    SPLIT_BYTES: ClassVar[int] = 2**23
    """Blocks at a time where several have the same channels, and the bytes of x from which on they also have fewer
    groups in the ring; not so for packed sequences.

    On an H200, B1 D16 L2**20 in bfloat16 takes 29.6 us in 528 blocks with four groups in the ring, 29.9 in 792, and
    31.1 in 792 with six. More blocks that follow each other take 31.6 (1504) to 39.0 (4096), few large ones before many
    small ones 29.9 to 34.5.
    """
    STAGES: ClassVar[tuple[int, int]] = (4, 6)
    LONG_ROW_BYTES: ClassVar[int] = 2048
    """Bytes of a row from which more groups in flight pay. On an H200, 384 MiB in rows of 4 KiB reach 0.961 of copy
    instead of 0.936, in rows of 8 KiB of float32 0.967 instead of 0.911, but in rows of 1 KiB 0.902 instead of 0.925.
    """
    SHORT_ROW_BYTES: ClassVar[int] = 64
    """Bytes of a row below which lanes share several channels, so that a warp's accesses are longer than a row."""

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
        for axes in backward_axes():
            for stages, edges in product(cls.STAGES, (False, True)[: axes["vec"]]):
                yield cls(stages=stages, edges=edges, **axes)

    @classmethod
    def stages_for(cls, batch: int, dim: int, row_bytes: int, packed: bool) -> int:
        """Groups in the ring for batch * dim rows of `row_bytes` each."""
        is_short = batch * row_bytes <= cls.WARP_VECS * WARP_SIZE * 16
        is_split = not packed and dim < cls.BLOCKS // 3 and batch * dim * row_bytes >= cls.SPLIT_BYTES
        return cls.STAGES[row_bytes >= cls.LONG_ROW_BYTES and not is_short and not is_split]

    def launch_config(self, batch: int, dim: int, row_vecs: int, is_dense: bool) -> tuple[LaunchConfig, Division, int]:
        """The launch for batch * dim rows of `row_vecs` vectors, and the parts that sums are left in."""
        vecs = batch * row_vecs
        channels = 1
        while channels < dim and channels * row_vecs * self.vec * self.input_t.itemsize < self.SHORT_ROW_BYTES:
            channels *= 2
        # A vector needs others only from its own group and from neighbouring ones.
        halo_vecs = ceil_div(self.width - 1, self.vec)
        lanes = max(4, WARP_SIZE // channels, 1 << max(0, halo_vecs - 1).bit_length())
        channels = WARP_SIZE // lanes
        groups = ceil_div(vecs, lanes)
        if groups * lanes > MAX_DIVIDEND:
            raise TooLarge(f"the problem has {vecs} vectors per channel; a launch takes {MAX_DIVIDEND}")
        channel_warps = self.warps
        warp_vecs = self.PACKED_WARP_VECS if self.packed else self.WARP_VECS
        while channel_warps > 1 and groups < channel_warps * warp_vecs:
            halved = ceil_div(dim, channels * self.warps // (channel_warps // 2))
            if halved < self.BLOCKS // 2 and groups >= channel_warps * warp_vecs // 2:
                break
            channel_warps //= 2
        channel_groups = ceil_div(dim, channels * self.warps // channel_warps)
        # A second launch to add up the parts is worth it only when there are far too few blocks.
        parts = 1
        if channel_groups < self.BLOCKS // 3:
            blocks = self.BLOCKS if self.packed else self.PART_BLOCKS
            parts = max(1, min(blocks // channel_groups, ceil_div(groups, channel_warps * self.WARP_VECS // 2)))
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
class CausalConv1dBulkBwd(Kernel):
    """Gradients of long rows of whole aligned vectors, each row one sequence that starts from zeros: a warp walks units
    of a channel, which are brought by bulk copies.
    """

    BLOCKS: ClassVar[int] = 1056
    """Blocks that run at a time on an H200: 132 multiprocessors with 8 each."""
    MIN_BLOCKS: ClassVar[int] = 264
    """Blocks below which a block does not take further channels."""

    WARP_GROUPS: ClassVar[int] = 8
    """Groups that are worth a separate warp.

    On an H200 a prototype took 9.1 us for B1 D2048 L2048 in bfloat16, 8 groups a channel, with one warp per channel and
    11.8 with four.
    """
    GROUPS: ClassVar[tuple[int, int]] = (1, 2)
    SMALL_VECS: ClassVar[int] = 2**19
    SMALL_ROW_VECS: ClassVar[int] = 256
    """Most vectors of x, and fewest of a row, with which units have one group, so that less has to arrive before warps
    begin.

    On an H200, B1 D2048 L2048 in bfloat16, 2**19 vectors, takes 9.9 us with units of one group and 10.2 with two, B2
    D4096 L2048 30.1 with both, B8 D4096 L2048 101.4 and 100.2. Shorter rows were not measured with one.
    """
    MIN_FILL: ClassVar[float] = 0.75
    """The least part of a row's units that its vectors fill."""
    MAX_ROW_UNITS: ClassVar[int] = 64
    """Units of a row beyond which causal_conv1d_bwd is quicker.

    On an H200, B1 D8192 L65536 in bfloat16 takes it 770 us instead of 781, but B2 D4096 L8192 101 instead of 100.
    """
    MAX_PAIRS: ClassVar[int] = 8
    """Rows of two units per channel beyond which causal_conv1d_bwd is quicker: B32 D2048 L1024 in bfloat16 takes it 103
    us instead of 106, but B2 D8192 L1024 30.5 instead of 29.5.
    """

    width: int
    input_t: DType
    weight_t: DType
    groups: int
    """Groups per unit: one of GROUPS."""
    silu: bool

    @classmethod
    def variants(cls) -> Iterator[CausalConv1dBulkBwd]:
        for width, input_t, weight_t, groups, silu in product(WIDTHS, FLOATS, FLOATS, cls.GROUPS, (False, True)):
            yield cls(width, input_t, weight_t, groups, silu)

    @classmethod
    def groups_for(cls, batch: int, dim: int, row_vecs: int) -> int:
        """Groups per unit for batch * dim rows of `row_vecs` vectors."""
        return cls.GROUPS[row_vecs < cls.SMALL_ROW_VECS or batch * dim * row_vecs > cls.SMALL_VECS]

    @property
    def unit_vecs(self) -> int:
        """Vectors per unit."""
        return self.groups * WARP_SIZE

    @classmethod
    def takes(cls, batch: int, row_vecs: int) -> bool:
        """Whether rows of `row_vecs` vectors have a length for which bulk copies pay."""
        unit = cls.GROUPS[-1] * WARP_SIZE
        units = ceil_div(row_vecs, unit)
        is_filled = row_vecs >= max(unit, cls.MIN_FILL * units * unit)
        return is_filled and units <= cls.MAX_ROW_UNITS and (units != 2 or batch <= cls.MAX_PAIRS)

    def launch_config(self, batch: int, dim: int, row_vecs: int) -> tuple[LaunchConfig, Division, int]:
        """The launch for batch * dim rows of `row_vecs` vectors, and the parts that sums are left in."""
        row_units, worth = ceil_div(row_vecs, self.unit_vecs), self.WARP_GROUPS // self.groups
        units = batch * row_units
        if units * self.unit_vecs > MAX_DIVIDEND:
            raise TooLarge(f"the problem has {units} units per channel; a launch takes {MAX_DIVIDEND}")
        channel_warps = warps = self.warps
        # Where a row is one unit, warps of neighbouring channels read longer pieces of memory: for B64 D1536 L512 in
        # bfloat16 a prototype took 74 us on an H200 with one warp per channel and 80 with four.
        while channel_warps > 1 and (row_units == 1 or units < channel_warps * worth):
            if ceil_div(dim * channel_warps, 2 * warps) < self.MIN_BLOCKS:
                break
            channel_warps //= 2
        channel_groups = ceil_div(dim * channel_warps, warps)
        parts = 1
        # A second launch to add up the parts is worth it only when there are far too few blocks.
        if channel_groups < self.MIN_BLOCKS:
            parts = max(1, min(self.BLOCKS // channel_groups, ceil_div(units, channel_warps * worth)))
        warp_units = max(1, ceil_div(units, parts * channel_warps))
        parts = max(1, ceil_div(units, warp_units * channel_warps))
        return (
            self.config(parts * channel_groups),
            {
                "row_units": fast_div(row_units),
                "channel_groups": fast_div(channel_groups),
                "warps_shift": channel_warps.bit_length() - 1,
                "row_vecs": row_vecs,
                "units": units,
                "warp_units": warp_units,
            },
            parts,
        )


def widths_taken(cls: type[Kernel]) -> range:
    """The filter widths from kMinWidth to kMaxWidth of a kernel's traits."""
    return range(cls.constants["kMinWidth"], cls.constants["kMaxWidth"] + 1)


@dataclass(frozen=True)
class CausalConv1dRowpartsBwd(Kernel):
    """Gradients of long rows of whole aligned vectors, each row one sequence that starts from zeros: a block has a part
    of a row, or of some consecutive channels' rows, and loads it at once.
    """

    WIDTHS = PerClass(widths_taken)
    """Filter widths, in taps: those of `struct CausalConv1dRowpartsBwdTraits`."""

    GROUPS: ClassVar[tuple[int, int]] = (2, 4)
    """Groups per warp: 2 where all blocks run at once, SMALL_VECS at most, and one has a row.

    On an H200, B1 D2048 L2048 in bfloat16 takes 9.1 us with 2 and 9.6 to 10.1 with 4, B1 D1024 L2048 5.9 and 6.7, B1
    D4096 L2048, in two waves, 15.4 both. B1 D16 L2**20 takes 28 us with 4 and 29.4 with 2, and prototypes took 29.2
    with 8 and, for B8 D4096 L2048, 97.3 with 4, 98.4 with 8 and 105 with 2.
    """

    MIN_VECS: ClassVar[int] = 96
    """The fewest vectors of a row.

    On an H200, B64 D1536 L512 in bfloat16, 64 vectors, takes a prototype with 2 groups per warp 79 us and
    CausalConv1dBulkBwd 76, but in float32, 128 vectors, this takes 143 us and CausalConv1dBwd 155.
    """

    MIN_FILL: ClassVar[float] = 0.75
    """The fraction of a row's groups that its vectors must fill more than. On an H200, B8 D4096 L1536 in bfloat16,
    exactly that fraction, takes 82 us and CausalConv1dBulkBwd 76, but B8 D4096 L800, a fraction of 0.78, 47 and 51.
    """

    SMALL_VECS: ClassVar[int] = 2**19
    SMALL_DIM: ClassVar[int] = 512
    """The most vectors of x, and the fewest channels, with which several rows per channel are not worth the launch that
    adds up their sums: B4 D512 L2048 in bfloat16, 2**19 vectors, takes 10.6 us on an H200 and CausalConv1dBulkBwd 10.2,
    but B4 D1024 L2048 16.3 and 17.7, and B8 D256 L2048 10.6 both.
    """

    width: int
    input_t: DType
    weight_t: DType
    groups: int
    """Groups per warp: one of GROUPS."""
    edges: bool
    """Whether rows may end inside a part, and channels inside a block."""
    silu: bool

    @classmethod
    def variants(cls) -> Iterator[CausalConv1dRowpartsBwd]:
        types, flags = (cls.WIDTHS, FLOATS, FLOATS), (False, True)
        for width, input_t, weight_t, groups, edges, silu in product(*types, cls.GROUPS, flags, flags):
            yield cls(width, input_t, weight_t, groups, edges, silu)

    @classmethod
    def groups_for(cls, batch: int, dim: int, row_vecs: int) -> int:
        """Groups per warp for batch * dim rows of `row_vecs` vectors."""
        is_small = batch * dim * row_vecs <= cls.SMALL_VECS and row_vecs <= cls.warps * cls.GROUPS[0] * WARP_SIZE
        return cls.GROUPS[not is_small]

    @classmethod
    def division(cls, groups: int, row_vecs: int) -> tuple[int, int]:
        """The warps that share a part of a row of `row_vecs` vectors, and the row's parts."""
        warp_vecs, channel_warps = groups * WARP_SIZE, 1
        while channel_warps < cls.warps and channel_warps * warp_vecs < row_vecs:
            channel_warps *= 2
        return channel_warps, ceil_div(row_vecs, channel_warps * warp_vecs)

    @classmethod
    def takes(cls, batch: int, dim: int, row_vecs: int) -> bool:
        """Whether batch * dim rows of `row_vecs` vectors have a length for which this kernel pays, and can be
        launched."""
        groups = cls.groups_for(batch, dim, row_vecs)
        channel_warps, row_parts = cls.division(groups, row_vecs)
        is_filled = row_vecs > cls.MIN_FILL * row_parts * channel_warps * groups * WARP_SIZE
        is_small = batch > 1 and dim >= cls.SMALL_DIM and batch * dim * row_vecs <= cls.SMALL_VECS
        is_possible = max(batch, ceil_div(dim * channel_warps, cls.warps)) < 2**16
        return row_vecs >= cls.MIN_VECS and is_filled and not is_small and is_possible

    @classmethod
    def suited(
        cls, width: int, input_t: DType, weight_t: DType, silu: bool, sizes: tuple[int, int, int]
    ) -> CausalConv1dRowpartsBwd:
        """The variant for `sizes`: batch entries, channels, and vectors of a row."""
        _, dim, row_vecs = sizes
        groups = cls.groups_for(*sizes)
        channel_warps, row_parts = cls.division(groups, row_vecs)
        edges = row_vecs < row_parts * channel_warps * groups * WARP_SIZE or dim * channel_warps % cls.warps > 0
        return cls(width, input_t, weight_t, groups, edges, silu)

    def launch_config(self, batch: int, dim: int, row_vecs: int) -> tuple[LaunchConfig, Division, int]:
        """The launch for batch * dim rows of `row_vecs` vectors, and the parts that sums are left in."""
        channel_warps, row_parts = self.division(self.groups, row_vecs)
        grid = row_parts, ceil_div(dim * channel_warps, self.warps), batch
        division = {"warps_shift": channel_warps.bit_length() - 1, "row_vecs": row_vecs}
        return LaunchConfig(grid, (self.threads, 1, 1)), division, batch * row_parts


@dataclass(frozen=True)
class CausalConv1dBwdSum(Kernel):
    """Gradients of the parameters from the sums that blocks have left."""

    FOLLOWS = True

    width: int
    weight_t: DType

    @classmethod
    def variants(cls) -> Iterator[CausalConv1dBwdSum]:
        for width, weight_t in product(WIDTHS, FLOATS):
            yield cls(width, weight_t)

    def launch_config(self, dim: int, parts: int) -> tuple[LaunchConfig, Division]:
        """The launch for `parts` sums of each of (width + 1) * dim parameters."""
        blocks, share = share_sums(self.width, dim, parts, self.threads)
        return self.config(blocks), share


def share_sums(width: int, dim: int, parts: int, threads: int) -> tuple[int, Division]:
    """The blocks of `threads` that add up `parts` sums of each of (width + 1) * dim parameters, and their share."""
    sums = (width + 1) * dim
    if sums > MAX_DIVIDEND:
        raise ValueError(f"the problem has {sums} parameters to add up; a launch takes at most {MAX_DIVIDEND}")
    # 32 sums side by side are one access; there are fewer where threads could not load all parts at once.
    shift = 5
    while shift > 0 and parts > 8 * (threads >> shift):
        shift -= 1
    return ceil_div(sums, 1 << shift), {"dim_div": fast_div(dim), "parts": parts, "across_shift": shift}
