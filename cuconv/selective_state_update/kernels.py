"""Decode step of a selective state space model: cuda_src/selective_state_update.cu."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from cuconv.runtime.dtypes import FLOAT32, FLOATS, DType
from cuconv.runtime.kernel import Kernel
from cuconv.runtime.launch import MAX_DIVIDEND, WARP_SIZE, LaunchConfig, ceil_div, fast_div, vectors

D_STATES = (2, 4, 8, 16, 32, 64, 96, 128, 256)
"""What kernels are made for; any other d_state goes through the next larger one's, masked."""

MAX_D_STATE = 512
CAPACITIES = (*D_STATES, MAX_D_STATE)
ROWS = (1, 2, 4, 8, 16)


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

    @property
    def tile(self) -> int:
        """Rows a warp."""
        return WARP_SIZE // lanes(self.d_state, self.vec) * self.rows

    def launch_config(self, batch: int, nheads: int, headdim: int) -> tuple[LaunchConfig, dict[str, Any]]:
        """The launch for this many sequences; ValueError when they are too many."""
        row_tiles = ceil_div(headdim, self.tile)
        warps = batch * nheads * row_tiles
        if warps > MAX_DIVIDEND:
            raise ValueError(f"the problem needs {warps} warps; a launch takes at most {MAX_DIVIDEND}")
        return self.config(ceil_div(warps, self.warps)), {"row_tiles": fast_div(row_tiles), "nheads": fast_div(nheads)}
