"""The kernels of packed sequences with results over x: those for contiguous channels, and the launches in front of
them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from cuconv.causal_conv1d.kernels import Division, FilterKernel, PoolKernel, share_channels
from cuconv.causal_conv1d.kernels_varlen import (
    SHORT_WIDTHS,
    SNAPSHOTS_AT_ONCE,
    CausalConv1dVarlenRowstripsFwd,
    varlen_channel_axes,
    varlen_vector_axes,
)
from cuconv.jit import source, structs
from cuconv.runtime.dtypes import FLOATS, DType
from cuconv.runtime.kernel import Kernel, PerClass
from cuconv.runtime.launch import MAX_VECTOR_BYTES, WARP_SIZE, LaunchConfig, ceil_div, fast_div

OVER_BYTES = 16
"""Bytes of x per lane and token that are copied to shared memory before results overwrite them."""


@dataclass(frozen=True)
class CausalConv1dVarlenBorders(Kernel):
    """Before results go over x, contiguous tokens: a warp keeps 32 channels at a border of strips, or stores rows of
    snapshots.
    """

    width: int
    """Taps of the filter."""
    input_t: DType
    """The dtype of x."""
    state_t: DType
    """The dtype of the pool of states."""

    @classmethod
    def variants(cls) -> Iterator[CausalConv1dVarlenBorders]:
        for width, input_t, state_t in product(CausalConv1dVarlenRowstripsFwd.WIDTHS, FLOATS, FLOATS):
            yield cls(width, input_t, state_t)

    def scratch(self, dim: int, borders: int) -> tuple[int, int]:
        """The bytes of scratch for `borders` borders, and where the states begin in it."""
        columns = borders * (self.width - 1) * dim
        states_at = ceil_div(columns * self.input_t.itemsize, MAX_VECTOR_BYTES) * MAX_VECTOR_BYTES
        return states_at + columns * self.state_t.itemsize, states_at

    def launch_config(self, dim: int, borders: int, snapshots: int) -> tuple[LaunchConfig, Division]:
        """The launch for this many borders and rows of snapshots."""
        tasks = borders + ceil_div(snapshots, SNAPSHOTS_AT_ONCE)
        dim_warps = ceil_div(dim, WARP_SIZE)
        division = {"dim_warps": fast_div(dim_warps), "borders": borders, "tasks": tasks, "snapshot_groups": 0}
        return self.config(ceil_div(dim_warps * tasks, self.warps)), division


@dataclass(frozen=True)
class CausalConv1dVarlenPrefixes(PoolKernel):
    """Before results go over x, contiguous channels: a warp has a border of tiles, a sequence's prefix or rows of
    snapshots in a share of the channels.
    """

    RESIDENT = PerClass(lambda cls: cls.constants["kLeanBlocks"])
    """Blocks that a multiprocessor runs at a time."""

    MOST_STEPS = 4
    """Most groups of 32 channel vectors in a share. With 1, 2, 4, 8 and 16, results of 512 random lengths over x take
    123.8, 119.7, 118.6, 120.0 and 120.1 us on an H200.
    """

    silu: bool
    """Whether SiLU follows the sum."""

    @classmethod
    def variants(cls) -> Iterator[CausalConv1dVarlenPrefixes]:
        for axes in varlen_vector_axes():
            if axes.pop("addressed"):
                yield cls(**axes)

    def scratch(self, dim: int, total: int, borders: int, sequences: int) -> tuple[int, int]:
        """The bytes of scratch for `borders` borders and results of prefixes, and where the results begin in it."""
        row, halo = dim * self.input_t.itemsize, self.width - 1
        results_at = ceil_div(borders * halo * row, MAX_VECTOR_BYTES) * MAX_VECTOR_BYTES
        return results_at + min(sequences * halo, total) * row, results_at

    def launch_config(
        self, dim: int, borders: int, sequences: int, snapshots: int, blocks: int
    ) -> tuple[LaunchConfig, Division] | None:
        """The launch for this many borders, sequences and rows of snapshots, of about as many blocks as run at a time;
        None where there is nothing to do.
        """
        border_groups = ceil_div(borders, self.warps)
        prefix_groups = ceil_div(sequences, self.warps) if self.width > 1 else 0
        groups = border_groups + prefix_groups + ceil_div(snapshots, self.warps * SNAPSHOTS_AT_ONCE)
        if not groups:
            return None
        dim_warps = ceil_div(ceil_div(dim, self.vec), WARP_SIZE)
        steps = min(ceil_div(dim_warps * groups, blocks), self.MOST_STEPS)
        shares = ceil_div(dim_warps, steps)
        return self.config(shares * groups), {
            "dim_shares": fast_div(shares),
            "share": steps * WARP_SIZE * self.vec,
            "borders": borders,
            "border_groups": border_groups,
            "prefix_groups": prefix_groups,
            "snapshot_groups": 0,
        }


@dataclass(frozen=True)
class CausalConv1dVarlenOverFwd(FilterKernel):
    """Results over x, contiguous channels: a thread owns `vec` channels of `tokens` consecutive tokens."""

    EARLY = ("x", "weight", "bias", "query_start_loc", "cache_indices", "state_column")
    FOLLOWS = True

    vec: int
    """Elements per access to x."""
    tokens: int
    """Tokens per thread."""
    silu: bool
    """Whether SiLU follows the sum."""
    follows: bool
    """Whether there is a launch in front."""

    @classmethod
    def variants(cls) -> Iterator[CausalConv1dVarlenOverFwd]:
        for axes in varlen_channel_axes():
            if axes.pop("addressed") and axes.pop("state_t") is axes["input_t"]:
                yield from (cls(follows=follows, **axes) for follows in (True, False))

    @property
    def is_follower(self) -> bool:
        return self.follows

    def block_tokens(self, dim: int) -> tuple[int, int, int]:
        """Tokens per block of a call with `dim` channels, blocks across the channels, and channel vectors per block."""
        dim_blocks, block_vecs = share_channels(ceil_div(dim, self.vec), self.constants["kBlockVecs"])
        return self.threads // block_vecs * self.tokens, dim_blocks, block_vecs

    def launch_config(self, dim: int, total: int) -> tuple[LaunchConfig, Division]:
        """The launch for x of (dim, total)."""
        tokens, dim_blocks, block_vecs = self.block_tokens(dim)
        return self.config(dim_blocks * ceil_div(total, tokens)), {
            "block_vecs": fast_div(block_vecs),
            "dim_blocks": fast_div(dim_blocks),
            "tiles": tokens // self.tokens,
            "snapshot_groups": 0,
        }


@dataclass(frozen=True)
class CausalConv1dVarlenOverStart(Kernel):
    """A thread resets `vec` counters, by which tiles over x see how far their neighbours are."""

    vec: int = 4

    @classmethod
    def variants(cls) -> Iterator[CausalConv1dVarlenOverStart]:
        yield cls()

    def launch_config(self, counters: int) -> tuple[LaunchConfig, Division]:
        """The launch for this many counters, a multiple of `vec`."""
        return self.config(ceil_div(counters // self.vec, self.threads)), {"counters": counters, "snapshot_groups": 0}


@dataclass(frozen=True)
class CausalConv1dVarlenOvershortFwd(PoolKernel):
    """Results over x, contiguous channels, short sequences: a block walks the sequences that begin in its tokens, from
    their states on, and hands other blocks the inputs that they read.
    """

    EARLY = (
        "x", "weight", "bias", "query_start_loc", "cache_indices", "has_initial_state", "state_column",
        "dst_state_indices", "conv_states", "initial_states",
    )  # fmt: skip
    FOLLOWS = True
    HANDED_KINDS = structs.constant(source.load(), "causal_conv1d/conv_neighbours.cuh", "kHandedKinds")
    """Counters per border and warp across the channels."""

    silu: bool
    """Whether SiLU follows the sum."""

    @classmethod
    def variants(cls) -> Iterator[CausalConv1dVarlenOvershortFwd]:
        for width, input_t, weight_t, state_t in product(SHORT_WIDTHS, FLOATS, FLOATS, FLOATS):
            vec = OVER_BYTES // input_t.itemsize
            yield from (cls(width, input_t, weight_t, state_t, vec, silu) for silu in (False, True))

    def division(self, dim: int, total: int) -> tuple[int, int]:
        """Blocks along the tokens, and across the channels."""
        return ceil_div(total, self.constants["kTokens"]), ceil_div(dim, self.threads * self.vec)

    def scratch(self, dim: int, total: int) -> tuple[int, int, int, int]:
        """The bytes of scratch, where states and counters begin in it, and the number of counters."""
        windows, dim_blocks = self.division(dim, total)
        columns = (windows - 1) * (self.width - 1) * dim
        states_at = ceil_div(columns * self.input_t.itemsize, MAX_VECTOR_BYTES) * MAX_VECTOR_BYTES
        counters_at = states_at + ceil_div(columns * self.state_t.itemsize, MAX_VECTOR_BYTES) * MAX_VECTOR_BYTES
        counters = (windows - 1) * self.HANDED_KINDS * dim_blocks * self.warps
        return counters_at + 4 * counters, states_at, counters_at, counters

    def launch_config(self, dim: int, total: int) -> tuple[LaunchConfig, Division]:
        """The launch for x of (dim, total)."""
        windows, dim_blocks = self.division(dim, total)
        return self.config(dim_blocks * windows), {
            "dim_blocks": fast_div(dim_blocks),
            "windows": windows,
            "snapshot_groups": 0,
        }
