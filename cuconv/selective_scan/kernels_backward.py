"""The kernels of the selective scans' gradients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

from cuconv.runtime.dtypes import FLOATS, DType
from cuconv.runtime.kernel import Kernel, OwnBlock
from cuconv.runtime.launch import WARP_SIZE, LaunchConfig, ceil_div, fast_div, vectors
from cuconv.selective_scan.kernels import MAX_TOKENS, TILE_TIMES, SegmentKernel, chunk_tokens

LANE_TOKENS = 8
"""Consecutive tokens of a lane: ChunkShape::kTokens of selective_scan/scan_bwd.cuh."""


def group_channels(input_t: DType) -> int:
    """Neighbouring channels that blocks of gradients walk together: kGroupChannels of selective_scan/scan_bwd.cuh."""
    return 16 // input_t.itemsize


@dataclass(frozen=True)
class SelectiveScanBwd(Kernel):
    """A block walks channels of one chunk of tokens, with `vec` tokens per access, 0 where tokens may be apart in
    memory."""

    MOST_STATES: ClassVar[int] = 16
    """States that a block computes at a time: kBlockStates of selective_scan/scan_bwd.cuh."""

    input_t: DType
    vec: int
    by_channel: bool
    """Whether channels are contiguous, and are loaded `group_channels` at a time."""
    many_states: bool
    constant_b: bool
    constant_c: bool
    shares_chunks: bool
    """Whether packed sequences share chunks."""
    has_states: bool
    """Whether packed sequences begin with states, or end with gradients of states."""

    @classmethod
    def variants(cls) -> Iterator[SelectiveScanBwd]:
        for input_t in FLOATS:
            for vec, has_states in product((0, 1, 2), (False, True)):
                yield cls(input_t, vec, False, False, False, False, True, has_states)
            for vec, many_states in product((1, 2), (False, True)):
                yield cls(input_t, vec, False, many_states, False, False, False, False)
            for many_states, constant_b, constant_c in product((False, True), repeat=3):
                yield cls(input_t, 0, False, many_states, constant_b, constant_c, False, False)
            for many_states in (False, True):
                yield cls(input_t, 0, True, many_states, False, False, False, False)
            for has_states in (False, True):
                kernel = cls(input_t, 0, True, False, False, False, True, has_states)
                if kernel.fits:
                    yield kernel

    @property
    def resident(self) -> int:
        """Blocks per multiprocessor."""
        return self.constants["kMinBlocks"]

    @property
    def fits(self) -> bool:
        """Whether there is room on a multiprocessor of an H200 for two blocks; without `by_channel` there always is."""
        return 2 * (self.shared_bytes + 1024) <= 228 * 1024

    @property
    def shared_bytes(self) -> int:
        """A bound on the shared memory of a block."""
        return (36 if self.input_t.itemsize == 2 else 48) * 1024 + self.dynamic_bytes

    @property
    def dynamic_bytes(self) -> int:
        """Bytes for the states that sequences begin and end with, and for the arrays of a group of channels."""
        sizes = self.constants
        return (
            sizes["kEndsBytes"] * self.has_states
            + sizes["kGroupBytes"] * self.by_channel
            + sizes["kSumsBytes"] * group_channels(self.input_t) * self.many_states
        )


@dataclass(frozen=True)
class SelectiveScanBwdOverlapped(Kernel):
    """Gradients as SelectiveScanBwd computes them, with variable B and C, contiguous tokens and z.

    While a block scans the states of one channel, it finishes the tokens of the channel before and prepares those of
    the next.
    """

    input_t: DType
    many_states: bool
    vec: int
    """Tokens per access: 2, or 1 where rows begin at any element."""

    @classmethod
    def variants(cls) -> Iterator[SelectiveScanBwdOverlapped]:
        for input_t, many_states, vec in product(FLOATS, (False, True), (1, 2)):
            yield cls(input_t, many_states, vec)

    @property
    def resident(self) -> int:
        """Blocks per multiprocessor."""
        return self.constants["kMinBlocks"]

    @property
    def dynamic_bytes(self) -> int:
        """Bytes for B and C, for neighbouring channels and for states that have been loaded."""
        size = "Half" if self.input_t.itemsize == 2 else "Float"
        of_one = "OfOne" if self.vec == 1 and size == "Half" else ""
        return self.constants[f"k{size}Bytes{of_one}"] + self.constants[f"k{size}SumsBytes"] * self.many_states


@dataclass(frozen=True)
class SelectiveScanBwdFewStates(Kernel):
    """Gradients as SelectiveScanBwd computes them, with variable B and C, contiguous tokens and few states.

    A warp walks channels of one chunk of tokens.
    """

    STATES: ClassVar[tuple[int, ...]] = (2, 4)
    """States that lanes may have."""
    dynamic_bytes: ClassVar[int] = 0

    input_t: DType
    vec: int
    states: int

    @property
    def resident(self) -> int:
        """Blocks per multiprocessor."""
        return self.constants[f"kBlocksOf{self.states}"]

    @classmethod
    def variants(cls) -> Iterator[SelectiveScanBwdFewStates]:
        for input_t in FLOATS:
            for vec, states in product(cls.accesses(input_t), cls.STATES):
                yield cls(input_t, vec, states)

    @staticmethod
    def accesses(input_t: DType) -> tuple[int, ...]:
        """Tokens per access."""
        return tuple(vec for vec in vectors(input_t) if vec not in (2, 16))


@dataclass(frozen=True)
class SelectiveScanBwdShort(Kernel):
    """Gradients as SelectiveScanBwd computes them, with variable B and C, of rows of one chunk and up to 16 states.

    A block walks channels of one batch entry side by side, `rows` at a time.
    """

    STATES: ClassVar[tuple[int, ...]] = (2, 4, 8, 16)
    """States that a block may have."""
    LANES: ClassVar[tuple[int, ...]] = (4, 8, 16, 32)
    """Lanes that a row may have, of 8 tokens each."""
    BLOCKS: ClassVar[tuple[int, ...]] = (32, 64, 128)
    """Threads that a block may have."""
    threads = OwnBlock()

    input_t: DType
    vec: int
    """Tokens per access; 0 where tokens may be apart in memory."""
    states: int
    lanes: int

    @property
    def block(self) -> int:
        """Threads of a block: a warp for four states."""
        return ceil_div(self.states, 4) * WARP_SIZE

    @property
    def rows(self) -> int:
        """Channels side by side."""
        return WARP_SIZE // self.lanes

    @property
    def resident(self) -> int:
        """Blocks per multiprocessor."""
        return self.constants[f"kBlocksOf{self.states}"]

    @classmethod
    def of(cls, input_t: DType, widest: int, d_state: int, tokens: int) -> SelectiveScanBwdShort:
        """The kernel for rows of this many tokens, of which `widest` may be accessed at a time."""
        states = next(states for states in cls.STATES if d_state <= states)
        lanes = next(lanes for lanes in cls.LANES if tokens <= lanes * LANE_TOKENS)
        vec = max((vec for vec in cls.accesses(input_t, states) if vec <= widest), default=0)
        return cls(input_t, vec, states, lanes)

    @classmethod
    def accesses(cls, input_t: DType, states: int) -> list[int]:
        """The possible tokens per access, at most those of one thread."""
        own = chunk_tokens() // (ceil_div(states, 4) * WARP_SIZE)
        return [vec for vec in vectors(input_t) if vec <= own]

    @classmethod
    def variants(cls) -> Iterator[SelectiveScanBwdShort]:
        for input_t, states, lanes in product(FLOATS, cls.STATES, cls.LANES):
            for vec in (0, *cls.accesses(input_t, states)):
                if lanes * LANE_TOKENS <= cls.most_tokens(states, are_apart=vec == 0):
                    yield cls(input_t, vec, states, lanes)

    @staticmethod
    def most_tokens(d_state: int, *, are_apart: bool) -> int:
        """Tokens of a row up to which this kernel is the quickest: a chunk's, or half of them for more than 8 states.

        For tokens that are apart in memory it is half as many. On an H200 8 x 384 x 197 of contiguous tokens takes 35.7
        us with it and 42.6 with others where there are 8 states, 54.4 and 46.1 where there are 16; contiguous channels
        of 8 x 384 x 128 take 34.7 and 40.3 with 8, of 4 x 256 x 96 21.1 and 20.0 with 16 (bfloat16).
        """
        return chunk_tokens() // (2 if d_state > 8 else 1) // (2 if are_apart else 1)


@dataclass(frozen=True)
class SelectiveScanBwdStart(Kernel):
    """A thread marks `vec` floats as not yet written."""

    vec: int = 4
    has_states: bool = False
    """Whether packed sequences share chunks and begin with states."""
    has_rows: bool = False
    """Whether packed sequences are rows of a batch, and their starts are written."""

    @classmethod
    def variants(cls) -> Iterator[SelectiveScanBwdStart]:
        yield cls()
        yield cls(has_states=True)
        yield cls(has_rows=True)


@dataclass(frozen=True)
class SelectiveScanBwdStates(Kernel):
    """A block walks channels of one chunk of tokens, to the states after it."""

    input_t: DType
    by_channel: bool
    """Whether channels are contiguous, and are loaded `group_channels` at a time."""
    constant_b: bool
    shares_chunks: bool
    """Whether packed sequences share chunks."""

    @classmethod
    def variants(cls) -> Iterator[SelectiveScanBwdStates]:
        for input_t, by_channel, constant_b, shares_chunks in product(FLOATS, *((False, True),) * 3):
            if by_channel + constant_b < 2 and constant_b + shares_chunks < 2:
                yield cls(input_t, by_channel, constant_b, shares_chunks)


@dataclass(frozen=True)
class SelectiveScanBwdSweeps(SegmentKernel):
    """`parts` lanes own a channel, and walk all of its tokens."""

    input_t: DType
    parts: int
    at_once: int
    by_channel: bool

    @property
    def group(self) -> int:
        return self.parts

    @classmethod
    def variants(cls) -> Iterator[SelectiveScanBwdSweeps]:
        for input_t, shape, by_channel in product(FLOATS, TILE_TIMES, (False, True)):
            if shape.sweeps and shape.fits(input_t, 0, MAX_TOKENS):
                yield cls(input_t, shape.parts, shape.at_once, by_channel)


MANY_SPLITS = 24
"""Blocks per group up to which one thread adds up the parts that all of them have left for a token."""

SHARED_SUMS = {32: 16, 128: 4}
"""Threads that share the sum for a token where there are more blocks, by the largest number of rows of dB and dC for
which they are quickest; with more rows one thread is. On an H200 the gradients of 4 x 256 x 96 of four states, which
are 32 rows, take 15.4 us with 16 threads and 15.9 with 4; of 16 states, which are 128, 23.3, 20.2, and 22.5 with one.
"""


@dataclass(frozen=True)
class SelectiveScanBwdSums(Kernel):
    """A thread owns a number of dB or dC, or one of `shares` of its sum, and loads `ahead` blocks' parts at a time.

    In further blocks a thread owns a number of a parameter's gradient.
    """

    FOLLOWS = True
    KINDS: ClassVar[int] = 2
    """Kinds of parameters, two: A; D and delta_bias."""
    KINDS_WITH_CONSTANTS: ClassVar[int] = 4
    """Kinds of parameters where B and C may be constant, four: A; D and delta_bias; B; C."""

    input_t: DType
    shares: int = 1
    ahead: int = 8

    @classmethod
    def of(cls, input_t: DType, rows: int, splits: int) -> SelectiveScanBwdSums:
        """The kernel for dB and dC of this many rows, to each of which `splits` blocks have left a part."""
        shares = next((shares for most, shares in SHARED_SUMS.items() if rows <= most), 1)
        return cls(input_t) if splits <= MANY_SPLITS or shares == 1 else cls(input_t, shares, ahead=16)

    @classmethod
    def variants(cls) -> Iterator[SelectiveScanBwdSums]:
        for input_t in FLOATS:
            for rows in (*SHARED_SUMS, max(SHARED_SUMS) + 1):
                yield cls.of(input_t, rows, MANY_SPLITS + 1)

    def launch_config(
        self, rows: int, dim: int, d_state: int, *, has_constants: bool
    ) -> tuple[LaunchConfig, dict[str, Any]]:
        """The launch for this many rows of 256 tokens and the parameters of `dim` channels, and its params."""
        numbers = dim * max(d_state, 2 * SelectiveScanBwd.warps)
        matrix_blocks, kind_blocks = rows * self.shares, ceil_div(numbers, self.threads)
        kinds = self.KINDS_WITH_CONSTANTS if has_constants else self.KINDS
        known = {"matrix_blocks": matrix_blocks, "kind_blocks": fast_div(max(1, kind_blocks))}
        return self.config(matrix_blocks + kinds * kind_blocks), known
