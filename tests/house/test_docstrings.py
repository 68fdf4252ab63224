"""What help() says of every public function: each argument, its shape and dtypes, results and errors."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

import cuconv
from cuconv.runtime.dtypes import TABLE

SECTIONS = ("Args", "Returns", "Raises")
INHERITS = re.compile(r"Arguments and errors are those of\s+`(\w+)`, and:")
SHAPE = re.compile(r"\([^()]*,[^()]*\)|\bshapes?\b|\barray of one element\b")
DTYPE = re.compile(rf"\bdtype\b|\bof these dtypes\b|\b({'|'.join(dtype.name for dtype in TABLE)})\b")


@dataclass(frozen=True)
class Documented:
    """A docstring, read."""

    inherits: str | None
    sections: Mapping[str, str]
    """Text by section, less its indentation."""
    arguments: Mapping[str, str] = field(default_factory=dict)
    """Text by argument."""


def read(text: str) -> Documented:
    """Sections are headed by their name and indented."""
    sections = {
        name: inspect.cleandoc("\n" + found[1])
        for name in SECTIONS
        if (found := re.search(rf"^{name}:\n((?:(?:    .*)?\n)*)", text + "\n", re.MULTILINE))
    }
    arguments: dict[str, str] = {}
    # An entry begins where the section does; one may be that of several arguments.
    for entry in re.split(r"\n(?=\w)", sections.get("Args", "")):
        names, colon, said = entry.partition(": ")
        if colon and re.fullmatch(r"\w+(, \w+)*", names):
            arguments |= dict.fromkeys(names.split(", "), " ".join(said.split()))
    # "as B": what is said of B.
    for name, said in arguments.items():
        if (like := re.match(r"as (\w+),", said)) and like[1] in arguments:
            arguments[name] = f"{said} {arguments[like[1]]}"
    inherited = INHERITS.search(text)
    return Documented(inherited and inherited[1], sections, arguments)


def documented(name: str) -> Documented:
    """A public function's docstring, with what it takes over from another one's."""
    own = read(inspect.getdoc(getattr(cuconv, name)) or "")
    if own.inherits is None:
        return own
    base = documented(own.inherits)
    sections = {key: text for key, text in base.sections.items() if key != "Returns"} | own.sections
    return Documented(own.inherits, sections, {**base.arguments, **own.arguments})


def parameters(name: str) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(getattr(cuconv, name)).parameters


ARRAYS = [
    (function, name)
    for function in cuconv.OPERATORS
    for name, parameter in parameters(function).items()
    if "Any" in parameter.annotation
]
"""The arguments that are arrays: only these are annotated as Any, because any library may have made them."""


@pytest.mark.parametrize("function", cuconv.OPERATORS)
def test_every_argument_is_described_and_nothing_else(function: str) -> None:
    found = documented(function)
    wanted = set(parameters(function))
    assert set(found.arguments) == wanted
    # What is taken over is said once.
    own = read(inspect.getdoc(getattr(cuconv, function)) or "")
    assert set(own.arguments) == wanted - (set(parameters(found.inherits)) - {"out"} if found.inherits else set())


@pytest.mark.parametrize("function", cuconv.OPERATORS)
def test_results_and_errors_are_described(function: str) -> None:
    found = documented(function).sections
    assert set(found) == set(SECTIONS)
    assert {"TypeError", "ValueError"} <= set(re.findall(r"^(\w+): \w", found["Raises"], re.MULTILINE))


@pytest.mark.parametrize(("function", "argument"), ARRAYS)
def test_shapes_and_dtypes_of_arrays_are_said(function: str, argument: str) -> None:
    said = documented(function).arguments[argument]
    assert SHAPE.search(said), said
    assert DTYPE.search(said), said


@pytest.mark.parametrize("function", cuconv.OPERATORS)
def test_signatures_are_annotated(function: str) -> None:
    assert inspect.signature(getattr(cuconv, function)).return_annotation is not inspect.Signature.empty
    for parameter in parameters(function).values():
        assert parameter.annotation is not inspect.Parameter.empty
        assert parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)


@pytest.mark.parametrize("function", cuconv.OPERATORS)
def test_help_fits_a_terminal_and_begins_with_one_line(function: str) -> None:
    lines = (inspect.getdoc(getattr(cuconv, function)) or "").splitlines()
    assert lines[0].endswith(".") and not lines[1]
    assert max(map(len, lines)) <= 116


EXAMPLE = """Do it.

Arguments and errors are those of
`other`, and:

Args:
    x: (batch, dim), float32: what
        is done.
    a, b: (n,), int64.
    c: as a, longer.
    flag: whether to: yes.

Returns:
    out.
"""


def test_docstrings_are_read() -> None:
    found = read(EXAMPLE)
    assert found.inherits == "other"
    assert found.arguments == {
        "x": "(batch, dim), float32: what is done.",
        "a": "(n,), int64.",
        "b": "(n,), int64.",
        "c": "as a, longer. (n,), int64.",
        "flag": "whether to: yes.",
    }
    assert found.sections["Returns"] == "out." and "Raises" not in found.sections
    assert SHAPE.search(found.arguments["b"]) and DTYPE.search(found.arguments["b"])
    assert not SHAPE.search(found.arguments["flag"]) and not DTYPE.search(found.arguments["flag"])
