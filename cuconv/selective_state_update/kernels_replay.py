"""The kernels of replay: frozen dataclasses, their fields the template parameters in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, ClassVar

from cuconv.jit import source, structs
from cuconv.runtime.dtypes import BFLOAT16, CODES, FLOAT32, FLOATS, DType
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
)
from cuconv.selective_state_update.kernels import (
    FEW_ROWS,
    HEADS_D_STATES,
    MAX_D_STATE,
    ROWS,
    SelectiveStateUpdateQuantisedSingle,
    SelectiveStateUpdateSingle,
    WalkedHeads,
    lanes,
)

D_STATES = (16, 32, 64, 128, 256, MAX_D_STATE)
"""The d_state that kernels are compiled for; any other one takes the next larger kernel, masked."""

WINDOWS = (16, 32)
"""The windows that kernels are compiled for; any other window takes the next larger kernel."""

MAX_WINDOW = WINDOWS[-1]
"""Most live tokens of a ring."""


ROUNDINGS = ((False, False), (False, True), (True, False))
"""(stochastic, index32): random rounding takes so long that offsets of 64 bits make no difference."""


def capacity(d_state: int) -> int:
    """The d_state that the kernel for this d_state is compiled for."""
    return next(capacity for capacity in D_STATES if capacity >= d_state)


def max_tokens() -> int:
    """Most new tokens of a sequence in a step."""
    return structs.constant(source.load(), "selective_state_update/replay.cuh", "kMaxReplayTokens")


def most_rows(capacity: int, vec: int, state_t: DType, most: int = 64) -> int:
    """Most rows per group of lanes, so that a lane holds at most `most` elements of their states in registers."""
    sharing = lanes(capacity, vec, state_t)
    elements = ceil_div(capacity, vec * sharing) * vec
    return max((rows for rows in ROWS if rows <= sharing and rows * elements <= most), default=1)


def most_folded(capacity: int, vec: int, state_t: DType) -> int:
    """Most rows per group of lanes where single tokens are folded into states at once; codes stay as they are in
    memory."""
    return most_rows(capacity, vec, state_t, 128 if state_t in CODES else 64)


def has_tensor_cores(capacity: int, input_t: DType, state_t: DType, b_t: DType, vec: int) -> bool:
    """Whether tensor cores fold live tokens into states. float16 lacks the range for weights times x.

    Four lanes share a row then, and have registers for 128 elements of it, or for 256 that need no conversion.
    """
    fits = lanes(capacity, vec, state_t) >= 4 and capacity <= (256 if state_t is b_t else 128)
    return input_t is b_t is BFLOAT16 and is_whole(state_t, vec) and fits


def is_whole(dtype: DType, vec: int) -> bool:
    """Whether accesses to this many elements have the greatest width."""
    return vec * dtype.itemsize == MAX_VECTOR_BYTES


def _arrays(d_state: int, most: Callable[[int, int, DType], int] = most_rows) -> Iterator[dict[str, Any]]:
    """Every combination of dtypes, vectors, rows (at most `most`), roundings and widths of offsets of the kernels."""
    for input_t, state_t in product(FLOATS, (*FLOATS, *CODES)):
        # B and C have more bits than x only where A has them, too.
        pairs = dict.fromkeys(((FLOAT32, input_t), (FLOAT32, FLOAT32), (input_t, input_t)))
        for (a_t, b_t), vec, rows in product(pairs, vectors(state_t), ROWS):
            if vec > d_state or rows > most(d_state, vec, state_t):
                continue
            types = {"input_t": input_t, "state_t": state_t, "a_t": a_t, "b_t": b_t}
            for stochastic, index32 in ROUNDINGS if state_t is not FLOAT32 else ROUNDINGS[:2]:
                yield {**types, "vec": vec, "rows": rows, "stochastic": stochastic, "index32": index32}


def _divided(kernel: Kernel, batch: int, nheads: int, row_tiles: int) -> tuple[LaunchConfig, dict[str, Any]]:
    """The launch for this many sequences with `row_tiles` warps per head; ValueError when they are too many."""
    warps = batch * nheads * row_tiles
    if warps > MAX_DIVIDEND:
        raise TooLarge(f"the problem needs {warps} warps; a launch takes at most {MAX_DIVIDEND}")
    division = {"row_tiles": fast_div(row_tiles), "nheads": fast_div(nheads)}
    return kernel.config(ceil_div(warps, kernel.warps)), division


@dataclass(frozen=True)
class _OfRows(Kernel):
    """Groups of lanes own rows of d_state elements."""

    EARLY: ClassVar[tuple[str, ...] | None] = ("state_batch_indices", "dst_state_batch_indices", "state_column")

    d_state: int
    input_t: DType
    state_t: DType
    a_t: DType
    b_t: DType
    vec: int
    rows: int

    @property
    def sharing(self) -> int:
        """Lanes per row."""
        return lanes(self.d_state, self.vec, self.state_t)

    @property
    def tile(self) -> int:
        """Rows per warp."""
        return WARP_SIZE // self.sharing * self.rows


@dataclass(frozen=True)
class SelectiveStateUpdateReplay(_OfRows):
    """A warp has tiles of rows of some heads of one group, and multiplies B and C of its live tokens once."""

    window: int
    x_vec: int
    tensor: bool
    masked: bool
    many: bool
    stochastic: bool
    index32: bool
    by_columns: bool

    @classmethod
    def variants(cls) -> Iterator[SelectiveStateUpdateReplay]:
        flags = (False, True)
        for d_state in D_STATES:
            for arrays, window, masked, many, columns in product(_arrays(d_state), WINDOWS, flags, flags, flags):
                input_t, state_t, b_t = (arrays[name] for name in ("input_t", "state_t", "b_t"))
                if has_tensor_cores(d_state, input_t, state_t, b_t, arrays["vec"]):
                    # Tensor cores take two rows a group.
                    if arrays["rows"] != 2:
                        continue
                    tensor = True
                else:
                    tensor = False
                common = {**arrays, "tensor": tensor, "window": window, "masked": masked, "many": many}
                common["by_columns"] = columns
                if is_whole(arrays["state_t"], arrays["vec"]):
                    yield cls(d_state, **common, x_vec=MAX_VECTOR_BYTES // arrays["input_t"].itemsize)
                # Arrays that are not aligned are rare: they have the kernels that serve all.
                if window == MAX_WINDOW and not arrays["index32"]:
                    yield cls(d_state, **common, x_vec=1)

    @property
    def sharing(self) -> int:
        return 4 if self.tensor else super().sharing

    def launch_config(
        self, batch: int, nheads: int, headdim: int, warp_heads: int, warp_tiles: int
    ) -> tuple[LaunchConfig, dict[str, Any]]:
        """The launch for this many sequences, each warp with this much work; ValueError when they are too many."""
        config, division = _divided(self, batch, nheads // warp_heads, ceil_div(headdim, self.tile * warp_tiles))
        return config, {**division, "warp_heads": warp_heads, "warp_tiles": warp_tiles}


@dataclass(frozen=True)
class SelectiveStateUpdateReplayFew(Kernel):
    """Few tokens, with x, B and C of bfloat16: a warp has 64 contiguous rows of some heads of one group."""

    EARLY = ("state_batch_indices",)

    ROWS = 64
    """Rows per warp."""

    D_STATES = (64, 128)
    """The d_state that the kernel is compiled for."""

    TOKENS = 4
    """Most new tokens of a sequence in a step."""

    WINDOW = 16
    """Most live tokens."""

    RANKED = 256
    """Most sequences that share blocks."""

    d_state: int
    state_t: DType
    a_t: DType
    many: bool
    by_columns: bool

    @classmethod
    def variants(cls) -> Iterator[SelectiveStateUpdateReplayFew]:
        for fields in product(cls.D_STATES, (*FLOATS, *CODES), (FLOAT32, BFLOAT16), (False, True), (False, True)):
            yield cls(*fields)

    def launch_config(
        self, batch: int, nheads: int, headdim: int, warp_heads: int, spare: int, kept_heads: int, most_parts: int
    ) -> tuple[LaunchConfig, dict[str, Any]]:
        """The launch for this many sequences, each warp with this many heads; ValueError when they are too many.

        spare: further blocks, for heads of sequences that flush. kept_heads: the number of its own heads that a warp
        flushes itself, the first one or none. most_parts: the most parts in which other heads that flush are divided
        among warps.
        """
        config, division = _divided(self, min(batch, self.RANKED), nheads // warp_heads, headdim // self.ROWS)
        config = LaunchConfig((config.grid[0] + spare, ceil_div(batch, self.RANKED), 1), config.block)
        flushed = {"kept_heads": kept_heads, "spare_warps": spare * self.warps, "most_parts": most_parts}
        return config, {**division, "warp_heads": warp_heads, **flushed}


@dataclass(frozen=True)
class SelectiveStateUpdateFold(_OfRows):
    """Folds live tokens into states: a warp has rows of one head, and needs no other warp."""

    token: bool
    masked: bool
    stochastic: bool
    index32: bool

    @classmethod
    def variants(cls) -> Iterator[SelectiveStateUpdateFold]:
        flags = (False, True)
        for d_state in D_STATES:
            for token, masked in product(flags, flags):
                for arrays in _arrays(d_state, most_folded if token else most_rows):
                    yield cls(d_state, **arrays, token=token, masked=masked)

    def launch_config(self, batch: int, nheads: int, headdim: int) -> tuple[LaunchConfig, dict[str, Any]]:
        """The launch for this many sequences; ValueError when they are too many."""
        return _divided(self, batch, nheads, ceil_div(headdim, self.tile))


@dataclass(frozen=True)
class SelectiveStateUpdateFoldSingle(_OfRows):
    """Folds live tokens and the next token into states of floats, with offsets of 32 bits: it has the fewest arguments,
    for which small batches wait."""

    EARLY = SelectiveStateUpdateSingle.EARLY

    BLOCKS: ClassVar[tuple[int, int]] = (7, 8)
    """Blocks per multiprocessor for float32 x with states of 16 bits: the most that registers suffice for, and the
    number where `crowded`."""

    masked: bool
    crowded: bool
    """Whether a multiprocessor has one more block than registers suffice for, so that all blocks run at once."""

    @classmethod
    def variants(cls) -> Iterator[SelectiveStateUpdateFoldSingle]:
        for d_state in D_STATES:
            for arrays in _arrays(d_state):
                if arrays.pop("index32") and not arrays.pop("stochastic") and arrays["state_t"] in FLOATS:
                    for masked in (False, True):
                        kernel = cls(d_state, **arrays, masked=masked, crowded=False)
                        yield kernel
                        if kernel.may_be_crowded:
                            yield replace(kernel, crowded=True)

    @property
    def may_be_crowded(self) -> bool:
        """Whether a lane needs more registers than in a plain step."""
        is_wide = self.input_t is FLOAT32 and self.state_t.itemsize == 2 and self.vec == 8
        return is_wide and self.d_state == 128 and self.rows == 4 and not self.masked

    def launch_config(self, batch: int, nheads: int, headdim: int) -> tuple[LaunchConfig, dict[str, Any]]:
        """The launch for this many sequences; ValueError when they are too many."""
        return _divided(self, batch, nheads, ceil_div(headdim, self.tile))


@dataclass(frozen=True)
class SelectiveStateUpdateQuantisedFoldSingle(_OfRows):
    """Folds live tokens and the next token into states of codes, with B and C of 16 bits."""

    EARLY = SelectiveStateUpdateQuantisedSingle.EARLY

    @classmethod
    def variants(cls) -> Iterator[SelectiveStateUpdateQuantisedFoldSingle]:
        for d_state in HEADS_D_STATES:
            for arrays in _arrays(d_state, most_folded):
                has_few = arrays.pop("index32") and not arrays.pop("stochastic") and arrays["rows"] <= FEW_ROWS
                if has_few and cls.takes(d_state, arrays["state_t"], arrays["b_t"], arrays["vec"]):
                    yield cls(d_state, **arrays)

    @staticmethod
    def takes(d_state: int, state_t: DType, b_t: DType, vec: int) -> bool:
        """Whether the kernel is compiled for these arrays."""
        return d_state in HEADS_D_STATES and state_t in CODES and is_whole(state_t, vec) and b_t.itemsize == 2

    def launch_config(self, batch: int, nheads: int, headdim: int) -> tuple[LaunchConfig, dict[str, Any]]:
        """The launch for this many sequences; ValueError when they are too many."""
        config, division = _divided(self, batch, nheads, ceil_div(headdim, self.tile))
        return config, {**division, "heads": 1}


@dataclass(frozen=True)
class SelectiveStateUpdateQuantisedFold(WalkedHeads):
    """Folds live tokens and the next token into states of 8-bit codes of many sequences: warps walk over heads."""


@dataclass(frozen=True)
class SelectiveStateUpdateCommit(Kernel):
    """Moves cursors: a thread has the cursor of one sequence's slot."""

    EARLY = ("state_batch_indices",)

    empty: bool

    @classmethod
    def variants(cls) -> Iterator[SelectiveStateUpdateCommit]:
        yield from (cls(False), cls(True))

    def launch_config(self, batch: int) -> LaunchConfig:
        """The launch for this many sequences."""
        return self.config(ceil_div(batch, self.threads))
