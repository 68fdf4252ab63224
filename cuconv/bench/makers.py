"""The makers of workloads by public function, found in the families, and workloads from text."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import cuconv
from cuconv.runtime.errors import message, one_of
from cuconv.runtime.workload import Workload


def _modules() -> dict[str, ModuleType]:
    """The `workloads` module beside each public function, families in order and functions as they stand in it."""
    families = dict.fromkeys(getattr(cuconv, name).__module__.split(".")[1] for name in cuconv.OPERATORS)
    names = [name for family in families if importlib.util.find_spec(name := f"cuconv.{family}.workloads")]
    modules = map(importlib.import_module, names)
    return {name: module for module in modules for name in vars(module) if name in cuconv.OPERATORS}


MODULES = _modules()
"""The module that has a public function's sample calls."""

MAKERS: dict[str, Callable[..., Workload]] = {name: getattr(module, name) for name, module in MODULES.items()}
"""The function that makes a workload out of sizes, by public function."""


def called(workload: Workload) -> Callable[..., Any]:
    """The function that a workload is a call of."""
    found: Callable[..., Any] = workload.through or getattr(cuconv, workload.function)
    return found


def parse(function: str, sizes: str, **defaults: Any) -> Workload:
    """The workload of a function at sizes such as "batch=8,dim=4096"; other sizes are `defaults`, else the maker's own.

    A value that has commas is given in one piece, as in "width=4,parts=64,32,32". ValueError for an empty text, a word
    that is no size, a size that is unknown or given twice, and a value of the wrong type.
    """
    known = inspect.signature(MAKERS[function]).parameters
    found: dict[str, str] = {}
    name = ""
    if not sizes.isascii():
        raise ValueError(message("shape", repr(sizes), "ASCII letters and digits alone"))
    for word in sizes.split(","):
        left, equals, right = word.partition("=")
        if equals and left in found:
            raise ValueError(message("shape", f"{left} twice in {sizes!r}", "every size once"))
        if equals:
            name, found[left] = left, right
        elif name and word:
            found[name] += f",{word}"
        else:
            raise ValueError(message("shape", repr(sizes), "name=value, or several of these between commas"))
    if unknown := found.keys() - known.keys():
        raise ValueError(message("shape", repr(min(unknown)), one_of(known)))
    values = {name: _value(name, text, known[name].default) for name, text in found.items()}
    return MAKERS[function](**{**defaults, **values})


def _value(name: str, text: str, default: Any) -> Any:
    """Text as a value of the type of the maker's default."""
    if isinstance(default, bool):
        if text not in ("0", "1", "false", "true"):
            raise ValueError(message(name, repr(text), "0, 1, false or true"))
        return text in ("1", "true")
    if isinstance(default, int):
        # Mamba has 0 heads; all other sizes are at least 1.
        least = 0 if name == "nheads" else 1
        if not text.isdecimal() or int(text) < least:
            raise ValueError(message(name, repr(text), f"a whole number of at least {least}"))
        return int(text)
    return text


def label(workload: Workload, separator: str = " ") -> str:
    """The sizes of a workload that its maker would have chosen otherwise, as name=value; empty if there are none.

    With commas between them they are what `--shape` takes.
    """
    known = inspect.signature(MAKERS[workload.function]).parameters
    chosen = {name: value for name, value in workload.sizes.items() if value != known[name].default}
    return separator.join(f"{name}={value}" for name, value in chosen.items())
