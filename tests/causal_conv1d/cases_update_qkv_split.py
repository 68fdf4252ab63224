"""causal_conv1d_update_qkv_split: the convolution's decode step with q, k and v in arrays of their own, by heads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cuconv.causal_conv1d.form import Form, by_heads
from tests.causal_conv1d import update
from tests.causal_conv1d.update_step import Step
from tests.support.bounds import ROUNDING
from tests.support.channels import OfHeads
from tests.support.layouts import HEADS
from tests.support.placement import Array, Placement

OUTPUTS = ("q", "k", "v")
UPDATED = update.UPDATED


@dataclass(frozen=True)
class Case(OfHeads, Step):
    """One call; `channels` are the heads of q, k and v and their dims."""

    out: str = "dense"

    @property
    def form(self) -> Form:
        """The heads."""
        return by_heads(**self.head_numbers)

    def outputs(self) -> dict[str, Placement]:
        """Each (batch[, tokens], heads, head_dim)."""
        return {
            name: self.lay(self.input_t, (self.batch, self.tokens, *heads), HEADS[self.out_lies(number)], axis=1)
            for number, (name, heads) in enumerate(zip(OUTPUTS, self.heads, strict=True))
        }

    def divide(self, out: Array) -> dict[str, Array]:
        """The channels of each, by heads."""
        by_token = out[:, :, 0] if self.seqlen is None else out.transpose(0, 2, 1)
        parts = np.split(by_token, np.cumsum(self.sizes)[:-1], axis=-1)
        shaped = [part.reshape(*part.shape[:-1], *heads) for part, heads in zip(parts, self.heads, strict=True)]
        return dict(zip(OUTPUTS, shaped, strict=True))

    def options(self) -> dict[str, Any]:
        """Heads, too."""
        return {**super().options(), **self.head_numbers}


def sample(case: Case) -> tuple[Case, dict[str, Any]]:
    """The last head of each."""
    heads, channels = case.last_heads
    outs = dict.fromkeys(OUTPUTS, (..., slice(-1, None), slice(None)))
    return replace(case, channels=heads), update.cuts(case, channels) | outs


placements = update.placements
inputs = update.inputs
place_inputs = update.place_inputs
integers = update.integers
arguments = update.arguments
oracle = update.oracle
tolerances = update.tolerances
bytes_moved = update.bytes_moved
launch = update.launch
tensors = update.tensors

ROWS: Any = {"pool": "columns_and_one"}
ODD: Any = {"slots": "odd"}
RING: Any = {"mode": "circular"}
ACCEPTED: Any = {"mode": "accepted"}

UNIT = (
    # Head dims of vectors and not, borders of q, k and v inside vectors.
    Case((2, 2, 2, 16, 16, 32), 5),
    Case((2, 2, 2, 16, 16, 32), 5, 3, **ACCEPTED),
    Case((1, 2, 1, 30, 30, 46), 4, 2, **ODD),
    Case((30, 30, 76, 1, 1, 1), 3),
    Case((2, 1, 1, 64, 96, 128), 2, 2, out="sliced+sliced_heads+dense", pool="channels_longer", **RING),
    Case((2, 1, 1, 64, 64, 128), 3, 2, out="head_major+transposed+spaced", index="int64", **ODD),
    Case((1, 1, 2, 12, 20, 8), 3, out="backward+offset_by_1+backward_head"),
    # State columns together.
    Case((1, 2, 1, 30, 30, 46), 4, **ROWS, **ODD),
    Case((2, 1, 1, 64, 96, 128), 2, 2, out="sliced+sliced_heads+dense", **ROWS, **RING),
    Case((1, 1, 2, 12, 20, 52), 3, 3, out="transposed+offset_by_1+head_major", window="columns", **ROWS),
    Case((1, 1, 1, 8, 8, 8), 3, 0),
)

_HEADS = ((2, 2, 4, 64, 64, 64), (1, 1, 1, 1, 1, 1), (3, 2, 1, 5, 7, 11), (4, 4, 4, 96, 96, 96),
          (16, 1, 1, 64, 64, 64), (2, 2, 4, 128, 128, 256), (2, 2, 2, 100, 100, 36))  # fmt: skip
_BOTH = ("channels", "columns_and_one")

EDGE = tuple(
    dict.fromkeys(
        [
            *(Case(heads, 7, n, pool=p, **ODD) for heads in _HEADS for n in (None, 1, 3) for p in _BOTH),
            *(
                Case(heads, 3, 2, 4, a, pool=p, bias=None, **ACCEPTED)
                for heads in _HEADS
                for a in ROUNDING
                for p in _BOTH
            ),
            *(Case((2, 2, 1, 64, 64, 32), 3, 2, n, pool=p, **RING) for n in range(1, 17) for p in _BOTH),
            *(Case((2, 2, 1, 64, 64, 32), 3, n, out=a, pool=p) for n in (None, 3) for a in HEADS for p in _BOTH),
        ]
    )
)

BENCH = ()

BIG = ()
