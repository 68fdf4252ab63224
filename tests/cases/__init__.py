"""The case tables: one module a public function, the place where tests find shapes.

A family registers a case module by its name: `tests/<family>/cases.py` or `tests/<family>/cases_*.py`. It has a frozen
dataclass `Case`, derived from the one here, and tables of such cases:

    UNIT    small, with every feature
    EDGE    larger and odder; may be absent
    BIG     too large for most machines; may be absent

A `Case` needs FUNCTION, its fields and `placements`. All else has a default here.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import MISSING, dataclass, fields
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

import cuconv
from cuconv.runtime.abstract import AbstractArray, launches_of
from cuconv.runtime.plan import Launch
from tests.support.placement import Array, Placed, Placement

TESTS = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Case:
    """One call of a public function, small or large."""

    FUNCTION: ClassVar[str]
    """The public function's name, or that of one for engines."""
    OUTPUTS: ClassVar[tuple[str, ...]] = ("out",)
    """The arrays that are only written, in the order in which the call returns them."""
    UPDATED: ClassVar[tuple[str, ...]] = ()
    """The arrays that are read and then written."""

    @property
    def id(self) -> str:
        """The case in one word: its sizes, and what is not left at its default."""
        words = [_word(getattr(self, field.name)) for field in fields(self) if field.default is MISSING]
        for field in fields(self):
            value = getattr(self, field.name)
            if field.default is not MISSING and value != field.default:
                is_flag = isinstance(value, bool)
                words.append("no_" * (value is False) + field.name + f"_{_word(value)}" * (not is_flag))
        return "-".join(words)

    @property
    def returned(self) -> tuple[str, ...]:
        """The arrays that the call hands back, in order, as far as they are there."""
        return self.OUTPUTS

    def placements(self) -> dict[str, Placement]:
        """Where every array of the call lies."""
        raise NotImplementedError

    def options(self) -> dict[str, Any]:
        """The arguments that are not arrays."""
        return {}

    def integers(self, seed: int = 0) -> dict[str, Array]:
        """The inputs that are no random numbers."""
        return {}

    def range(self, name: str) -> tuple[float, float]:
        """The least and the greatest random number of an input."""
        return -1.0, 1.0

    def spoil(self, arrays: dict[str, Array]) -> None:
        """Write NaN into what no result may depend on."""

    def running(self) -> AbstractContextManager[Any]:
        """The context for calls of the case, wherever its arrays are."""
        return nullcontext()

    def oracle(self, arrays: dict[str, Array]) -> dict[str, Any]:
        """What is written for these inputs: in float64, exactly in its own dtype, or Between two values."""
        raise NotImplementedError

    @property
    def function(self) -> Callable[..., Any]:
        """What is called."""
        found: Callable[..., Any] = getattr(cuconv, self.FUNCTION)
        return found

    def errors(self, arrays: Mapping[str, Array]) -> Mapping[str, Array]:
        """The absolute error per element that float32 arithmetic can have, by result."""
        found: Mapping[str, Array] = errors_of(self.FUNCTION)(**self.arguments(arrays))
        return found

    def random(self, seed: int) -> np.random.Generator:
        """Random numbers that belong to the case."""
        return np.random.default_rng([seed, zlib.crc32(self.id.encode())])

    def fill(self, placements: Mapping[str, Placement], seed: int = 0) -> dict[str, Placed]:
        """The inputs with the memory around them, placed like this."""
        random, known = self.random(seed), self.integers(seed)
        placed = {
            name: Placed(lies, known[name] if name in known else random.uniform(*self.range(name), lies.shape))
            for name, lies in placements.items()
            if name not in self.OUTPUTS
        }
        self.spoil({name: each.array for name, each in placed.items()})
        return placed

    def place_inputs(self, seed: int = 0) -> dict[str, Placed]:
        """The inputs with the memory around them."""
        return self.fill(self.placements(), seed)

    def inputs(self, seed: int = 0) -> dict[str, Array]:
        """All arrays but the outputs."""
        return {name: placed.array for name, placed in self.place_inputs(seed).items()}

    def arguments(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """The keyword arguments of the call with these arrays; `out[0]`, `out[1]`, … are one."""
        outs = {"out": tuple(arrays[name] for name in self.OUTPUTS if name.startswith("out[") and name in arrays)}
        given = {name: array for name, array in arrays.items() if not name.startswith("out[")}
        return {**given, **(outs if outs["out"] else {}), **self.options()}

    def call(self, arrays: Mapping[str, Any], **changes: Any) -> Any:
        """The result of the public function on these arrays."""
        return self.function(**{**self.arguments(arrays), **changes})

    def is_written(self, name: str) -> bool:
        """Whether the call may write the array of this name."""
        return name in self.OUTPUTS or name in self.UPDATED

    def launches(self) -> tuple[Launch, ...]:
        """The kernels that run, in order."""
        abstract = {
            name: AbstractArray(lies.shape, lies.strides, lies.dtype, lies.first)
            for name, lies in self.placements().items()
        }
        with self.running():
            return launches_of(self.function, **self.arguments(abstract))


def _word(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value).replace(" ", "_")


@cache
def modules() -> list[ModuleType]:
    """Every case module."""
    files = sorted([*TESTS.glob("*/cases*.py"), *TESTS.glob("cases/[!_]*.py")])
    return [importlib.import_module(f"tests.{file.parent.name}.{file.stem}") for file in files]


def tables(*names: str) -> list[Any]:
    """The cases of these tables of every public function."""
    return [case for module in modules() for name in names for case in getattr(module, name, ())]


def kind(function: str) -> Any:
    """The class of a public function's cases."""
    (found,) = (module.Case for module in modules() if function == module.Case.FUNCTION)
    return found


def errors_of(function: str) -> Any:
    """ERRORS of a public function."""
    family = getattr(cuconv, function).__module__.rpartition(".")[0]
    return importlib.import_module(f"{family}.reference").ERRORS[function]


def numbers_of(launch: Launch) -> Any:
    """What a launch passes behind the pointers, by name."""
    (numbers,) = np.frombuffer(launch.numbers, launch.kernel.params.numbers)
    return numbers
