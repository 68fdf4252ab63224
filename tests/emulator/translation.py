"""The program that g++ compiles for a kernel: its source, an entry for every specialisation, its arguments."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from cuconv.runtime.kernel import Kernel, Params

# Comments are the first alternative, so that declarations in them are passed over.
_SHARED = re.compile(r"//[^\n]*|/\*.*?\*/|\b(?:(extern|static)\s+)?__shared__\s+([^;]+);", re.DOTALL)
_ALIGNED = re.compile(r"\b(?:__align__|alignas)\s*(\((?:[^()]|\([^()]*\))*\))")
_DECLARATOR = re.compile(r"(?P<type>.*[\s>])(?P<name>\w+)\s*(?P<extents>(?:\[[^\]]*\]\s*)*)", re.DOTALL)
_TEMPLATE_ARGUMENTS = re.compile(r"<[^<>]*>")
_INDEXED = re.compile(r"(\w+)\[(\d+)\]")


_EARLY = "defined(CUCONV_STARTS_EARLY)"
"""The condition under which a kernel is compiled for a start before the preceding one has ended."""


def translate(name: str, text: str, ordinary: bool = False) -> str:
    """A source file for g++: unchanged but for declarations of shared memory, for which C++ has no syntax.

    A #line directive tells g++ the file's relative name, which is the same on every machine. On the CPU kernels are
    those that start early, unless they are wanted for ordinary launches.
    """
    if ordinary:
        text = text.replace(f"{_EARLY} || !defined(__CUDA_ARCH__)", _EARLY)
    return f'#line 1 "{name}"\n' + _SHARED.sub(lambda match: _shared_variable(name, match), text)


def entry(kernel: Kernel) -> str:
    """The C name of the function that calls this specialisation. The layout of arguments is part of it."""
    identity = f"{kernel.expression} {kernel.params.dtype.descr}"
    return f"{kernel.unit}_{hashlib.sha256(identity.encode()).hexdigest()[:16]}"


def program(kernels: Sequence[Kernel]) -> str:
    """The translation unit that instantiates specialisations of one kernel."""
    lines = ['#include "device.h"', f'#include "{kernels[0].file}"', '#include "layout.h"', *_layout(kernels[0])]
    for kernel in kernels:
        lines += [
            f'extern "C" __attribute__((visibility("default"))) void {entry(kernel)}(const void* params) {{',
            f"    {kernel.expression}(*static_cast<const Params*>(params));",
            "}",
        ]
    return "\n".join(lines) + "\n"


def _layout(kernel: Kernel) -> list[str]:
    """Assertions that the C++ struct and the NumPy record agree."""
    record = kernel.params.dtype
    struct = f"the argument struct of {kernel.unit}"
    lines = [
        f"using Params = decltype(emulator::params_of(&{kernel.expression}));",
        f'static_assert(sizeof(Params) == {record.itemsize}, "{struct} has {record.itemsize} bytes in NumPy");',
    ]
    for name, offset, size, kind in _members(kernel.params):
        field, where = f"Field_{name}<Params>", f"{name} in {struct}"
        lines += [
            f"EMULATOR_FIELD({name})",
            f'static_assert({field}::kOffset == {offset}, "{where} is at {offset} in NumPy");',
            f'static_assert(sizeof({field}::Type) == {size}, "{where} has {size} bytes in NumPy");',
        ]
        if kind:
            lines.append(f'static_assert(emulator::is_{kind}<{field}::Type>, "{where} is {_KINDS[kind]} in NumPy");')
    return lines


_KINDS = {"pointer": "a pointer", "pointer_array": "an array of pointers"}


class _Member(NamedTuple):
    """A member of the argument struct. Its kind is "pointer", "pointer_array" or, for numbers, empty."""

    name: str
    offset: int
    size: int
    kind: str


def _members(params: Params) -> Iterator[_Member]:
    """The members in C++ of the record's fields: the pointers `x[0]`, `x[1]`, ... are one array there."""
    fields = {name: (dtype.itemsize, offset) for name, (dtype, offset, *_) in (params.dtype.fields or {}).items()}
    for name, (size, offset) in fields.items():
        indexed = _INDEXED.fullmatch(name)
        if indexed is None:
            yield _Member(name, offset, size, "pointer" if offset < params.pointers.size else "")
        elif indexed[2] == "0":
            count = sum(other.startswith(f"{indexed[1]}[") for other in fields)
            assert all(fields[f"{indexed[1]}[{i}]"][1] == offset + i * size for i in range(count))
            yield _Member(indexed[1], offset, count * size, "pointer_array")


def _shared_variable(file: str, match: re.Match[str]) -> str:
    storage, declaration = match.groups()
    if declaration is None:
        return match[0]
    declarator = _DECLARATOR.fullmatch(_ALIGNED.sub("", declaration).strip())
    if declarator is None or "," in _without_template_arguments(declarator["type"]):
        line = match.string.count("\n", 0, match.start()) + 1
        raise ValueError(f"{file}:{line}: the emulator takes one shared variable a declaration: {match[0]}")
    element, name, extents = (declarator[part].strip() for part in ("type", "name", "extents"))
    # Later lines must keep their numbers, for reports name them.
    newlines = "\n" * match[0].count("\n")
    if storage == "extern":
        return f"auto* const {name} = static_cast<{element}*>(emulator::dynamic_shared());{newlines}"
    alignment = ", ".join(["", *_ALIGNED.findall(declaration)])
    return f"auto& {name} = emulator::shared<{element}{extents}>([] {{}}{alignment});{newlines}"


def _without_template_arguments(text: str) -> str:
    while (shorter := _TEMPLATE_ARGUMENTS.sub("", text)) != text:
        text = shorter
    return text
