"""Functions that are generated for the arrays of one call.

For a call like an earlier one it is known how many arrays it has, which are absent and what it launches. A function
with a name for each array runs it in one frame, because loops over lists and further frames take as long as a launch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from cuconv.runtime.memo import remembered


class Part(NamedTuple):
    """A part of a function: an expression, or lines."""

    text: str
    values: Mapping[str, Any]
    """The values of names in the text. No two parts of one function have the same names."""


def function(arguments: str, lines: Iterable[str], values: Mapping[str, Any]) -> Callable[..., Any]:
    """A function with these arguments and lines, in which `values` are known by their names."""
    made: Callable[..., Any] = _compiled(arguments, tuple(lines), tuple(values))(*values.values())
    return made


@remembered
def _compiled(arguments: str, lines: tuple[str, ...], names: tuple[str, ...]) -> Callable[..., Callable[..., Any]]:
    """A function that makes a function of these lines. It is shared by calls of the same form, because compiling takes
    0.3 ms."""
    body = "".join(f"        {line}\n" for line in lines)
    text = f"def make({', '.join(names)}):\n    def generated({arguments}):\n{body}    return generated\n"
    found: dict[str, Any] = {}
    exec(compile(text, "<a call of cuconv>", "exec"), found)
    made: Callable[..., Callable[..., Any]] = found["make"]
    return made
