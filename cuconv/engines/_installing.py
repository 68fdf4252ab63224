"""cuconv's functions in the place of an engine's."""

from __future__ import annotations

import importlib
import inspect
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

Modules = Mapping[str, Mapping[str, Callable[..., Any]]]
"""For each engine module, the functions to put there, by name."""


def install(modules: Modules, needed: str | None = None, in_order: bool = False) -> tuple[str, ...]:
    """Put functions in the place of an engine's, which is imported for it, wherever loaded modules have them.

    Args:
        modules: the functions. A module or name that the installed version does not have is left out.
        needed: an argument that an engine's function must have if cuconv's has it. A function without it is of a
            version in which arguments mean something else: it stays as it is, with a warning.
        in_order: whether the arguments of the engine's function must also be the first ones of cuconv's, in this order;
            otherwise it stays as it is, too.

    Returns:
        The full names of the functions that have been replaced.
    """
    replaced = {}
    for path, functions in modules.items():
        try:
            module = importlib.import_module(path)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{path}.".startswith(f"{error.name}."):
                raise
            continue
        for name, function in functions.items():
            original = getattr(module, name, None)
            if original is None or original is function:
                continue
            if needed is not None and _has(function, needed) and not _has(original, needed):
                warnings.warn(f"{path}.{name} has no {needed}, and is not replaced", RuntimeWarning, stacklevel=3)
            elif in_order and not _begins_alike(function, original):
                warnings.warn(f"{path}.{name} has other arguments, and is not replaced", RuntimeWarning, stacklevel=3)
            else:
                replaced[f"{path}.{name}"] = original, function
    by_identity = {id(original): function for original, function in replaced.values()}
    for module in list(sys.modules.values()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if id(value) in by_identity:
                setattr(module, name, by_identity[id(value)])
    return tuple(replaced)


def _begins_alike(function: Callable[..., Any], original: Callable[..., Any]) -> bool:
    """Whether all arguments of an engine's function are the first ones of cuconv's."""
    names = list(inspect.signature(original).parameters)
    return list(inspect.signature(function).parameters)[: len(names)] == names


def _has(function: Callable[..., Any], argument: str) -> bool:
    """Whether a function has an argument; true where its signature is not known."""
    try:
        return argument in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return True
