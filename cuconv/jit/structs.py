"""Declarations of the device code that the host needs: argument structs, the integer constants of Traits, and limits.

The host reads them from the source that NVRTC compiles, so that none is written down twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import prod
from typing import NamedTuple

from cuconv.jit.source import Source

SCALARS = {"int": "i4", "unsigned": "u4", "index_t": "i8", "float": "f4"}
"""NumPy codes of the types that an argument struct may hold beside pointers."""

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_DATA_MEMBER = re.compile(r"(?P<type>(?:const )?\w+(?P<pointer>\s*\*)?)\s*\b(?P<name>\w+)(?:\[(?P<count>[\w* ]+)\])?")
_MEMBER_CONSTANT = re.compile(r"static constexpr int (\w+) = (\d+);")
_GLOBAL_CONSTANT = re.compile(r"inline constexpr int (\w+) = (\d+);")


class Field(NamedTuple):
    """A member of an argument struct: the NumPy code and the length of its numbers, or pointers (code "")."""

    name: str
    code: str
    length: int

    @property
    def is_pointer(self) -> bool:
        return not self.code


class DeclarationError(ValueError):
    """The device code declares something in a way that the host cannot read."""


def argument_struct(source: Source, unit: str, name: str) -> tuple[Field, ...]:
    """The members of a struct that `unit` or a header of it declares, in order.

    A member that is a struct with pointers is replaced by its members; any other struct is an array of its one scalar
    type, as FastDiv is three unsigned numbers.
    """
    return tuple(_fields(_reachable(source, unit), name))


def constants(source: Source, unit: str, name: str) -> Mapping[str, int]:
    """The literal `static constexpr int` members of a struct that `unit` itself declares."""
    return {constant: int(value) for constant, value in _MEMBER_CONSTANT.findall(_body(_code(source, unit), name))}


def constant(source: Source, file: str, name: str) -> int:
    """The value of a literal `inline constexpr int` of a file."""
    constants = dict(_GLOBAL_CONSTANT.findall(_code(source, file)))
    if name not in constants:
        raise DeclarationError(f"{file} declares no literal constant {name}")
    return int(constants[name])


def _code(source: Source, file: str) -> str:
    return _COMMENT.sub("", source.files[file])


def _reachable(source: Source, unit: str) -> str:
    """The text of a file and of all headers that it includes, without comments."""
    return "\n".join(_code(source, file) for file in source.of(unit).files)


def _body(code: str, name: str) -> str:
    found = re.findall(rf"\bstruct {name} {{(.*?)\n}};", code, re.DOTALL)
    if len(found) != 1:
        raise DeclarationError(f"the device code declares {len(found)} structs {name}; wanted one")
    body: str = found[0]
    return body


def _unreadable(name: str, declaration: str) -> DeclarationError:
    return DeclarationError(f"struct {name}: the host cannot read the member {declaration!r}")


def _data_members(code: str, name: str) -> Iterator[re.Match[str]]:
    # Functions follow the data, so declarations of members end at the first brace or parenthesis.
    data, _, _ = _body(code, name).partition("__device__")
    for declaration in filter(None, map(str.strip, data.split(";"))):
        match = _DATA_MEMBER.fullmatch(" ".join(declaration.split()))
        if match is None:
            raise _unreadable(name, declaration)
        yield match


def _length(code: str, product: str) -> int | None:
    """The value of a product of literal numbers and of constants that the code declares, as in `4 * kMaxRanges`.

    None where a factor is neither.
    """
    constants = dict(_GLOBAL_CONSTANT.findall(code))
    factors = [constants.get(factor, factor) for factor in map(str.strip, product.split("*"))]
    return prod(map(int, factors)) if all(map(str.isdecimal, factors)) else None


def _fields(code: str, name: str) -> Iterator[Field]:
    for match in _data_members(code, name):
        kind, count = match["type"].strip(), _length(code, match["count"] or "1")
        if count is None:
            raise _unreadable(name, match[0])
        if match["pointer"]:
            yield Field(match["name"], "", count)
        elif kind in SCALARS:
            yield Field(match["name"], SCALARS[kind], count)
        else:
            inner = list(_fields(code, kind))
            codes = {field.code for field in inner}
            if "" in codes:
                yield from inner
            elif len(codes) == 1:
                yield Field(match["name"], codes.pop(), count * sum(field.length for field in inner))
            else:
                raise DeclarationError(f"struct {kind} in {name}: got {sorted(codes)}; wanted pointers or one type")
