"""The kernels that only gradients of packed sequences have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

from cuconv.causal_conv1d.kernels import WIDTHS, Division
from cuconv.causal_conv1d.kernels_backward import (
    backward_axes,
    is_channel_vector,
    share_sums,
    widths_taken,
)
from cuconv.causal_conv1d.kernels_channels_backward import (
    ChannelWalks,
)
from cuconv.runtime.dtypes import FLOATS, DType
from cuconv.runtime.kernel import Kernel, PerClass
from cuconv.runtime.launch import MAX_VECTOR_BYTES, WARP_SIZE, LaunchConfig, ceil_div, fast_div


@dataclass(frozen=True)
class CausalConv1dChannellastVarlenBwd(Kernel):
    """Gradients of packed sequences with contiguous channels, with the gradients of their initial states."""

    width: int
    input_t: DType
    weight_t: DType
    vec: int
    tokens: int
    silu: bool
    states: bool

    @classmethod
    def variants(cls) -> Iterator[CausalConv1dChannellastVarlenBwd]:
        for axes in backward_axes():
            if not axes.pop("seq_idx") and axes.pop("packed") and is_channel_vector(axes):
                yield cls(tokens=cls.tokens_for(axes["width"], axes["input_t"].itemsize), **axes)

    @staticmethod
    def tokens_for(width: int, itemsize: int) -> int:
        """Tokens per step: at least the width - 1 that the next step needs again.

        Measured on an H200, 8192 tokens in 8192 channels: 512 random sequences in bfloat16 take 150 us with 4 instead
        of 154 with 8, 16 sequences of 512 in float32 224 us instead of 207.
        """
        return 4 if itemsize == 2 and width <= 4 else 8 if width <= 8 else 16

    def launch_config(self, dim: int, total: int) -> tuple[LaunchConfig, Division, int]:
        """The launch for x of (dim, total), and the parts that sums are left in."""
        # Filters of more than 8 taps take registers that leave room for two blocks.
        blocks = 3 if self.width <= 8 else 2
        return ChannelWalks.share(self, self.vec, self.tokens, blocks, (1, dim, total))


@dataclass(frozen=True)
class CausalConv1dShortrowsBwd(Kernel):
    """Gradients of packed sequences with contiguous tokens: a warp walks along the tokens of 32 channels, and stores
    the gradients of initial states, too. It looks up several sequences and brings their states at a time.
    """

    BLOCKS: ClassVar[int] = 528
    """Blocks that run at a time on an H200: 132 multiprocessors with 4 each."""

    BLOCK_TOKENS: ClassVar[int] = 64
    """Cost of the beginning and the end of a walk, in tokens. Not measured."""

    MIN_CHUNKS: ClassVar[int] = 4
    """Chunks that are worth a separate warp. Not measured."""

    MAX_LENGTH: ClassVar[int] = 2048
    """Tokens per sequence beyond which causal_conv1d_bwd is quicker.

    On an H200, 8192 tokens in 8192 channels in bfloat16 take it 1104 us as 512 random sequences instead of 191, as 16
    equal ones 329 instead of 129 and as 4 162 instead of 133, but as one 121 instead of 136. Parts of rows as in
    CausalConv1dRowpartsBwd, and a second launch for the first and last tokens of sequences, took 119 us for one
    sequence, 127 for 4, 172 for 16 and 234 for 32: 50 us more for the borders of 16 sequences.
    """

    WIDTHS = PerClass(widths_taken)
    """Filter widths, in taps: those of `struct CausalConv1dShortrowsBwdTraits`."""

    width: int
    input_t: DType
    weight_t: DType
    silu: bool
    states: bool

    @classmethod
    def variants(cls) -> Iterator[CausalConv1dShortrowsBwd]:
        for width, input_t, weight_t in product(cls.WIDTHS, FLOATS, FLOATS):
            for silu, states in product((False, True), repeat=2):
                yield cls(width, input_t, weight_t, silu, states)

    @property
    def chunk(self) -> int:
        """Tokens per chunk."""
        return self.constants["kChunkVecs"] * MAX_VECTOR_BYTES // self.input_t.itemsize

    def launch_config(self, dim: int, total: int) -> tuple[LaunchConfig, Division, int]:
        """The launch for x of (dim, total), and the parts that sums are left in."""
        groups, chunks = ceil_div(dim, WARP_SIZE), ceil_div(total, self.chunk)

        def shared_out(wanted: int) -> tuple[int, int, int]:
            """The time in tokens, the chunks of a walk, and the parts."""
            walk_chunks = max(self.MIN_CHUNKS, ceil_div(chunks, wanted * self.warps))
            parts = ceil_div(chunks, walk_chunks * self.warps)
            waves = ceil_div(parts * groups, self.BLOCKS)
            return waves * (walk_chunks * self.chunk + self.BLOCK_TOKENS), walk_chunks, parts

        most = max(1, 2 * self.BLOCKS // groups)
        _, walk_chunks, parts = min(shared_out(wanted) for wanted in range(1, most + 1))
        return (
            self.config(parts * groups),
            {"channel_groups": fast_div(groups), "walk_chunks": walk_chunks},
            parts,
        )


@dataclass(frozen=True)
class CausalConv1dBwdStates(Kernel):
    """Runs after CausalConv1dBwd: gradients of the initial states of packed sequences, where a thread has one channel
    of one sequence, and gradients of the parameters as in CausalConv1dBwdSum.
    """

    FOLLOWS = True

    width: int
    input_t: DType
    weight_t: DType
    silu: bool

    @classmethod
    def variants(cls) -> Iterator[CausalConv1dBwdStates]:
        for width, input_t, weight_t, silu in product(WIDTHS[1:], FLOATS, FLOATS, (False, True)):
            yield cls(width, input_t, weight_t, silu)

    def launch_config(self, dim: int, sequences: int, parts: int) -> tuple[LaunchConfig, Division]:
        """The launch for the states of `sequences` packed sequences, and for `parts` sums of parameters, unless 1."""
        dim_blocks = ceil_div(dim, self.threads)
        blocks, share = share_sums(self.width, dim, parts, self.threads)
        sum_blocks = blocks if parts > 1 else 0
        division = {"dim_blocks": fast_div(dim_blocks), "sum_blocks": sum_blocks, **share}
        return self.config(sum_blocks + dim_blocks * sequences), division
