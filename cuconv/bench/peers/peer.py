"""What is known of another library: what it computes of ours, how it is called, and where results are then."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cuconv.runtime.workload import Workload

Tensors = Mapping[str, Any]
Function = Callable[..., Any]


@dataclass(frozen=True)
class Ready:
    """A call of a library on one set of tensors."""

    call: Callable[[], Any]
    """What is timed."""
    read: Callable[[Any], Tensors]
    """The results and updated arguments by their names (Workload.results), from what the call returned."""
    note: str = ""
    """What whoever reads the time should know."""


@dataclass(frozen=True)
class Peer:
    """A library's function that computes what one of ours does."""

    library: str
    function: str
    """Ours."""
    load: Callable[[], Function]
    """Theirs; ImportError where it is not to be had."""
    prepare: Callable[[Function, Workload, Tensors, Sequence[Any]], Ready | None]
    """Its call on tensors by argument and on outs, None for workloads that it has no means for."""


def imported(attribute: str, *modules: str) -> Callable[[], Function]:
    """What loads a function from the first of these modules that has it: libraries move things."""

    def load() -> Function:
        reasons = []
        for module in modules:
            try:
                function: Function = getattr(importlib.import_module(module), attribute)
                return function
            except Exception as error:
                # A library that is there and broken fails in ways of its own.
                reasons.append(str(error).partition("\n")[0] or type(error).__name__)
        raise ImportError(reasons[0])

    return load


def ready(
    workload: Workload,
    tensors: Tensors,
    call: Callable[[], Any],
    out: Callable[[Any], Any] = lambda result: result,
    note: str = "",
) -> Ready:
    """A call whose one result is `out` of what it returns and that updates tensors in place, where ours does."""
    updated = {name: tensors[name] for name in workload.updated}
    return Ready(call, lambda result: {"out": out(result), **updated}, note)


def same(function: Function, workload: Workload, tensors: Tensors, note: str = "", **more: Any) -> Ready:
    """A call with the arguments of ours, by their names, and further ones."""
    return ready(workload, tensors, lambda: function(**tensors, **workload.options, **more), note=note)
