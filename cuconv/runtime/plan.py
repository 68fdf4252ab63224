"""What the checks and the plan of a call say, as values that families make and that know neither arrays nor a GPU."""

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
"""Integers that differ from call to call without any effect on checks and plans, such as the seed of random numbers, by
their field in argument structs. They are not part of what a call is remembered by."""

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
    """The arguments, or regions of scratch memory, that pointers of other names take, or NULL."""

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
    """Bytes of device memory in which the launches leave results for each other."""
    regions: Mapping[str, int] = {}
    """Where arrays begin in that memory, in bytes, by the name of an argument or one that launches give them."""


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
    """An output, and the inputs of which one may be the same memory, laid out alike."""
    overlaid: Layouts = field(default_factory=dict)
    """The distinct elements of written arguments that have one element at several indices, where equal values go."""
