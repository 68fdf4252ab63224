"""The rules of the house: who may import whom, and that every fact has one home."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import cuconv
from tests import cases
from tests.support.discovery import ROOT

PACKAGE = ROOT / "cuconv"
CODE = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}

FLOORS = {
    "errors": 0,
    "dtypes": 0,
    "launch": 0,
    "models": 0,
    "layout": 1,
    "arrays": 2,
    "checks": 2,
    "jit": 2,
    "reference": 2,
    "dlpack": 3,
    "form": 3,
    "kernel": 3,
    "call": 4,
    "kernels": 4,
    "abstract": 5,
    "ops": 5,
    "timing": 5,
    "workloads": 6,
    "": 6,
    "torch": 6,
    "bench": 7,
    "cli": 8,
    "__main__": 9,
}
"""A module imports from lower floors only; inside a folder, `may_import_inside` decides."""


def may_import_inside(folder: str, importer: str, imported: str) -> bool:
    """Whether a module may import another one of its own folder."""
    if folder == "kernels":
        shared = [
            "cuconv.causal_conv1d.kernels_conv",
            "cuconv.causal_conv1d.ranges",
            "cuconv.causal_conv1d.kernels_varlen",
            "cuconv.causal_conv1d.kernels_update",
        ]
        shared.append("cuconv.selective_scan.kernels_scan")
        return imported in shared and importer not in shared[: 1 + shared.index(imported)]
    if folder == "ops":
        # An op, beside what it shares with its kin: checked arguments, from them the plan of a launch, from it a call.
        kinds = ("operands", "plan", "call")
        rank = [
            next((i for i, kind in enumerate(kinds) if name.endswith(f"_{kind}")), None)
            for name in (importer, imported)
        ]
        return rank[1] is not None and (rank[0] is None or rank[0] > rank[1])
    return folder in ("jit", "reference", "torch", "workloads", "bench", "cli")


IMPORTERS = {
    "cupy": {
        "cuconv.runtime.arrays",
        "cuconv.runtime.dlpack",
        "cuconv.runtime.kernel",
        "cuconv.bench.timing",
        "cuconv.bench",
        "cuconv.cli",
    },
    "cupy_backends": {"cuconv.runtime.kernel", "cuconv.jit.nvrtc"},
    "cupy_backends.cuda.libs.nvrtc": {"cuconv.jit.nvrtc"},
    "matplotlib": {"cuconv.bench.drawing", "cuconv.bench.pictures"},
    "torch": {"cuconv.torch", "cuconv.bench", "cuconv.cli.doctor"},
}
"""Whoever else imports these makes them needed where they are not."""


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_name(path): tree for path, tree in CODE.items()}


def imports(name: str) -> set[str]:
    """Every module that a module imports, at any depth of its code, by full name."""
    found: set[str] = set()
    for node in ast.walk(MODULES[name]):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports relatively"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                # Of our own, a name is a module or in one; of others we cannot know, and either will do.
                own = str(node.module).partition(".")[0] == "cuconv"
                found |= {full if full in MODULES else str(node.module)} if own else {str(node.module), full}
    return found


def own_imports(name: str) -> set[str]:
    return {imported for imported in imports(name) if imported.partition(".")[0] == "cuconv"}


def room(name: str) -> str:
    """The file or folder right under cuconv that a module is in."""
    return name.split(".")[1] if "." in name else ""


def test_every_module_is_on_a_floor() -> None:
    assert {room(name) for name in MODULES} <= FLOORS.keys()


def test_modules_import_from_lower_floors() -> None:
    wrong = [
        f"{name} imports {imported}"
        for name in MODULES
        for imported in own_imports(name)
        if FLOORS[room(imported)] >= FLOORS[room(name)]
        and not (room(name) == room(imported) and may_import_inside(room(name), name, imported))
    ]
    assert not wrong


def test_imports_have_no_cycle() -> None:
    done: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, " -> ".join([*above, name])
        if name not in done:
            for imported in own_imports(name):
                visit(imported, (*above, name))
            done.add(name)

    for name in MODULES:
        visit(name, ())


def test_heavy_libraries_are_imported_in_few_places() -> None:
    for library, allowed in IMPORTERS.items():
        for name in MODULES:
            reached = {i for i in imports(name) if i == library or i.startswith(f"{library}.")}
            assert not reached or any(name == a or name.startswith(f"{a}.") for a in allowed), (name, reached)


def test_heavy_libraries_are_not_imported_with_the_package() -> None:
    """At a module's top level, but for what `python -m cuconv` and the timings run."""
    top_level = {
        (name, alias.name)
        for name, tree in MODULES.items()
        for node in tree.body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
        if {alias.name.partition(".")[0], str(getattr(node, "module", "")).partition(".")[0]} & IMPORTERS.keys()
    }
    assert not top_level


def test_every_public_function_has_a_case_file() -> None:
    assert {cases.function_name(module) for module in cases.modules()} == set(cuconv.__all__)
    assert all((PACKAGE / "ops" / f"{name}.py").is_file() for name in cuconv.__all__)


def test_the_tests_are_not_imported_by_the_package() -> None:
    assert not [name for name in MODULES if any(i.partition(".")[0] == "tests" for i in imports(name))]


def written_files() -> Iterator[Path]:
    """Everything in Python or CUDA that people write."""
    for folder in ("cuconv", "cuda_src", "tests"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".cu", ".cuh", ".cpp", ".h"):
                yield path


def test_files_are_short() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in written_files()}
    assert not {str(path): length for path, length in lengths.items() if length > 300}


def test_there_are_no_banners_and_nothing_is_left_to_do() -> None:
    # Spelt apart, for this file is read, too.
    banner = re.compile(r"(#|//|/\*)\s*([-=*#~_/])\2{3,}")
    undone = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|X" + r"XX)\b")
    wrong = [
        f"{path}:{number}: {line.strip()}"
        for path in written_files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if banner.search(line) or undone.search(line)
    ]
    assert not wrong
