"""The results of a call's checks and of its plan, as values that refer neither to arrays nor to a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from cuconv.runtime.kernel import Kernel
from cuconv.runtime.launch import LaunchConfig
from cuconv.runtime.layout import Layout

Layouts = Mapping[str, Layout | None]
"""The layouts of a call's arrays by argument, None for an absent array."""

Arrays = Mapping[str, Any]
"""The arrays of a call by argument, None for an absent array."""

Late = Mapping[str, int]
"""Integers that differ from call to call without affecting checks and plans, such as a seed of random numbers, by their
field in argument structs. Calls are remembered without them."""

NO_NUMBERS: Late = {}


NULL = ""
"""In Launch.named: the pointer of that name is null."""


class Launch(NamedTuple):
    """One kernel launch of a call."""

    kernel: Kernel
    config: LaunchConfig
    numbers: bytes
    """The bytes of the kernel's argument struct behind its pointers."""
    named: Mapping[str, str] = {}
    """For a pointer that does not have the name of its argument, by the pointer's name: the argument, a region of
    scratch memory, or NULL."""

    @classmethod
    def packed(cls, kernel: Kernel, config: LaunchConfig, **numbers: object) -> Launch:
        """A launch with these fields in the argument struct, behind the pointers."""
        return cls(kernel, config, kernel.params.pack_numbers(**numbers))

    def with_numbers(self, late: Late) -> bytes:
        """The bytes of the argument struct behind its pointers, with these numbers in the fields of their names."""
        return self.kernel.params.replaced(self.numbers, late)


class Plan(NamedTuple):
    """The launches of a call, in order; none where there is nothing to compute."""

    launches: tuple[Launch, ...] = ()
    scratch: int = 0
    """Bytes of device memory in which launches leave data for later ones."""
    regions: Mapping[str, int] = {}
    """Where arrays begin in scratch memory, in bytes, by the name of an argument or a name from `Launch.named`."""


Operands = TypeVar("Operands")


@dataclass(frozen=True)
class Checked(Generic[Operands]):
    """A call that has passed its operator's checks."""

    operands: Operands
    """Layouts and options as plans and references take them."""
    outputs: Layouts
    """The layouts of the results by argument, given or to be made; None for a result that is not wanted."""
    updated: tuple[str, ...] = ()
    """Arguments that are read and written; absent ones may be named, too."""
    in_place: tuple[str, ...] = ()
    """An output, and the inputs that it may share memory with, one at a time and laid out alike."""
    overlaid: Layouts = field(default_factory=dict)
    """Layouts of the distinct elements of written arguments in which several indices share an element; equal values are
    written to it."""
