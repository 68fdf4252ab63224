"""The kernels of the gradients of tokens with contiguous channels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

from cuconv.causal_conv1d.kernels import WIDTHS, Division, share_channels
from cuconv.causal_conv1d.kernels_backward import backward_axes, is_channel_vector
from cuconv.runtime.dtypes import FLOATS, DType
from cuconv.runtime.kernel import Kernel, OwnBlock
from cuconv.runtime.launch import MAX_DIVIDEND, WARP_SIZE, LaunchConfig, TooLarge, ceil_div, fast_div


class ChannelWalks:
    """Common to kernels of tokens with contiguous channels: a thread walks along consecutive tokens of `vec` channels,
    `tokens` per step.
    """

    MULTIPROCESSORS: ClassVar[int] = 132
    """Multiprocessors of an H200."""

    LONG_WALK: ClassVar[int] = 512
    MAX_WAVES: ClassVar[int] = 4
    """Tokens per walk from which on blocks run in several waves, and how many waves at most.

    For B1 D8192 L65536 in bfloat16 a prototype took 797 us on an H200 in one wave and 792 in four.
    """

    MIN_WALK: ClassVar[int] = 16
    """Tokens per walk that are worth a separate thread; half or a quarter as many where all blocks then run at once and
    there is more than one walk in any case. On an H200 16 x 256 x 24 with states takes 6.7 us with 4 and 9.2 with 16,
    packed 4 x 100 of 1024 channels 8.7 and 10.9, 32 x 7 10.7 and 13.9. But 1 x 5120 x 33, which with 16 is one part and
    needs no sums, takes 5.4 and 4.7, and 16 x 128 of 1024, which would be more blocks, 14.0 with 12 and 13.1 with 16.
    """

    BLOCK_TOKENS: ClassVar[int] = 20
    """Cost of a block's start and of the sums at its end, in tokens. Not measured; but fewer, longer blocks are slower:
    on an H200, B8 D4096 L2048 in bfloat16 takes 106 us in 512 and 117 us in 384.
    """

    @classmethod
    def share(
        cls, kernel: Kernel, vec: int, tokens: int, blocks: int, sizes: tuple[int, int, int], least_steps: int = 1
    ) -> tuple[LaunchConfig, Division, int]:
        """The launch for x of `sizes` (batch, dim, seqlen), `blocks` at a time on a multiprocessor, and its parts.

        A walk has at least `least_steps`.
        """
        batch, dim, seqlen = sizes
        dim_blocks, block_vecs = share_channels(ceil_div(dim, vec))
        block_walks = kernel.threads // block_vecs
        row_steps = max(1, ceil_div(seqlen, tokens))
        steps = batch * row_steps
        if steps * tokens > MAX_DIVIDEND:
            raise TooLarge(f"the problem needs {steps} steps of tokens; a launch takes {MAX_DIVIDEND // tokens}")
        at_a_time = blocks * cls.MULTIPROCESSORS
        least = ceil_div(cls.MIN_WALK, tokens)

        def parts_of(walk_steps: int) -> int:
            return max(1, ceil_div(steps, walk_steps * block_walks))

        while least > least_steps and parts_of(least) > 1 and parts_of(least // 2) * dim_blocks <= at_a_time:
            least //= 2

        def shared_out(waves: int) -> tuple[int, int, int]:
            """The time, in tokens that a thread walks, when blocks run in `waves`; the steps of a walk; and the
            parts."""
            wanted = max(1, waves * at_a_time // dim_blocks)
            walk_steps = max(least, ceil_div(steps, wanted * block_walks))
            parts = parts_of(walk_steps)
            needed = ceil_div(parts * dim_blocks, at_a_time)
            return needed * (walk_steps * tokens + cls.BLOCK_TOKENS), walk_steps, parts

        fewest = max(1, ceil_div(steps * tokens * dim_blocks, cls.LONG_WALK * block_walks * at_a_time))
        _, walk_steps, parts = min(shared_out(min(fewest, cls.MAX_WAVES) + more) for more in range(4))
        return (
            kernel.config(parts * dim_blocks),
            {
                "block_vecs": fast_div(block_vecs),
                "dim_blocks": fast_div(dim_blocks),
                "row_steps": fast_div(row_steps),
                "block_walks": block_walks,
                "walk_steps": walk_steps,
                "steps": steps,
            },
            parts,
        )


@dataclass(frozen=True)
class CausalConv1dChannellastBwd(Kernel):
    """Gradients of tokens with contiguous channels: a thread walks along consecutive tokens of `vec` channels, `tokens`
    per step.
    """

    BLOCKS: ClassVar[tuple[int, int]] = (128, 256)
    threads = OwnBlock()
    MAX_LARGE_WIDTH: ClassVar[int] = 4
    """Taps up to which blocks may be large; with wider filters they would need too much shared memory."""

    THREADS: ClassVar[int] = 512
    """Threads at a time on a multiprocessor, for filters of up to 4 taps."""

    LARGE_WALK: ClassVar[tuple[int, int]] = (7, 64)
    """Tokens per walk, if threads filled the GPU, for which blocks are large and leave half as many sums.

    On an H200, B1 D2048 L2048 in bfloat16, 15 tokens per walk, takes 11.5 us in large blocks and 12.3 in small ones,
    B512 D512 L64, 62 tokens, 29.9 and 30.8, but B64 D1536 L512, 186 tokens, 80.0 and 79.4. With fewer than 7, large
    blocks would leave multiprocessors without any.
    """

    width: int
    input_t: DType
    weight_t: DType
    vec: int
    tokens: int
    block: int
    """Threads per block: one of BLOCKS."""
    silu: bool
    seq_idx: bool
    states: bool

    @classmethod
    def variants(cls) -> Iterator[CausalConv1dChannellastBwd]:
        for axes in backward_axes():
            if not axes.pop("packed") and is_channel_vector(axes):
                for block in cls.BLOCKS[: 2 if axes["width"] <= cls.MAX_LARGE_WIDTH else 1]:
                    yield cls(tokens=cls.tokens_for(axes["width"]), block=block, **axes)

    @classmethod
    def block_for(cls, width: int, vec: int, sizes: tuple[int, ...], processors: int) -> int:
        """Threads per block for x of `sizes` (batch, dim, seqlen) on this many multiprocessors."""
        batch, dim, seqlen = sizes
        walk = batch * seqlen * ceil_div(dim, vec) / (processors * cls.THREADS)
        return cls.BLOCKS[width <= cls.MAX_LARGE_WIDTH and cls.LARGE_WALK[0] <= walk <= cls.LARGE_WALK[1]]

    @staticmethod
    def tokens_for(width: int) -> int:
        """Tokens per step: at least the width - 1 that the next step needs again.

        Measured on an H200 in bfloat16: B8 D4096 L2048 takes 107 us with 4 instead of 111 with 8.
        """
        return 4 if width <= 4 else 8 if width <= 8 else 16

    def launch_config(self, *sizes: int) -> tuple[LaunchConfig, Division, int]:
        """The launch for x of (batch, dim, seqlen), and the parts that sums are left in."""
        batch, dim, seqlen = sizes
        blocks = self.THREADS // self.block if self.width <= 4 else 3
        return ChannelWalks.share(self, self.vec, self.tokens, blocks, (batch, dim, seqlen))


@dataclass(frozen=True)
class CausalConv1dChannelpairsBwd(Kernel):
    """Gradients of tokens with contiguous channels in aligned pairs of vectors, in rows of whole steps that are one
    sequence each and start from zeros: with half of the accesses and no checks for each token.
    """

    TOKENS: ClassVar[int] = 8
    """Tokens per step."""
    VECTOR_BYTES: ClassVar[int] = 8
    """Bytes of a token that a thread walks."""
    MAX_WIDTH: ClassVar[int] = 4
    BLOCKS: ClassVar[tuple[int, int]] = (128, 256)
    threads = OwnBlock()
    AT_A_TIME: ClassVar[int] = 2
    """Blocks at a time on a multiprocessor."""

    SHORT_WALK: ClassVar[int] = 96
    """Tokens per walk, were the GPU full of large blocks, up to which blocks are small (kStages of the device code).

    On an H200 in bfloat16, B2 D2048 L2048, 31 tokens per walk, takes 16.7 us in small blocks and 18.1 in large ones,
    B512 D512 L64, 62 tokens, 29.3 and 30.3, B3 D4096 L2048, 93 tokens, 42.3 and 44.1, but B4 D4096 L2048, 124 tokens,
    55.0 and 54.6.
    """

    MOST_PARTS: ClassVar[int] = 64
    """Most walks of small blocks for which each walk leaves its own sums, instead of each block: as many as the launch
    that adds them up loads at once (`share_sums`).

    On an H200, B1 D2048 L1024 in float32, 64 walks, takes 9.8 us with sums of walks and 10.1 with sums of blocks, but
    B512 D512 L64 in bfloat16, 256 walks, 29.5 and 29.0, and B4 D4096 L2048, 64 walks in large blocks, 56.3 and 54.7.
    """

    width: int
    input_t: DType
    weight_t: DType
    block: int
    """Threads per block: one of BLOCKS."""
    silu: bool

    @classmethod
    def variants(cls) -> Iterator[CausalConv1dChannelpairsBwd]:
        for width, input_t, weight_t in product(WIDTHS[: cls.MAX_WIDTH], FLOATS, FLOATS):
            for block, silu in product(cls.BLOCKS, (False, True)):
                yield cls(width, input_t, weight_t, block, silu)

    @classmethod
    def suited(
        cls, width: int, input_t: DType, weight_t: DType, silu: bool, sizes: tuple[int, ...], processors: int
    ) -> CausalConv1dChannelpairsBwd:
        """The kernel for x of `sizes` (batch, dim, seqlen) on this many multiprocessors."""
        batch, dim, seqlen = sizes
        walk = batch * seqlen * dim * input_t.itemsize / cls.VECTOR_BYTES
        block = cls.BLOCKS[walk > cls.SHORT_WALK * processors * cls.AT_A_TIME * cls.BLOCKS[1]]
        return cls(width, input_t, weight_t, block, silu)

    @property
    def vec(self) -> int:
        """Channels per thread."""
        return self.VECTOR_BYTES // self.input_t.itemsize

    def launch_config(self, *sizes: int) -> tuple[LaunchConfig, Division, int]:
        """The launch for x of (batch, dim, seqlen), and the parts that sums are left in."""
        batch, dim, seqlen = sizes
        # Blocks synchronise before the second step.
        config, division, parts = ChannelWalks.share(
            self, self.vec, self.TOKENS, self.AT_A_TIME, (batch, dim, seqlen), least_steps=2
        )
        walks = parts * division["block_walks"]
        walks_are_parts = self.block == self.BLOCKS[0] and parts > 1 and walks <= self.MOST_PARTS
        return config, division | {"walks_are_parts": walks_are_parts}, walks if walks_are_parts else parts

    def takes(self, dim: int, division: Division) -> bool:
        """Whether all threads of a warp make the same number of steps in a launch for `dim` channels."""
        block_vecs, block_walks = division["block_vecs"][0], division["block_walks"]
        is_filled = dim // self.vec % block_vecs == 0 and block_vecs * block_walks == self.block
        warp_steps = division["walk_steps"] * max(1, WARP_SIZE // block_vecs)
        is_even = block_vecs == WARP_SIZE or division["steps"] % warp_steps == 0
        return bool(is_filled and block_vecs % 2 == 0 and is_even)


@dataclass(frozen=True)
class CausalConv1dChannelroundsBwd(Kernel):
    """Gradients of many tokens of many contiguous channels in aligned pairs of vectors, in rows of whole pieces that
    follow each other in memory, are one sequence each and start from zeros: a block goes through its tokens in rounds.
    """

    VECTOR_BYTES: ClassVar[int] = CausalConv1dChannelpairsBwd.VECTOR_BYTES
    MAX_WIDTH: ClassVar[int] = CausalConv1dChannelpairsBwd.MAX_WIDTH
    MIN_ROUNDS: ClassVar[int] = 24
    """Rounds of a block below which another kernel is quicker: on an H200, B4 D2048 L2048 in bfloat16, 11 rounds, takes
    it 31.8 us instead of 30.1, B4 D4096 L2048, 22 rounds, 55.8 instead of 55.3, B64 D1536 L512, 32 rounds, 79.8 instead
    of 80.3, and B1 D8192 L8192, 43 rounds, 102.1 instead of 106.7.
    """
    MAX_PARTS: ClassVar[int] = 100
    """Most parts for which this kernel is quicker: B1 D512 L2**17, 98 parts, takes it 105.5 us instead of 106.3, but B1
    D128 L2**19, 391 parts, 108.4 instead of 105.6.
    """

    width: int
    input_t: DType
    weight_t: DType
    silu: bool

    @classmethod
    def variants(cls) -> Iterator[CausalConv1dChannelroundsBwd]:
        for width, input_t, weight_t in product(WIDTHS[: cls.MAX_WIDTH], FLOATS, FLOATS):
            for silu in (False, True):
                yield cls(width, input_t, weight_t, silu)

    @property
    def vec(self) -> int:
        """Channels per thread."""
        return self.VECTOR_BYTES // self.input_t.itemsize

    def launch_config(
        self, batch: int, dim: int, seqlen: int, processors: int
    ) -> tuple[LaunchConfig, Division, int] | None:
        """The launch for x of (batch, dim, seqlen) on this many multiprocessors, and the parts that sums are left in;
        None where x does not fill rounds, or not enough of them.
        """
        dim_blocks, block_vecs = share_channels(dim // self.vec, self.constants["kMostVecs"])
        row_pieces, rest = divmod(seqlen, self.constants["kTokens"])
        if rest or block_vecs * dim_blocks * self.vec != dim or block_vecs % 2 or self.threads % block_vecs:
            return None
        round_pieces, pieces = self.threads // block_vecs, batch * row_pieces
        if pieces > MAX_DIVIDEND:
            raise TooLarge(f"the problem has {pieces} pieces of tokens; a launch takes {MAX_DIVIDEND}")
        at_a_time = max(1, processors * self.constants["kMinBlocks"] // dim_blocks)
        rounds = ceil_div(pieces, at_a_time * round_pieces)
        parts = ceil_div(pieces, max(1, rounds) * round_pieces)
        if rounds < self.MIN_ROUNDS or parts > self.MAX_PARTS:
            return None
        return (
            self.config(parts * dim_blocks),
            {
                "block_vecs": fast_div(block_vecs),
                "dim_blocks": fast_div(dim_blocks),
                "row_pieces": fast_div(row_pieces),
                "round_pieces": round_pieces,
                "rounds": rounds,
                "pieces": pieces,
            },
            parts,
        )

    def bytes_apart(self, division: Division, token_bytes: tuple[int, ...]) -> Division:
        """The distances in bytes between the kernel's accesses, from the distances between tokens of x, dout and dx."""
        pieces = division["round_pieces"]
        return {
            "token_bytes": token_bytes,
            "round_bytes": tuple(pieces * self.constants["kTokens"] * each for each in token_bytes),
            # A thread's accesses of 16 bytes are as far apart as all threads' accesses reach.
            "access_bytes": tuple(2 * pieces * each for each in token_bytes),
        }


@dataclass(frozen=True)
class CausalConv1dFewchannelsBwd(Kernel):
    """Gradients of many tokens of few contiguous channels, in contiguous rows that are one sequence each and start from
    zeros: a warp takes tiles of consecutive tokens, which bulk copies bring and send.
    """

    VECTOR_BYTES: ClassVar[int] = 8
    """Bytes of a token that a lane has."""
    VECS: ClassVar[tuple[int, int]] = (4, 8)
    MAX_WIDTH: ClassVar[int] = 4
    MIN_TILES: ClassVar[int] = 6
    """Tiles per warp below which another kernel is quicker: B1 D16 L2**19 in bfloat16 takes this one 17.5 us on an H200
    instead of 18.9, but L2**18 12.4 instead of 11.3, and D32 L2**17 13.0 instead of 10.8.
    """

    width: int
    input_t: DType
    weight_t: DType
    vecs: int
    """Vectors per token: one of VECS."""
    silu: bool

    @classmethod
    def variants(cls) -> Iterator[CausalConv1dFewchannelsBwd]:
        for width, input_t, weight_t in product(WIDTHS[: cls.MAX_WIDTH], FLOATS, FLOATS):
            for vecs, silu in product(cls.VECS, (False, True)):
                yield cls(width, input_t, weight_t, vecs, silu)

    @property
    def vec(self) -> int:
        """Channels per lane."""
        return self.VECTOR_BYTES // self.input_t.itemsize

    @property
    def own_tokens(self) -> int:
        """Tokens of a tile that belong to no other tile."""
        return WARP_SIZE // self.vecs * self.constants["kTokens"] - (self.width - 1)

    def launch_config(self, batch: int, seqlen: int, processors: int) -> tuple[LaunchConfig, Division, int]:
        """The launch for `batch` rows of `seqlen` tokens on this many multiprocessors, and the parts that sums are left
        in.
        """
        row_tiles = ceil_div(seqlen, self.own_tokens)
        tiles = batch * row_tiles
        if tiles > MAX_DIVIDEND:
            raise TooLarge(f"the problem has {tiles} tiles of tokens; a launch takes {MAX_DIVIDEND}")
        blocks = max(1, min(processors * self.constants["kMinBlocks"], ceil_div(tiles, self.warps)))
        return (
            self.config(blocks),
            {
                "row_tiles": fast_div(row_tiles),
                "token_vecs": fast_div(self.vecs),
                "tiles": tiles,
                "warps": blocks * self.warps,
            },
            blocks,
        )

    def takes(self, division: Division) -> bool:
        """Whether a launch has enough tiles for this kernel."""
        return bool(division["tiles"] >= self.MIN_TILES * division["warps"])


@dataclass(frozen=True)
class CausalConv1dChannelcolumnsBwd(Kernel):
    """Gradients of tokens with contiguous channels that fill the multiprocessors with one block each, in rows that
    follow each other in memory, are one sequence each and start from zeros: a block has all tokens of its channels.
    """

    ACCESS_BYTES: ClassVar[int] = 16
    """Bytes of a token that one access brings."""
    MAX_WIDTH: ClassVar[int] = 4
    SHARED_BYTES: ClassVar[int] = 96 * 1024
    """Least shared memory of a block, in bytes."""
    MIN_FILL: ClassVar[float] = 0.9
    """The least fraction of the multiprocessors that must have a block."""
    MAX_TOKENS: ClassVar[int] = 4096
    """Most tokens for which this kernel is quicker than others: on an H200 in bfloat16, B1 D4096 L512 takes it 7.2 us
    instead of 7.9, L2048 15.8 instead of 16.9, L4096 28.6 instead of 29.3, but L8192 58.0 instead of 54.4. With half as
    many words a block, B1 D2048 L1024 takes 7.7 instead of 7.6, and L2048 in float16 11.1 instead of 10.4.
    """

    width: int
    input_t: DType
    weight_t: DType
    silu: bool

    @classmethod
    def variants(cls) -> Iterator[CausalConv1dChannelcolumnsBwd]:
        for width, input_t, weight_t in product(WIDTHS[: cls.MAX_WIDTH], FLOATS, FLOATS):
            for silu in (False, True):
                yield cls(width, input_t, weight_t, silu)

    @property
    def dynamic_bytes(self) -> int:
        """Bytes of shared memory for the pieces of all warps."""
        return self.constants["kDynamicBytes"]

    @property
    def vec(self) -> int:
        """Channels per thread."""
        return 4 // self.input_t.itemsize

    def launch_config(self, batch: int, dim: int, seqlen: int, processors: int) -> tuple[LaunchConfig, Division] | None:
        """The launch for x of (batch, dim, seqlen) on this many multiprocessors; None where its blocks do not fill
        them, or rows are no whole walks.
        """
        words = self.constants["kMostWords"]
        blocks, rest = divmod(dim, words * self.vec)
        if rest or not self.MIN_FILL * processors <= blocks <= processors or batch * seqlen > self.MAX_TOKENS:
            return None
        tokens, over = divmod(batch * seqlen, self.threads // words)
        unit = self.constants["kPieceTokens"] * self.constants["kStages"]
        if over or not tokens or tokens % unit or seqlen % tokens:
            return None
        return (
            self.config(blocks, self.dynamic_bytes),
            {
                "column_words": fast_div(words),
                "row_walks": fast_div(seqlen // tokens),
                "walk_pieces": tokens // self.constants["kPieceTokens"],
            },
        )
