"""Functions of other libraries: which of cuconv's they correspond to, how they are called, and where their results
are."""

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
    """The call that is timed."""
    read: Callable[[Any], Tensors]
    """The results and updated arguments by their names (Workload.results), from what the call returned."""
    note: str = ""
    """A note for readers of the time."""


@dataclass(frozen=True)
class Peer:
    """A library's function that computes what one of cuconv's does."""

    library: str
    function: str
    """The name of cuconv's function."""
    load: Callable[[], Function]
    """Loads the library's function; ImportError where it is not installed."""
    prepare: Callable[[Function, Workload, Tensors, Sequence[Any]], Ready | None]
    """Makes its call on tensors by argument and on outs; None for workloads that it cannot compute."""


def imported(attribute: str, *modules: str) -> Callable[[], Function]:
    """A loader of a function from the first of these modules that has it, because libraries move functions."""

    def load() -> Function:
        reasons = []
        for module in modules:
            try:
                function: Function = getattr(importlib.import_module(module), attribute)
                return function
            except Exception as error:
                # A broken library may raise any exception.
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
    """A call with one result, which is `out` of what it returns, that updates the same tensors in place as cuconv."""
    updated = {name: tensors[name] for name in workload.updated}
    return Ready(call, lambda result: {"out": out(result), **updated}, note)


def same(function: Function, workload: Workload, tensors: Tensors, note: str = "", **more: Any) -> Ready:
    """A call with cuconv's arguments, by their names, and further ones."""
    return ready(workload, tensors, lambda: function(**tensors, **workload.options, **more), note=note)
