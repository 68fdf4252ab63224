"""The rules of the house for device code: a kernel is one .cu and one Python class that say the same.

Argument structs and block sizes have no test here: the host reads both from the device code.
"""

from __future__ import annotations

import re
from dataclasses import fields
from enum import Enum
from typing import Any, get_type_hints

import pytest

from cuconv.jit import source
from cuconv.runtime.dtypes import DType
from cuconv.runtime.kernel import Kernel
from tests.support.discovery import ROOT, all_kernels

FILES = source.read(source.folder()).files
UNITS = [name for name in FILES if name.endswith(".cu")]
HEADERS = [name for name in FILES if name.endswith(".cuh")]
CODE = {name: re.sub(r"//.*", "", text) for name, text in FILES.items()}
"""Texts without comments."""

KERNELS = {cls.file: cls for cls in all_kernels()}


def python_file(cls: type[Kernel]) -> str:
    return f"{cls.__module__.replace('.', '/')}.py"


def unit(file: str) -> str:
    return file.rpartition("/")[2].removesuffix(".cu")


def class_name(file: str) -> str:
    return "".join(word.capitalize() for word in unit(file).split("_"))


def python_name(parameter: str) -> str:
    """kSeqIdx as seq_idx, input_t as itself."""
    return re.sub(r"(?<!^)([A-Z])", r"_\1", parameter.removeprefix("k")).lower() if parameter[0] == "k" else parameter


def template_before(code: str, declaration: str) -> list[tuple[str, str, str]]:
    """(kind, name, default) of the parameters of the template whose declaration matches."""
    found = re.search(rf"template <((?:[^<>]|<[^<>]*>)*)>\s*{declaration}", code)
    assert found is not None, f"there is no template before {declaration}"
    parameters = re.split(r",(?![^<]*>)", found[1])
    return [
        (*declared.split(), " ".join(default.split()))  # type: ignore[misc]
        for declared, _, default in (parameter.partition("=") for parameter in parameters)
    ]


def kernel_parameters(file: str) -> list[tuple[str, str, str]]:
    return template_before(CODE[file], r"__global__")


def test_every_kernel_is_one_file_and_one_class() -> None:
    for file in UNITS:
        wanted = f"class {class_name(file)} in cuconv/{file.partition('/')[0]}/kernels*.py"
        assert file in KERNELS, f"cuda_src/{file} has no {wanted}"
    for file, cls in KERNELS.items():
        assert file in UNITS, f"{python_file(cls)}: {cls.__name__} has no cuda_src/{file}"
    assert len(KERNELS) == len(all_kernels())


def test_the_readme_lists_the_kernels_of_each_family() -> None:
    """Families without a section of their own may be new, and are left out."""
    text = (ROOT / "cuda_src" / "README.md").read_text(encoding="utf-8")
    for section in text.split("\n## ")[1:]:
        family, _, body = section.partition("\n")
        listed = [
            name for cells in re.findall(r"^\| (`[^|]*) \|", body, re.MULTILINE) for name in cells[1:-1].split("`, `")
        ]
        kernels = [unit(file) for file in UNITS if file.startswith(f"{family}/")]
        assert sorted(listed) == kernels, f"the kernels of {family} in cuda_src/README.md"


@pytest.mark.parametrize("file", UNITS)
def test_a_unit_has_one_kernel_of_its_name(file: str) -> None:
    assert re.findall(r"(\w+)_kernel\(", CODE[file]) == [unit(file)], f"cuda_src/{file}: wanted {unit(file)}_kernel"
    assert CODE[file].count("__global__") == 1, f"cuda_src/{file}: wanted one __global__ function"


@pytest.mark.parametrize("file", UNITS)
def test_fields_are_the_template_parameters(file: str) -> None:
    cls = KERNELS[file]
    hints: dict[str, Any] = get_type_hints(cls)
    kinds = {int: "int", bool: "bool", DType: "typename"}
    # An enumeration has the same name in both languages.
    in_python = [(kinds.get(hints[field.name], hints[field.name].__name__), field.name) for field in fields(cls)]
    in_cuda = [(kind, python_name(name)) for kind, name, default in kernel_parameters(file) if not default]
    assert in_python == in_cuda, f"fields of {cls.__name__} in {python_file(cls)} beside cuda_src/{file}"


def enumerations() -> set[type[Enum]]:
    """The enumerations among the template parameters."""
    hints = [hint for cls in KERNELS.values() for hint in get_type_hints(cls).values()]
    return {hint for hint in hints if isinstance(hint, type) and issubclass(hint, Enum)}


def test_enumerations_have_the_members_of_the_device_code() -> None:
    for each in enumerations():
        declared = re.findall(rf"enum class {each.__name__} {{([^}}]*)}}", "\n".join(CODE.values()))
        wanted = [re.findall(r"\w+", members) for members in declared]
        assert wanted == [[member.value for member in each]], f"{each.__name__} in {each.__module__}"


@pytest.mark.parametrize("file", UNITS)
def test_a_kernel_has_traits_of_its_own_parameters(file: str) -> None:
    *own, last = kernel_parameters(file)
    names = ", ".join(name for _, name, _ in own)
    traits = f"{class_name(file)}Traits"
    wanted = ("typename", "Traits", f"{traits}<{names}>" if own else traits)
    assert last == wanted, f"cuda_src/{file}: the last template parameter"
    in_traits = template_before(CODE[file], rf"struct {traits} {{") if own else []
    assert in_traits == own, f"cuda_src/{file}: parameters of {traits}"
    bounds = re.search(r"__launch_bounds__\(\s*Traits::kThreads\s*(,\s*Traits::kMinBlocks\s*)?\)", CODE[file])
    assert bounds, f"cuda_src/{file}: wanted __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)"


@pytest.mark.parametrize("file", UNITS)
def test_the_host_can_read_what_a_kernel_declares(file: str) -> None:
    cls = KERNELS[file]
    assert cls.params.pointer_names, f"cuda_src/{file}: struct {cls.__name__}Params holds no pointer"
    assert cls.threads % 32 == 0 and 32 <= cls.threads <= 1024, f"cuda_src/{file}: kThreads of {cls.__name__}Traits"


@pytest.mark.parametrize("file", UNITS)
def test_a_unit_says_what_it_computes(file: str) -> None:
    """A header comment explains every template parameter."""
    header = FILES[file].partition("#include")[0]
    where = f"cuda_src/{file}: the comment before the first #include"
    assert all(line.startswith("//") for line in header.splitlines() if line), where
    assert "Layout:" in header, f"{where} does not say how arrays lie ('Layout:')"
    for _, parameter, default in kernel_parameters(file):
        assert default or re.search(rf"\b{parameter}\b", header), f"{where} does not explain {parameter}"


@pytest.mark.parametrize("file", FILES)
def test_only_common_headers_and_those_of_the_family_are_included(file: str) -> None:
    folder = file.partition("/")[0]
    for bracket, header in re.findall(r'#\s*include\s*([<"])([^>"]+)', CODE[file]):
        if bracket == "<":
            assert file == "common/platform.cuh", f"cuda_src/{file} includes <{header}>: common/platform.cuh does that"
        else:
            is_near = header.partition("/")[0] in ("common", folder)
            assert is_near and header in FILES, f"cuda_src/{file} includes {header}: wanted common/ or {folder}/"


@pytest.mark.parametrize("file", HEADERS)
def test_headers_hold_no_kernel_and_are_included(file: str) -> None:
    assert "__global__" not in CODE[file], f"cuda_src/{file}: kernels are in .cu files"
    assert "#pragma once" in CODE[file], f"cuda_src/{file}: wanted #pragma once"
    users = {other.partition("/")[0] for other, text in CODE.items() if f'#include "{file}"' in text}
    assert users, f"cuda_src/{file} is included in no other file"


@pytest.mark.parametrize(
    ("what", "home"),
    [
        (r"__shfl\w*|__ballot\w*|__syncwarp|__reduce_\w*", "common/warp.cuh"),
        (r"\basm\b|#\s*(if|ifdef|ifndef|elif|define)\b", "common/platform.cuh"),
        (r"__ld(cs|cg|ca|lu)\b|__st(cs|cg|wb|wt)\b", "common/vec.cuh"),
    ],
)
def test_what_is_special_has_one_home(what: str, home: str) -> None:
    found = {f"cuda_src/{name}" for name, text in CODE.items() if re.search(what, text)}
    assert found <= {f"cuda_src/{home}"}, f"{what} is for cuda_src/{home} alone"
