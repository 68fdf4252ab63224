"""The rules of the house: who may import whom, and that a public function has all that it needs."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import cuconv
from cuconv.bench.makers import MODULES
from cuconv.bench.workloads import MAKERS, SMALL
from tests.support.discovery import ROOT, families

PACKAGE = ROOT / "cuconv"

FAMILY = "a family"
FLOORS = ("jit", "runtime", FAMILY, "torch", "engines", "", "bench", "cli", "__main__")
"""The folders and files right under cuconv from the lowest floor up, "" being cuconv/__init__.py. Code imports from
lower floors and from its own folder; families do not import each other.
"""

IMPORTERS = {
    "cupy": {
        "cuconv.runtime.machine",
        "cuconv.runtime.arrays",
        "cuconv.runtime.dlpack",
        "cuconv.runtime.graphs",
        "cuconv.runtime.kernel",
        "cuconv.bench",
        "cuconv.cli",
    },
    "cupy_backends": {"cuconv.runtime.kernel", "cuconv.runtime.dependent", "cuconv.jit.nvrtc"},
    "cupy_backends.cuda.libs.nvrtc": {"cuconv.jit.nvrtc"},
    "matplotlib": {"cuconv.cli.report"},
    "torch": {"cuconv.torch", "cuconv.engines._tensors", "cuconv.bench", "cuconv.cli.doctor"},
}
"""The only modules and folders that may import these libraries: whoever does makes them needed."""

TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


FILES = {module_name(path): path.relative_to(ROOT).as_posix() for path in TREES}
MODULE_TREES = {module_name(path): tree for path, tree in TREES.items()}


def imports(name: str) -> set[str]:
    """Every module that a module imports, at any depth of its code, by full name."""
    found: set[str] = set()
    for node in ast.walk(MODULE_TREES[name]):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{FILES[name]} imports relatively: write the module's full name"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                # In cuconv it is known whether a name is a module or in one; of others either will do.
                is_own = str(node.module).partition(".")[0] == "cuconv"
                found |= {full if full in FILES else str(node.module)} if is_own else {str(node.module), full}
    return found


def own_imports(name: str) -> set[str]:
    return {imported for imported in imports(name) if imported.partition(".")[0] == "cuconv"}


def room(name: str) -> str:
    """The file or folder right under cuconv that a module is in."""
    return name.split(".")[1] if "." in name else ""


def floor(name: str) -> int:
    return FLOORS.index(room(name) if room(name) in FLOORS else FAMILY)


def test_every_folder_is_a_floor_or_a_family() -> None:
    rooms = {room(name) for name in FILES} - set(FLOORS)
    wrong = rooms - set(families())
    assert not wrong, f"cuconv/{'|'.join(wrong)}: got no kernels.py; wanted a family's files, or a floor of {__file__}"


def test_families_have_the_same_files() -> None:
    for family in families():
        for file in ("kernels", "reference", "workloads"):
            assert f"cuconv.{family}.{file}" in FILES, f"cuconv/{family}/{file}.py is missing"


def test_imports_go_down() -> None:
    wrong = [
        f"{FILES[name]} imports {imported}"
        for name in FILES
        for imported in own_imports(name)
        if room(imported) != room(name) and floor(imported) >= floor(name)
    ]
    assert not wrong, f"imports go down only ({' ← '.join(FLOORS)}), and no family imports another"


def test_imports_have_no_cycle() -> None:
    done: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, f"a cycle of imports: {' → '.join([*above, name])}"
        if name not in done:
            for imported in own_imports(name):
                visit(imported, (*above, name))
            done.add(name)

    for name in FILES:
        visit(name, ())


def test_heavy_libraries_are_imported_in_few_places() -> None:
    for library, allowed in IMPORTERS.items():
        for name in FILES:
            reached = {i for i in imports(name) if i == library or i.startswith(f"{library}.")}
            is_allowed = any(name == each or name.startswith(f"{each}.") for each in allowed)
            assert not reached or is_allowed, f"{FILES[name]} imports {library}; only {', '.join(sorted(allowed))} may"


def test_heavy_libraries_are_not_imported_with_the_package() -> None:
    """No module imports them at its top level, but that cuconv.torch imports torch: it is imported on demand itself."""
    top_level = {
        f"{FILES[name]} imports {alias.name} at its top level: import it in the function that needs it"
        for name, tree in MODULE_TREES.items()
        for node in tree.body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
        if {alias.name.partition(".")[0], str(getattr(node, "module", "")).partition(".")[0]}
        & (IMPORTERS.keys() - ({"torch"} if room(name) == "torch" else set()))
    }
    assert not top_level


@pytest.mark.parametrize("function", cuconv.OPERATORS)
def test_a_public_function_has_all_that_it_needs(function: str) -> None:
    module = getattr(cuconv, function).__module__
    family = room(module)
    assert family in families(), f"{FILES[module]}: public functions are in the folder of a family"
    workloads = f"cuconv/{family}/workloads.py"
    assert function in MAKERS, f"{workloads} has no maker {function}(), which describes a sample call by its sizes"
    assert MODULES[function].__name__ == f"cuconv.{family}.workloads"
    assert SMALL[function], f"{workloads}: SMALL has no rows of {function}, which checks run"
    stated = importlib.import_module(f"cuconv.{family}.reference").ERRORS
    assert function in stated, f"cuconv/{family}/reference.py: ERRORS does not state the error of {function}"


def test_the_tests_are_not_imported_by_the_package() -> None:
    assert not [FILES[name] for name in FILES if any(i.partition(".")[0] == "tests" for i in imports(name))]


def written_files() -> Iterator[Path]:
    """Everything in Python or CUDA that people write."""
    for folder in ("cuconv", "cuda_src", "tests"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".cu", ".cuh", ".cpp", ".h"):
                yield path


def test_there_are_no_banners_and_nothing_is_left_to_do() -> None:
    # Spelt apart, for this file is read, too.
    banner = re.compile(r"(#|//|/\*)\s*([-=*#~_/])\2{3,}")
    undone = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|X" + r"XX)\b")
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in written_files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if banner.search(line) or undone.search(line)
    ]
    assert not wrong
