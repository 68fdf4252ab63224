"""Decode step of a selective state space model: cuda_src/selective_state_update.cu."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

from cuconv.dtypes import FLOAT32, FLOATS, DType
from cuconv.kernel import Kernel, Params
from cuconv.kernels.conv import vectors
from cuconv.launch import MAX_DIVIDEND, WARP_SIZE, LaunchConfig, ceil_div, fast_div

THREADS = 128
WARPS = THREADS // WARP_SIZE

D_STATES = (2, 4, 8, 16, 32, 64, 96, 128, 256)
"""What kernels are made for; any other d_state goes through the next larger one's, masked."""

MAX_D_STATE = 512
CAPACITIES = (*D_STATES, MAX_D_STATE)
ROWS = (1, 2, 4, 8, 16)

POINTERS = (
    *("state", "x", "dt", "A", "B", "C", "D", "z", "dt_bias"),
    *("state_batch_indices", "dst_state_batch_indices", "intermediate_states_buffer", "intermediate_state_indices"),
    *("num_accepted_tokens", "cu_seqlens", "rand_seed", "out"),
)
"""The tensors of common/ssm.cuh's SelectiveStateUpdateOperands, in order; 0 stands for one that is absent."""

OPERANDS = (
    ("state_stride", "i8", 4),
    ("x_stride", "i8", 4),
    ("dt_stride", "i8", 4),
    ("out_stride", "i8", 4),
    ("B_stride", "i8", 4),
    ("C_stride", "i8", 4),
    ("A_stride", "i8", 3),
    ("D_stride", "i8", 2),
    ("dt_bias_stride", "i8", 2),
    ("state_batch_indices_stride", "i8", 2),
    ("slots", "i8"),
    ("pad_slot_id", "i8"),
    ("row_tiles", "u4", 3),
    ("nheads", "u4", 3),
    ("group_heads", "u4", 3),
    ("batch", "i4"),
    ("headdim", "i4"),
    ("d_state", "i4"),
    ("dt_softplus", "i4"),
    ("dt_is_float32", "i4"),
    ("D_is_float32", "i4"),
    ("dt_bias_is_float32", "i4"),
    ("state_batch_indices_is_int64", "i4"),
    ("dst_state_batch_indices_is_int64", "i4"),
    ("is_read_only", "i4"),
    ("z_stride", "i8", 4),
    ("dst_state_batch_indices_stride", "i8", 2),
    ("intermediate_states_buffer_stride", "i8", 5),
    ("intermediate_state_indices_stride", "i8"),
    ("num_accepted_tokens_stride", "i8"),
    ("cu_seqlens_stride", "i8"),
    ("intermediate_rows", "i8"),
    ("seed", "i8"),
    ("tokens", "i4"),
    ("columns", "i4"),
    ("dst_columns", "i4"),
    ("intermediate_steps", "i4"),
    ("philox_rounds", "i4"),
    ("intermediate_state_indices_is_int64", "i4"),
    ("num_accepted_tokens_is_int64", "i4"),
    ("cu_seqlens_is_int64", "i4"),
)


def capacity(d_state: int) -> int:
    """The d_state of the kernels that take this one."""
    return next(capacity for capacity in CAPACITIES if capacity >= d_state)


def lanes(capacity: int, vec: int) -> int:
    """Lanes that share a row."""
    return min(WARP_SIZE, 1 << (ceil_div(capacity, vec) - 1).bit_length())


def most_rows(capacity: int, vec: int, tied: bool, many: bool) -> int:
    """How many rows a group of lanes has at most: what its states, and A, leave registers for."""
    elements = ceil_div(capacity, vec * lanes(capacity, vec)) * vec
    limit = 16 if many or not tied else 128
    fitting = [rows for rows in ROWS if rows <= lanes(capacity, vec) and rows * elements <= limit]
    return max(fitting, default=1)


@dataclass(frozen=True)
class SelectiveStateUpdate(Kernel):
    """A group of lanes owns rows of d_state elements."""

    unit: ClassVar[str] = "selective_state_update"
    params: ClassVar[Params] = Params(POINTERS, *OPERANDS)

    d_state: int
    input_t: DType
    state_t: DType
    a_t: DType
    vec: int
    rows: int
    tied: bool
    masked: bool
    many: bool
    stream: bool
    stochastic: bool
    narrow: bool

    @classmethod
    def variants(cls) -> Iterator[SelectiveStateUpdate]:
        flags = (False, True)
        for d_state, input_t, state_t in product(CAPACITIES, FLOATS, FLOATS):
            types = [{"input_t": input_t, "state_t": state_t, "a_t": a_t} for a_t in dict.fromkeys((FLOAT32, input_t))]
            for axes, vec, tied, masked, many in product(types, vectors(state_t), flags, flags, flags):
                if vec > d_state:
                    continue
                for rows in ROWS:
                    if rows > most_rows(d_state, vec, tied, many):
                        continue
                    # Several tokens, and random numbers, take so long that how states are stored does not matter.
                    for stream in flags[: 2 - many]:
                        for stochastic in flags[: 1 + (many and state_t is not FLOAT32)]:
                            for narrow in flags:
                                yield cls(d_state, **axes, vec=vec, rows=rows, tied=tied, masked=masked, many=many,
                                          stream=stream, stochastic=stochastic, narrow=narrow)  # fmt: skip

    def block(self) -> tuple[int, int, int]:
        """Warps, each of which has `tile` rows."""
        return THREADS, 1, 1

    @property
    def tile(self) -> int:
        """Rows a warp."""
        return WARP_SIZE // lanes(self.d_state, self.vec) * self.rows

    def grid(self, batch: int, nheads: int, headdim: int) -> tuple[int, int, int]:
        """Blocks for so many sequences; ValueError when these are too many."""
        warps = batch * nheads * ceil_div(headdim, self.tile)
        if warps > MAX_DIVIDEND:
            raise ValueError(f"the problem needs {warps} warps; a launch takes at most {MAX_DIVIDEND}")
        return ceil_div(warps, WARPS), 1, 1

    def launch_config(self, batch: int, nheads: int, headdim: int) -> tuple[LaunchConfig, dict[str, Any]]:
        """The launch for so many sequences, and the params that divide the work so."""
        division = {"row_tiles": fast_div(ceil_div(headdim, self.tile)), "nheads": fast_div(nheads)}
        return LaunchConfig(self.grid(batch, nheads, headdim), self.block()), division
