"""The rules of the house for device code: one kernel is one .cu and one Python class that say the same."""

from __future__ import annotations

import importlib
import re
from dataclasses import fields
from typing import Any, get_type_hints

import pytest

from cuconv.jit import source
from cuconv.runtime.dtypes import DType
from cuconv.runtime.kernel import Kernel
from tests.support.discovery import all_kernels

FILES = source.read(source.folder()).files
UNITS = {name.removesuffix(".cu"): text for name, text in FILES.items() if name.endswith(".cu")}
CODE = {name: re.sub(r"//.*", "", text) for name, text in FILES.items()}
"""Without comments."""

NUMBERS: dict[str, tuple[str, int]] = {
    "int": ("i4", 1),
    "unsigned": ("u4", 1),
    "index_t": ("i8", 1),
    "FastDiv": ("u4", 3),
    "BlockGroups": ("u4", 3),
    "float": ("f4", 1),
}
SHARED = (
    *("CausalConv1dOperands", "CausalConv1dVarlenOperands", "CausalConv1dUpdateOperands"),
    *("SelectiveStateUpdateOperands", "SelectiveScanOperands", "SelectiveScanVarlenOperands"),
)


def struct_fields(name: str) -> list[tuple[str, str, int]]:
    """(name, type, count) of a C++ struct's fields in order; a field that is a shared struct counts as its fields."""
    bodies = [m[1] for text in CODE.values() for m in re.finditer(rf"struct {name} {{(.*?)\n}};", text, re.DOTALL)]
    assert len(bodies) == 1, f"{len(bodies)} structs {name}"
    found: list[tuple[str, str, int]] = []
    for declared in filter(None, (line.strip() for line in bodies[0].split(";"))):
        match = re.fullmatch(r"((?:const )?\w+\s?\*?)\s*(\w+)(?:\[(\d+)\])?", declared)
        assert match is not None, declared
        kind, field, count = match[1].strip(), match[2], int(match[3] or 1)
        found += struct_fields(kind) if kind in SHARED else [(field, kind, count)]
    return found


def python_name(cpp: str) -> str:
    """kSeqIdx as seq_idx, input_t as itself."""
    return re.sub(r"(?<!^)([A-Z])", r"_\1", cpp.removeprefix("k")).lower() if cpp.startswith("k") else cpp


def template_parameters(unit: str) -> list[tuple[str, str]]:
    """(kind, name) of the template parameters of the unit's kernel."""
    match = re.search(rf"template <([^>]*)>\s*__global__[^;{{]*?\b{unit}_kernel\(", CODE[f"{unit}.cu"], re.DOTALL)
    assert match is not None, f"{unit}.cu has no template {unit}_kernel"
    return [(words[0], words[1]) for words in (parameter.split() for parameter in match[1].split(","))]


def camel(unit: str) -> str:
    return "".join(word.capitalize() for word in unit.split("_"))


def test_every_unit_is_one_class_in_a_module_of_its_name() -> None:
    classes = {cls.unit: cls for cls in all_kernels()}
    assert len(classes) == len(all_kernels())
    assert classes.keys() == UNITS.keys()
    for unit, cls in classes.items():
        assert cls.__module__ == f"cuconv.kernels.{unit}"
        assert cls.__name__ == camel(unit)


@pytest.mark.parametrize("unit", UNITS)
def test_a_unit_has_one_kernel_of_its_name(unit: str) -> None:
    assert re.findall(r"(\w+)_kernel\(", CODE[f"{unit}.cu"]) == [unit]
    assert CODE[f"{unit}.cu"].count("__global__") == 1


@pytest.mark.parametrize("cls", all_kernels())
def test_fields_are_the_template_parameters(cls: type[Kernel]) -> None:
    hints: dict[str, Any] = get_type_hints(cls)
    kinds = {int: "int", bool: "bool", DType: "typename"}
    declared = [(kinds[hints[field.name]], field.name) for field in fields(cls)]
    assert declared == [(kind, python_name(name)) for kind, name in template_parameters(cls.unit)]


@pytest.mark.parametrize("cls", all_kernels())
def test_params_are_the_argument_struct(cls: type[Kernel]) -> None:
    in_cpp = struct_fields(f"{camel(cls.unit)}Params")
    names = cls.params.dtype.names or ()
    pointers = [(name, count) for name, kind, count in in_cpp if kind.endswith("*")]
    on_host = [name if count == 1 else f"{name}[{i}]" for name, count in pointers for i in range(count)]
    assert [*on_host, *(name for name, _, _ in in_cpp[len(pointers) :])] == list(names)
    assert cls.params.pointers.size == 8 * len(on_host)
    for name, kind, count in in_cpp[len(pointers) :]:
        code, length = NUMBERS[kind]
        base, shape = cls.params.numbers[name].base, cls.params.numbers[name].shape
        assert (base.str[1:], shape) == (code, (length * count,) if length * count > 1 else ()), name


@pytest.mark.parametrize("cls", all_kernels())
def test_blocks_have_as_many_threads_as_the_kernel_thinks(cls: type[Kernel]) -> None:
    text = CODE[f"{cls.unit}.cu"]
    threads = importlib.import_module(cls.__module__).THREADS
    assert re.findall(r"int kThreads = (\d+);", text) == [str(threads)]
    assert re.findall(r"__launch_bounds__\(\s*(\d+)", text) == [str(threads)]


def test_only_common_is_included() -> None:
    for name, text in CODE.items():
        included = re.findall(r'#\s*include\s*([<"])([^>"]+)', text)
        for bracket, header in included:
            if bracket == '"':
                assert header.startswith("common/") and header in FILES, (name, header)
            else:
                assert name == "common/platform.cuh", (name, header)


def test_headers_hold_no_kernel_and_are_included_once() -> None:
    for name, text in CODE.items():
        if name.endswith(".cuh"):
            assert name.startswith("common/")
            assert "__global__" not in text, name
            assert "#pragma once" in text, name


@pytest.mark.parametrize(
    ("what", "home"),
    [
        (r"__shfl\w*|__ballot\w*|__syncwarp|__reduce_\w*", "common/warp.cuh"),
        (r"\basm\b|#\s*(if|ifdef|ifndef|elif|define)\b", "common/platform.cuh"),
        (r"__ld(cs|cg|ca|lu)\b|__st(cs|cg|wb|wt)\b", "common/vec.cuh"),
    ],
)
def test_what_is_special_has_one_home(what: str, home: str) -> None:
    found = {name for name, text in CODE.items() if re.search(what, text)}
    assert found <= {home}


def test_every_header_is_included_by_someone() -> None:
    included = {header for text in CODE.values() for header in re.findall(r'#include "([^"]+)"', text)}
    assert included == {name for name in FILES if name.endswith(".cuh")}


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_says_what_it_computes(name: str) -> None:
    """A header comment that explains every template parameter."""
    header = FILES[f"{name}.cu"].partition("#include")[0]
    assert all(line.startswith("//") for line in header.splitlines() if line)
    assert "Layout:" in header
    for _, parameter in template_parameters(name):
        assert re.search(rf"\b{parameter}\b", header), parameter
