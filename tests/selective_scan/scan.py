"""Parameters, and ranges of random numbers, of the cases of both selective scans."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from cuconv.runtime.dtypes import BY_NAME, FLOAT32, DType
from tests.support.layouts import PARAMETERS
from tests.support.placement import Array, Placed, Placement, place

RANGES = {"A": (-1.0, -0.01), "delta": (-2.0, 2.0)}
LINEAR_RANGES = {"A": (-1.0, -0.01), "delta": (0.0, 1.0), "delta_bias": (0.0, 0.5)}
"""Ranges of the arguments that decide how states grow, with softplus and without."""

PARAMETER_NAMES = ("D", "delta_bias")


class OfStates:
    """Base of the cases of selective scans; a subclass places the arrays by token."""

    dim: int
    d_state: int
    dtype: str
    params: str
    without: str
    softplus: bool
    others: str
    loud: float

    id: str

    @property
    def input_t(self) -> DType:
        """The dtype of u, delta, z, out, and of B and C that depend on the token."""
        return BY_NAME[self.dtype]

    @property
    def param_t(self) -> DType:
        """The dtype of D, delta_bias and constants."""
        return BY_NAME[self.params or self.dtype]

    def has(self, name: str) -> bool:
        """Whether an optional array is given."""
        return name not in self.without.split()

    def words(self) -> list[str]:
        """Words of an id for options that are not left at their defaults."""
        words = [self.dtype] + [f"params_{self.params or self.dtype}"] * (self.params != "float32")
        words += [f"without {self.without}".replace(" ", "_")] * bool(self.without) + ["linear"] * (not self.softplus)
        return words + [self.others] * (self.others != "dense") + [f"loud{self.loud:g}"] * (self.loud != 1)

    def parameters(self) -> dict[str, Placement]:
        """A, D and delta_bias."""
        lies = PARAMETERS[self.others]
        placed = {"A": place(FLOAT32, (self.dim, self.d_state), **lies(2))}
        names = [name for name in PARAMETER_NAMES if self.has(name)]
        return placed | {name: place(self.param_t, (self.dim,), **lies(1)) for name in names}


def random_of(case: OfStates, seed: int) -> np.random.Generator:
    """Random numbers of a case."""
    return np.random.default_rng([seed, zlib.crc32(case.id.encode())])


def fill(case: OfStates, placed: Mapping[str, Placement], known: Mapping[str, Array], seed: int) -> dict[str, Placed]:
    """Random values, with steps and decays such that states grow slowly; NaN in chunk_states_out."""
    random, found = random_of(case, seed), {}
    ranges = RANGES if case.softplus else LINEAR_RANGES
    for name, lies in placed.items():
        low, high = ranges.get(name, (-1.0, 1.0))
        loud = case.loud if name in ("delta", "z") else 1.0
        values: Any = known[name] if name in known else random.uniform(low * loud, high * loud, lies.shape)
        found[name] = Placed(lies, None if name == "chunk_states_out" else values)
    return found
