"""What the cases of selective scans share: parameters, matrices, and ranges of random numbers."""

from __future__ import annotations

import inspect
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import cuconv
from cuconv.runtime.dtypes import BY_NAME, FLOAT32, DType
from tests import cases
from tests.support.entries import counting
from tests.support.layouts import BY_TOKEN, PARAMETERS
from tests.support.placement import Placement, place

RANGES = {"A": (-1.0, -0.01), "delta": (-2.0, 2.0)}
LINEAR_RANGES = {"A": (-1.0, -0.01), "delta": (0.0, 1.0), "delta_bias": (0.0, 0.5)}
"""Ranges of the arguments that decide how states grow, with softplus and without."""

PARAMETER_NAMES = ("D", "delta_bias")


class OfStates(cases.Case):
    """Base of the cases of selective scans; a subclass places the arrays by token."""

    dim: int
    d_state: int
    groups: int | None
    """None: without an axis of groups."""
    dtype: str
    params: str
    without: str
    softplus: bool
    matrices: str
    others: str
    loud: float
    PROCESSORS: ClassVar[int] = 0
    processors: int = 0
    """Multiprocessors that plans count with, PROCESSORS when 0; those of the GPU where both are."""

    def running(self) -> AbstractContextManager[Any]:
        processors = self.processors or self.PROCESSORS
        return counting(processors) if processors else super().running()

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

    def parameters(self) -> dict[str, Placement]:
        """A, D and delta_bias."""
        lies = PARAMETERS[self.others]
        placed = {"A": place(FLOAT32, (self.dim, self.d_state), **lies(2))}
        names = [name for name in PARAMETER_NAMES if self.has(name)]
        return placed | {name: place(self.param_t, (self.dim,), **lies(1)) for name in names}

    def matrix(self, batch: tuple[int, ...], tokens: int) -> Placement:
        """B or C."""
        grouped = () if self.groups is None else (self.groups,)
        shape = (*batch, *grouped, self.d_state, tokens)
        return place(self.input_t, shape, **BY_TOKEN[self.matrices](len(shape)))

    def in_order(self, placed: dict[str, Placement]) -> dict[str, Placement]:
        """The arrays that are given, in the order of the arguments; gradients come and go with what they are of."""
        names = inspect.signature(getattr(cuconv, self.FUNCTION)).parameters
        return {name: placed[name] for name in names if name in placed and self.has(name) and self.has(name[1:])}

    def range(self, name: str) -> tuple[float, float]:
        """A range with which states grow slowly."""
        low, high = (RANGES if self.softplus else LINEAR_RANGES).get(name, (-1.0, 1.0))
        loud = self.loud if name in ("delta", "z") else 1.0
        return low * loud, high * loud

    def options(self) -> dict[str, Any]:
        return {"delta_softplus": self.softplus}
