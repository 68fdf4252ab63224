"""How a family defines a public function, and the checks and the plan of a call, from layouts alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Generic

from cuconv.runtime import checks
from cuconv.runtime.arrays import Family
from cuconv.runtime.dtypes import FLOAT32, FLOAT64, DType
from cuconv.runtime.errors import message
from cuconv.runtime.launch import TooLarge
from cuconv.runtime.layout import HOST, Layout
from cuconv.runtime.plan import Checked, Layouts, Operands, Plan


@dataclass(eq=False)
class Definition(Generic[Operands]):
    """A public function: the names of its arrays, and how a call is checked, planned and computed."""

    inputs: tuple[str, ...]
    """All arguments that are arrays except results, in the order in which they are given."""
    outputs: tuple[str, ...] = ()
    """The arguments for results, empty when every call names its own."""
    _: KW_ONLY
    name: str = ""
    """The public function's name, for functions that torch.compile and autograd can follow."""
    check: Callable[..., Checked[Operands]]
    """Takes the arguments' Layouts by name, and the options; raises for an argument that does not fit."""
    plan: Callable[[Operands], Plan]
    """Takes the operands; returns the launches. A pure function."""
    reference: Callable[..., None]
    """Takes the operands and all NumPy Arrays by name, and late numbers by keyword; writes the results, and only the
    changed elements of updated arrays, because callers may use the others at the same time."""
    contents: Callable[[Operands, Callable[[str], Any]], None] | None = None
    """Takes the operands and a function that reads an array back by name (None for an absent one); raises for contents
    that cannot be right. It is called under CUCONV_CHECK=1."""
    leader: str = ""
    """The argument that determines kind and device of all arrays; the first one when empty."""
    absent: tuple[str, ...] = ()
    """Pointers of its kernels that are null in every call: arguments of other operations on the same kernels."""

    def __post_init__(self) -> None:
        self.leader = self.leader or self.inputs[0]
        self.place_of_leader = self.inputs.index(self.leader)
        self._arguments = self.inputs + self.outputs

    def names(self, outputs: tuple[str, ...] | None) -> tuple[str, ...]:
        """The arguments that are arrays, in the order in which they are given."""
        return self._arguments if outputs is None else self.inputs + outputs

    def layouts_of_results(self, layouts: Layouts, options: tuple[Any, ...]) -> dict[str, Layout]:
        """The results that a call on these layouts makes, by argument; raises for what does not fit."""
        first = layouts[self.leader]
        assert first is not None
        checked = self._checked(layouts, options, first.device == HOST)
        return {
            name: layout for name, layout in checked.outputs.items() if layout is not None and layouts.get(name) is None
        }

    def planned(self, family: Family, layouts: Layouts, options: tuple[Any, ...]) -> tuple[Checked[Operands], Plan]:
        """Check and plan a call on arrays of a family; raises before anything is launched or written."""
        leader = layouts[self.leader]
        if leader is None:
            raise TypeError(message(self.leader, "None", "an array"))
        if not family.has_host:
            checks.on_gpu(self.leader, leader.device, "NumPy arrays are computed on the CPU")
        checked = self._checked(layouts, options, family.has_float64 and leader.device == HOST)
        for argument, layout in layouts.items():
            if layout is not None:
                checks.device(argument, layout.device, leader.device, self.leader)
        for argument in (*checked.updated, *checked.outputs):
            if (layout := checked.overlaid.get(argument) or layouts[argument]) is not None:
                checks.not_self_overlapping(argument, layout.shape, layout.strides)
        try:
            plan = Plan() if leader.device == HOST else self.plan(checked.operands)
        except TooLarge as error:
            got = f"shape {leader.shape}, in a call that no launch can take ({error})"
            raise ValueError(message(self.leader, got, "fewer elements")) from None
        return checked, plan

    def _checked(self, layouts: Layouts, options: tuple[Any, ...], may_be_float64: bool) -> Checked[Operands]:
        """The family's `check`; where float64 may stand in for float32, it replaces all float32 arrays of a call."""
        if not may_be_float64 or not any(layout and layout.dtype is FLOAT64 for layout in layouts.values()):
            return self.check(layouts, *options)
        for name, layout in layouts.items():
            if layout is not None and layout.dtype is FLOAT32:
                checks.dtype(name, layout.dtype, [FLOAT64])
        checked = self.check({name: _exchanged(layout, FLOAT64, FLOAT32) for name, layout in layouts.items()}, *options)
        outputs = {name: _exchanged(layout, FLOAT32, FLOAT64) for name, layout in checked.outputs.items()}
        return replace(checked, outputs=outputs)


def _exchanged(layout: Layout | None, old: DType, new: DType) -> Layout | None:
    return layout._replace(dtype=new) if layout is not None and layout.dtype is old else layout
