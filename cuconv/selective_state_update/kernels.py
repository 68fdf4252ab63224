"""The kernels of selective state updates: frozen dataclasses, their fields the template parameters in order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, ClassVar

from cuconv.jit import source, structs
from cuconv.runtime.dtypes import BFLOAT16, CODES, FLOAT32, FLOATS, INT16, DType
from cuconv.runtime.kernel import Kernel, OwnBlock
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

D_STATES = (2, 4, 8, 16, 32, 64, 96, 128, 256)
"""The d_state that kernels are compiled for; any other one takes the next larger kernel, masked."""

MAX_D_STATE = 512
"""Most states per row."""

CAPACITIES = (*D_STATES, MAX_D_STATE)
"""D_STATES and a kernel for all above them."""

HALVED_D_STATE = structs.constant(source.load(), "selective_state_update/quantised_heads.cuh", "kHalvedDState")
"""The d_state for which a warp may walk over half a head."""

HEADS_D_STATES = (64, 128, 256)
"""The d_state of kernels with warps that walk over heads, and of codes for which rows per group were measured."""

WHOLE_D_STATE = 128
"""The most states per row that have a kernel for whole rows."""

BYTES = tuple(state_t for state_t in CODES if state_t.itemsize == 1)
"""Codes of 8 bits."""

ROWS = (1, 2, 4, 8, 16)
"""Rows that a group of lanes loads at once."""

FEW_ROWS = 4
"""Most rows that a group of lanes loads at once, where states take few bytes or are chosen by an argument."""

STAYING_D_STATE, STAYING_ROWS = 128, 2
"""The d_state, and the rows per group of lanes, for which there is separate code for int16 states that stay in their
slot."""

FEW_LANES = 4
"""Lanes per row up to which a group keeps all its rows, because with fewer rows some lanes would have none. The kernel
for one token has fewer rows nevertheless: on an H200 2.45 us instead of 2.8 (1 x 1536 with 16 states of float32)."""


def capacity(d_state: int) -> int:
    """The d_state that the kernel for this d_state is compiled for."""
    return next(capacity for capacity in CAPACITIES if capacity >= d_state)


def lanes(capacity: int, vec: int, state_t: DType) -> int:
    """Lanes that share a row. With codes each lane has 16 elements, so that fewer lanes repeat the work on the row's
    scale."""
    share = 16 if state_t in CODES and vec == 8 else vec
    return min(WARP_SIZE, 1 << (ceil_div(capacity, share) - 1).bit_length())


def most_rows(capacity: int, vec: int, state_t: DType, shared_decay: bool, many: bool) -> int:
    """Most rows per group of lanes, so that registers hold their states, and their A where it differs by row.

    The work of a token that does not depend on the number of rows is large: on an H200 4 tokens of 32 sequences of
    Mamba-2 with 128 heads take 179 us with one row of bfloat16, 130 with two and 118 with four or eight, 220 with four
    of float32 and 208 with eight. A lane has twice as many codes of a row: 188 with one of int8, 157 with two and 120
    with four, one block each.
    """
    sharing = lanes(capacity, vec, state_t)
    elements = ceil_div(capacity, vec * sharing) * vec
    # Addresses of narrow accesses take registers, too.
    most = (64 if many else 128) // (1 if vec * state_t.itemsize == MAX_VECTOR_BYTES else 2)
    limit = 16 if not shared_decay else most // 2 if many and state_t not in CODES else most
    fitting = [rows for rows in ROWS if rows <= sharing and rows * elements <= limit]
    return max(fitting, default=1)


def heads_tile(d_state: int) -> int:
    """Rows that a warp which walks over heads has at once, each on lanes with 16 elements."""
    return WARP_SIZE * 16 // d_state * (4 if d_state < 128 else 8)


@dataclass(frozen=True)
class _Rows(Kernel):
    """A group of lanes owns rows of d_state elements."""

    EARLY = ("state", "state_scale", "A", "D", "dt_bias", "state_batch_indices", "dst_state_batch_indices",
             "state_column", "has_initial_state")  # fmt: skip

    STATES: ClassVar[tuple[DType, ...]]
    """The dtypes that states may have."""

    d_state: int
    input_t: DType
    state_t: DType
    a_t: DType
    b_t: DType
    vec: int
    rows: int
    shared_decay: bool
    masked: bool

    @classmethod
    def divisions(cls, many: bool, keeps_rows: bool = True) -> Iterator[dict[str, Any]]:
        """The fields for arrays and for the division of rows, for several tokens or for one.

        keeps_rows: groups of few lanes keep all their rows.
        """
        flags = (False, True)
        for d_state, input_t, state_t in product(CAPACITIES, FLOATS, cls.STATES):
            # B and C have more bits than x only where A has them, too.
            pairs = dict.fromkeys(((FLOAT32, input_t), (FLOAT32, FLOAT32), (input_t, input_t)))
            for (a_t, b_t), vec, shared_decay in product(pairs, vectors(state_t), flags):
                if vec > d_state:
                    continue
                most = most_rows(d_state, vec, state_t, shared_decay, many)
                has_few_lanes = keeps_rows and lanes(d_state, vec, state_t) <= FEW_LANES
                # Codes may have as few rows as let all blocks run at once.
                has_few_lanes &= not (state_t in CODES and not many and shared_decay and d_state in HEADS_D_STATES)
                for rows, masked in product(ROWS, flags):
                    # Only floats have fewer rows where few lanes share one: FEW_ROWS.
                    is_fewer = rows < (most if state_t in CODES else min(most, FEW_ROWS))
                    if rows > most or (has_few_lanes and (is_fewer or FEW_ROWS < rows < most)):
                        continue
                    types = {"input_t": input_t, "state_t": state_t, "a_t": a_t, "b_t": b_t}
                    yield {"d_state": d_state, **types, "vec": vec, "rows": rows, "shared_decay": shared_decay,
                           "masked": masked}  # fmt: skip

    @property
    def lanes(self) -> int:
        """Lanes that share a row."""
        return lanes(self.d_state, self.vec, self.state_t)

    @property
    def tile(self) -> int:
        """Rows per warp."""
        return WARP_SIZE // self.lanes * self.rows

    def launch_config(self, batch: int, nheads: int, headdim: int) -> tuple[LaunchConfig, dict[str, Any]]:
        """The launch for this many sequences; ValueError when they are too many."""
        row_tiles = ceil_div(headdim, self.tile)
        warps = batch * nheads * row_tiles
        if warps > MAX_DIVIDEND:
            raise TooLarge(f"the problem needs {warps} warps; a launch takes at most {MAX_DIVIDEND}")
        return self.config(ceil_div(warps, self.warps)), {"row_tiles": fast_div(row_tiles), "nheads": fast_div(nheads)}


@dataclass(frozen=True)
class SelectiveStateUpdateSingle(_Rows):
    """One token, states of floats and offsets of 32 bits: it has the fewest arguments, for which small batches wait."""

    STATES = FLOATS

    stream: bool
    whole: bool
    """Whether all rows of a warp exist, those of a head are contiguous, and states are written."""
    moved: bool
    """Whether these states go to other slots than those that they come from."""

    @classmethod
    def variants(cls) -> Iterator[SelectiveStateUpdateSingle]:
        for division in cls.divisions(False, keeps_rows=False):
            # Only states of few bytes are streamed, and these have few rows.
            for stream in (False, True)[: 1 + (division["rows"] <= FEW_ROWS)]:
                yield cls(**division, stream=stream, whole=False, moved=False)
                if stream and cls.may_be_whole(division):
                    for moved in (False, True):
                        yield cls(**division, stream=stream, whole=True, moved=moved)

    @classmethod
    def may_be_whole(cls, division: Mapping[str, Any]) -> bool:
        """Whether there is a separate step for whole rows of this division.

        Divisions with fewer rows take longer by it: 24 heads of one sequence 2.22 us instead of 2.10 on an H200.
        """
        if division["vec"] * division["state_t"].itemsize < MAX_VECTOR_BYTES or division["d_state"] > WHOLE_D_STATE:
            return False
        # With 96 states a fourth of the lanes has none.
        fills_lanes = division["d_state"].bit_count() == 1 and not division["masked"]
        return bool(division["rows"] == FEW_ROWS and division["shared_decay"] and fills_lanes)


FEW_D_STATES = (16, 32, 64, 128, 256)
"""The d_state of SelectiveStateUpdateFew."""

DECAYS_D_STATE = 16
"""The d_state of SelectiveStateUpdateDecays: that of Mamba."""

DECAYS_SEQUENCES = (1, 2)
"""Sequences per thread of SelectiveStateUpdateDecays; only one in float32, because two take longer: 10.0 us instead of
9.2 for 128 x 1536 on an H200.
"""


MAX_GRID_Y = 65535
"""Most blocks along the second grid axis (CUDA programming guide, technical specifications)."""


@dataclass(frozen=True)
class _OneToken(Kernel):
    """Base of the kernels of one token with states of floats, and little else: a group of lanes owns a row."""

    EARLY = ("state", "A", "D", "dt_bias", "state_batch_indices")

    d_state: int
    input_t: DType
    state_t: DType
    a_t: DType
    b_t: DType
    vec: int

    @staticmethod
    def axes(d_states: tuple[int, ...]) -> Iterator[tuple[int, DType, DType, DType, DType, int]]:
        """The fields that these kernels have in common, with each number of states and every dtype."""
        for d_state, input_t, state_t in product(d_states, FLOATS, FLOATS):
            vec = MAX_VECTOR_BYTES // state_t.itemsize
            if d_state // vec > WARP_SIZE:
                continue
            # B and C have more bits than x only where A has them, too.
            for a_t, b_t in dict.fromkeys(((FLOAT32, input_t), (FLOAT32, FLOAT32), (input_t, input_t))):
                yield d_state, input_t, state_t, a_t, b_t, vec

    @property
    def tile(self) -> int:
        """Rows per block."""
        return self.threads * self.vec // self.d_state


@dataclass(frozen=True)
class SelectiveStateUpdateDecays(_OneToken):
    """One token of Mamba, which has a separate decay for every row and element; a thread has one or two sequences."""

    BLOCKS: ClassVar[tuple[int, int]] = (128, 256)
    """Threads per block, where a thread has one sequence and where it has more. On an H200 1 x 1536 of bfloat16 takes
    1.56 us with 128 and 1.68 with 256; 64 x 8192, two sequences per thread, 12.6 and 12.3.
    """
    threads = OwnBlock()

    sequences: int
    """Sequences per thread."""
    block: int
    """Threads per block."""
    indexed: bool
    """Whether state_batch_indices has the slots; otherwise sequence i has slot i."""

    @classmethod
    def variants(cls) -> Iterator[SelectiveStateUpdateDecays]:
        for axes, sequences, indexed in product(cls.axes((DECAYS_D_STATE,)), DECAYS_SEQUENCES, (False, True)):
            if sequences == 1 or FLOAT32 is not axes[2]:
                yield cls(*axes, sequences, cls.BLOCKS[sequences > 1], indexed)

    def launch_config(self, batch: int, headdim: int) -> LaunchConfig:
        """The launch for this many sequences, which lie along the second axis of the grid."""
        return LaunchConfig((ceil_div(headdim, self.tile), ceil_div(batch, self.sequences), 1), (self.threads, 1, 1))


@dataclass(frozen=True)
class SelectiveStateUpdateFew(_OneToken):
    """One token of Mamba-2, which has a decay for each head, in few sequences."""

    indexed: bool
    """Whether state_batch_indices has the slots; otherwise sequence i has slot i."""

    @classmethod
    def variants(cls) -> Iterator[SelectiveStateUpdateFew]:
        for axes, indexed in product(cls.axes(FEW_D_STATES), (False, True)):
            yield cls(*axes, indexed)

    def launch_config(self, batch: int, rows: int) -> LaunchConfig:
        """The launch for this many sequences, which lie along the second axis of the grid."""
        return LaunchConfig((ceil_div(rows, self.tile), batch, 1), (self.threads, 1, 1))


@dataclass(frozen=True)
class _Steps(_Rows):
    """Base of the kernels for every feature of a call."""

    many: bool
    chosen: bool
    stream: bool
    stochastic: bool
    index32: bool

    @classmethod
    def variants(cls) -> Iterator[_Steps]:
        flags = (False, True)
        for many in flags:
            for division in cls.divisions(many):
                state_t = division["state_t"]
                rounded = flags[: 1 + (state_t in CODES or (many and state_t is not FLOAT32))]
                for chosen, stream, stochastic, index32 in product(flags, flags, rounded, flags):
                    # With several tokens, or random numbers for floats, which are drawn where those are computed, the
                    # store policy of states makes no difference. Rounding codes at random takes so long that offsets of
                    # 64 bits make no difference. Only states of few bytes are streamed; these have few rows, and so
                    # have states that an argument chooses.
                    has_many_rows = division["rows"] > FEW_ROWS and state_t not in CODES
                    if (stream and (many or chosen)) or (has_many_rows and (stream or chosen)):
                        continue
                    if stochastic and index32 and state_t in CODES:
                        continue
                    if index32 and not (many or chosen):
                        # SelectiveStateUpdateSingle or SelectiveStateUpdateQuantisedSingle computes these.
                        continue
                    yield cls(**division, many=many, chosen=chosen, stream=stream, stochastic=stochastic,
                              index32=index32)  # fmt: skip


@dataclass(frozen=True)
class SelectiveStateUpdate(_Steps):
    """Every feature of a call, with states of floats."""

    STATES = FLOATS

    crowded: bool = False
    """Whether a multiprocessor has more blocks than the kernel has registers for without spilling."""

    @classmethod
    def variants(cls) -> Iterator[SelectiveStateUpdate]:
        for kernel in super().variants():
            assert isinstance(kernel, SelectiveStateUpdate)
            if kernel.state_t is not FLOAT32 or not kernel.may_be_crowded:
                yield kernel
            if kernel.may_be_crowded:
                yield replace(kernel, crowded=True)

    @property
    def may_be_crowded(self) -> bool:
        """Whether a lane has the usual work of several tokens, and no feature that takes further registers."""
        takes_more = self.masked or self.chosen or self.stochastic or not self.index32 or self.b_t.itemsize > 2
        is_whole = self.vec * self.state_t.itemsize == MAX_VECTOR_BYTES
        is_usual = self.state_t is FLOAT32 or (self.d_state in HEADS_D_STATES and self.rows == FEW_ROWS)
        return self.many and self.shared_decay and self.d_state <= 256 and is_whole and is_usual and not takes_more


@dataclass(frozen=True)
class SelectiveStateUpdateQuantised(_Steps):
    """Every feature of a call, with states of codes and a scale per row; these need more arguments than other
    states."""

    STATES = CODES


@dataclass(frozen=True)
class SelectiveStateUpdateQuantisedSingle(_Rows):
    """One token, states of codes, up to 256 in a row, and offsets of 32 bits."""

    STATES = CODES

    stream: bool
    in_place: bool = False
    """Whether states stay in their slots; the code is for nothing else then."""

    @classmethod
    def variants(cls) -> Iterator[SelectiveStateUpdateQuantisedSingle]:
        for division, stream in product(cls.divisions(False), (False, True)):
            if division["d_state"] <= max(D_STATES):
                yield (kernel := cls(**division, stream=stream))
                if kernel.may_stay:
                    yield replace(kernel, in_place=True)

    @property
    def may_stay(self) -> bool:
        """Whether there is code for these rows that leaves states in their slots."""
        is_whole = self.vec * self.state_t.itemsize == MAX_VECTOR_BYTES and self.shared_decay and not self.masked
        is_narrow = self.b_t is BFLOAT16 and self.state_t is INT16 and self.rows == STAYING_ROWS
        return self.stream and is_whole and is_narrow and self.d_state == STAYING_D_STATE


@dataclass(frozen=True)
class WalkedHeads(Kernel):
    """Base of the kernels with warps that walk over heads with states of 8-bit codes."""

    EARLY = _Rows.EARLY

    d_state: int
    input_t: DType
    state_t: DType
    a_t: DType
    b_t: DType

    @classmethod
    def variants(cls) -> Iterator[WalkedHeads]:
        for d_state, input_t, state_t in product(HEADS_D_STATES, FLOATS, BYTES):
            for a_t, b_t in dict.fromkeys(((FLOAT32, input_t), (FLOAT32, FLOAT32), (input_t, input_t))):
                yield cls(d_state, input_t, state_t, a_t, b_t)

    @property
    def tile(self) -> int:
        """Rows that a warp has at once."""
        return heads_tile(self.d_state)

    def launch_config(self, batch: int, nheads: int, headdim: int, heads: int) -> tuple[LaunchConfig, dict[str, Any]]:
        """The launch for this many sequences, with `heads` heads per warp, or half a head for 0; ValueError for too
        many."""
        warps = batch * nheads // heads if heads else 2 * batch * nheads
        if batch * nheads > MAX_DIVIDEND:
            raise TooLarge(f"the problem has {batch * nheads} heads; a launch takes at most {MAX_DIVIDEND}")
        config = self.config(ceil_div(warps, self.warps))
        numbers = {"row_tiles": fast_div(headdim // self.tile), "nheads": fast_div(nheads), "heads": heads}
        return config, numbers


@dataclass(frozen=True)
class SelectiveStateUpdateQuantisedHeads(WalkedHeads):
    """One token, states of 8-bit codes and one decay per head, for many sequences: warps walk over heads."""
