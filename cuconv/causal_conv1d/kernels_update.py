"""The kernels of decode steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from cuconv.causal_conv1d.kernels import MAX_SEQUENCES, WIDTHS, Division, FilterKernel, PoolKernel
from cuconv.causal_conv1d.ranges import Ranges
from cuconv.jit import source, structs
from cuconv.runtime.dtypes import FLOATS
from cuconv.runtime.launch import (
    MAX_VECTOR_BYTES,
    LaunchConfig,
    ceil_div,
    fast_div,
    vectors,
)

MAX_TREE_TOKENS = structs.constant(source.load(), "common/trees.cuh", "kTreeTokens")
"""Most tokens of a tree."""

MANY_TOKENS_CHANNELS = 4
"""Most channels per thread where a sequence has several tokens: the inputs kept between them take the registers."""


FORMS: tuple[dict[str, Any], ...] = tuple(
    {"addressed": addressed, "packed": packed, "token_states": token_states}
    for addressed, packed, token_states in product((False, True), repeat=3)
    if addressed or not token_states
)
"""The template parameters for what only some calls do; kernels that keep states after single tokens are addressed,
too."""


def widest_channels(itemsize: int, width: int) -> int:
    """Most channels per thread of a decode step: they fit in one access, and their taps in registers."""
    channels = MAX_VECTOR_BYTES // itemsize
    while channels > 1 and channels * width > 32:
        channels //= 2
    return channels


def most_sequences(itemsize: int, *, addressed: bool, packed: bool, token_states: bool) -> int:
    """Most sequences per thread of a step of one token, by the bytes of an input; 0 where there is no such kernel.

    With many threads, two sequences of 16-bit inputs per thread are 1 to 4 % faster than one (measured on an H200).
    Four are slower, and so are two of float32 or, by 7 %, of packed tokens with `addressed`, because they take too many
    registers.
    """
    if token_states:
        return 0
    return 2 if itemsize == 2 and not (packed and addressed) else 1


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

    EARLY = ()

    silu: bool
    """Whether SiLU follows the sum."""
    ranges: Ranges
    """How the channels fall into ranges with a result each."""

    def launch_config(
        self, dim: int, batch: int, sequences: int, most_rows: int = MAX_SEQUENCES
    ) -> tuple[LaunchConfig, Division]:
        """The launch for x of (batch, dim), where a thread owns `vec` channels of `sequences` sequences.

        Sequences lie side by side in a block, `most_rows` at most.
        """
        dim_vecs = ceil_div(dim, self.vec)
        # Sequences that share a block find the same taps in the L1 cache.
        rows = min(batch, self.warps, most_rows)
        dim_blocks = ceil_div(dim_vecs, self.threads // rows)
        block_vecs = ceil_div(dim_vecs, dim_blocks)
        rows = min(self.threads // block_vecs, most_rows)
        division = {"block_vecs": fast_div(block_vecs), "dim_blocks": fast_div(dim_blocks), "rows": rows}
        return self.config(dim_blocks * ceil_div(batch, rows * sequences)), division


@dataclass(frozen=True)
class CausalConv1dUpdate(UpdateKernel):
    """States of any strides: a thread owns `vec` channels of a sequence."""

    sequences: int
    """Sequences per thread where each has one token; 0 where it may have several, a ring or rejected ones."""
    addressed: bool
    """Whether slots may be in columns, states go to other slots or start from zeros, or padding stay as it is."""
    packed: bool
    """Whether sequences have any numbers of tokens, one behind the other."""
    token_states: bool
    """Whether the states after single tokens may go to slots and to intermediate windows."""

    @classmethod
    def variants(cls) -> Iterator[CausalConv1dUpdate]:
        for axes, form in product(_update_axes(), FORMS):
            for sequences in range(1 + most_sequences(axes["input_t"].itemsize, **form)):
                if sequences or axes["vec"] <= MANY_TOKENS_CHANNELS:
                    yield cls(**axes, sequences=sequences, **form)


ROWS_BYTES = 32
"""Most bytes per thread of a state with contiguous columns: 0.86 of copy on an H200, instead of 0.78 with 16, where too
few bytes are in flight, and 0.70 with 64, where lanes lie too far apart."""


KEPT_ROWS_BYTES = 16
"""Most bytes per thread of a state with contiguous columns where the states after single tokens are kept, too: with 32
bytes each access would write halves of sectors. On an H200 16 bytes take 12.7 us instead of 18.1 (64 x 8192, 4 tokens,
states of 4 columns of 16 bits), 43.2 instead of 53.1 with 256 sequences; but 12.1 instead of 11.0 for windows of 3
columns, which take three accesses or more either way.
"""


def fits_thread(vec: int, state_len: int, itemsize: int, most: int = ROWS_BYTES) -> bool:
    """Whether a thread may have the whole states of this many channels; it always may for one channel."""
    return vec == 1 or vec * state_len * itemsize <= most


def row_state_lens(width: int) -> list[int]:
    """Columns per state that CausalConv1dUpdateRows takes: width - 1, which the filter reads, or width."""
    return [length for length in (width - 1, width) if length]


@dataclass(frozen=True)
class CausalConv1dUpdateRows(UpdateKernel):
    """States that are short rows of columns: a thread owns `vec` channels of a sequence and their whole states."""

    state_len: int
    """Columns per state."""
    sequences: int
    """Sequences per thread where each has one token; else 0."""
    addressed: bool
    """Whether slots may be in columns, states go to other slots or start from zeros, or padding stay as it is."""
    packed: bool
    """Whether sequences have any numbers of tokens, one behind the other."""
    token_states: bool
    """Whether the states after single tokens may go to slots and to intermediate windows."""

    @classmethod
    def variants(cls) -> Iterator[CausalConv1dUpdateRows]:
        for axes, form in product(_update_axes(), FORMS):
            for state_len in row_state_lens(axes["width"]):
                if fits_thread(axes["vec"], state_len, axes["state_t"].itemsize):
                    for sequences in range(1 + most_sequences(axes["input_t"].itemsize, **form)):
                        yield cls(**axes, state_len=state_len, sequences=sequences, **form)


@dataclass(frozen=True)
class CausalConv1dUpdateGated(UpdateKernel):
    """CausalConv1dUpdate with gates or a residual."""

    addressed: bool
    """Whether slots may be in columns, states go to other slots or start from zeros, or padding stay as it is."""
    packed: bool
    """Whether sequences have any numbers of tokens, one behind the other."""
    token_states: bool
    """Whether the states after single tokens may go to slots and to intermediate windows."""

    @classmethod
    def variants(cls) -> Iterator[CausalConv1dUpdateGated]:
        for axes, form in product(_update_axes(), FORMS):
            if axes["vec"] <= MANY_TOKENS_CHANNELS:
                yield cls(**axes, **form)


FEW_CHANNELS = (1, 2, 4)
"""Channels per thread of CausalConv1dUpdateFew, the fewest first."""

FEW_RANGES = structs.constant(source.load(), "causal_conv1d/causal_conv1d_update_few.cu", "kMaxFewRanges")
"""Most ranges of channels with a result each, of CausalConv1dUpdateFew."""

FEW_THREADS = structs.constants(
    source.load(), "causal_conv1d/causal_conv1d_update_few.cu", "CausalConv1dUpdateFewTraits"
)["kUsualThreads"]
"""Usual threads per block of CausalConv1dUpdateFew; large blocks have twice as many."""

LARGE_FEW_THREADS = 2**15
"""Threads of a packed step above which blocks of CausalConv1dUpdateFew are larger, if threads have four channels: on an
H200 3.73 us instead of 3.81 for 64 x 6144, but 2.70 instead of 2.68 for 64 x 2048.
"""

FEW_GRID = 65535
"""Most blocks along the second grid axis (CUDA programming guide, technical specifications)."""


@dataclass(frozen=True)
class CausalConv1dUpdateFew(PoolKernel):
    """One token of each sequence, states of width - 1 or width columns, and little else."""

    EARLY = ("conv_state", "weight", "bias", "conv_state_indices", "state_column", "dst_state_indices",
             "has_initial_state", "query_start_loc")  # fmt: skip
    LETS_GO_FIRST = True

    silu: bool
    """Whether SiLU follows the sum."""
    state_len: int
    """Columns per state."""
    rows: bool
    """Whether the columns of a state are contiguous, one channel after another."""
    indexed: bool
    """Whether conv_state_indices has the slots; otherwise sequence i has slot i."""
    moved: bool
    """Whether dst_state_indices has the slots that states go to, and the call asks for nothing of `addressed`."""
    addressed: bool
    """Whether slots may be in columns, states go to other slots or start from zeros, or padding stay as it is."""
    packed: bool
    """Whether sequences have any numbers of tokens, one behind the other, of which the first has a result."""
    gated: bool
    """Whether there are gates or a residual."""
    split: bool
    """Whether the channels fall into ranges with a result each."""

    @classmethod
    def variants(cls) -> Iterator[CausalConv1dUpdateFew]:
        flags = (False, True)
        for width, input_t, weight_t, state_t in product(WIDTHS, FLOATS, FLOATS, FLOATS):
            widest = widest_channels(max(input_t.itemsize, state_t.itemsize), width)
            for vec, state_len, rows in product(FEW_CHANNELS, row_state_lens(width), flags):
                if vec > widest or (rows and not fits_thread(vec, state_len, state_t.itemsize)):
                    continue
                axes = width, input_t, weight_t, state_t, vec
                for silu, indexed, moved, addressed, packed, gated in product(flags, repeat=6):
                    if not moved or (indexed and not addressed and not gated):
                        yield cls(*axes, silu, state_len, rows, indexed, moved, addressed, packed, gated, False)
                for silu, indexed in product(flags, repeat=2):
                    yield cls(*axes, silu, state_len, rows, indexed, False, False, False, False, True)

    def launch_config(self, dim: int, sequences: int) -> LaunchConfig:
        """The launch for `sequences` sequences, one per row of the grid."""
        is_large = self.packed and self.vec == FEW_CHANNELS[-1] and sequences * dim // self.vec > LARGE_FEW_THREADS
        threads = self.threads if is_large else FEW_THREADS
        return LaunchConfig((sequences, ceil_div(dim // self.vec, threads), 1), (threads, 1, 1))


SEVERAL_CHANNELS, SEVERAL_WIDTHS = (2, 4), range(3, 5)
"""Channels per thread of CausalConv1dUpdateSeveral, the fewest first, and the filter widths that it takes."""

SEVERAL_ROW_CHANNELS = 2
"""Channels per thread of CausalConv1dUpdateSeveral with `rows`: with four, stores of states would have gaps, 14.9 us
instead of 11.6 for 64 x 8192 (H200, 4 tokens).
"""

SEVERAL_TOKENS = structs.constant(source.load(), "causal_conv1d/causal_conv1d_update_several.cu", "kTokensAtOnce")
"""Tokens that a thread of CausalConv1dUpdateSeveral has in registers."""

SEVERAL_TREE_TOKENS = structs.constant(source.load(), "causal_conv1d/causal_conv1d_update_several.cu", "kTreeRows")
"""Most tokens of a tree that a thread of CausalConv1dUpdateSeveral has in shared memory."""


@dataclass(frozen=True)
class CausalConv1dUpdateSeveral(FilterKernel):
    """Several tokens of each sequence, after states of x's dtype with contiguous channels, or contiguous columns where
    there are intermediate windows, and of width - 1 or width columns; and little else.
    """

    EARLY = ()

    vec: int
    """Channels per thread."""
    silu: bool
    """Whether SiLU follows the sum."""
    state_len: int
    """Columns per state."""
    packed: bool
    """Whether sequences have any numbers of tokens, one behind the other."""
    windows: bool
    """Whether the inputs before each next token go to intermediate windows."""
    many: bool
    """Whether sequences may have more tokens than a thread has in registers."""
    tree: bool
    """Whether each token follows an earlier one or the state, instead of the one before it."""
    rows: bool
    """Whether states and intermediate windows have contiguous columns, one channel after another."""

    @classmethod
    def variants(cls) -> Iterator[CausalConv1dUpdateSeveral]:
        flags = (False, True)
        for width, input_t, weight_t in product(SEVERAL_WIDTHS, FLOATS, FLOATS):
            for vec, state_len in product(SEVERAL_CHANNELS, row_state_lens(width)):
                for silu, packed, windows, many, tree in product(flags, repeat=5):
                    axes = (width, input_t, weight_t, vec, silu, state_len, packed, windows, many, tree)
                    if not (packed and tree):
                        yield cls(*axes, rows=False)
                    if vec == SEVERAL_ROW_CHANNELS and windows and not tree:
                        yield cls(*axes, rows=True)

    def launch_config(self, dim: int, sequences: int) -> LaunchConfig:
        """The launch for `sequences` sequences: with `rows` one per column of the grid, else one per row."""
        dim_blocks = ceil_div(dim // self.vec, self.threads)
        grid = (dim_blocks, sequences, 1) if self.rows else (sequences, dim_blocks, 1)
        return LaunchConfig(grid, (self.threads, 1, 1))


@dataclass(frozen=True)
class CausalConv1dUpdateTree(UpdateKernel):
    """Trees of tokens after states of any strides: a thread owns `vec` channels of a sequence."""

    @classmethod
    def variants(cls) -> Iterator[CausalConv1dUpdateTree]:
        return (cls(**axes) for axes in _update_axes() if axes["vec"] <= MANY_TOKENS_CHANNELS)
