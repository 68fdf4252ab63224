"""cuconv's functions in the place of an engine's."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

Modules = Mapping[str, Mapping[str, Callable[..., Any]]]
"""By an engine's module, by name, the function to put there."""


def install(modules: Modules) -> tuple[str, ...]:
    """Put functions in the place of an engine's, which is imported for it, wherever loaded modules have them.

    Args:
        modules: the functions. A module or name that the installed version does not have is left out.

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
            if (original := getattr(module, name, None)) is not None and original is not function:
                replaced[f"{path}.{name}"] = original, function
    by_identity = {id(original): function for original, function in replaced.values()}
    for module in list(sys.modules.values()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if id(value) in by_identity:
                setattr(module, name, by_identity[id(value)])
    return tuple(replaced)
