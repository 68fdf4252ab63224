"""The recipe for adding an operator, followed to the letter in a copy of the tree."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import emulator
from tests.support.discovery import ROOT

RECIPE = (ROOT / ".github" / "CONTRIBUTING.md").read_text(encoding="utf-8")
FILE = re.compile(r"^`([\w/.]+\.(?:py|cu))`\n\n```\w+\n(.*?)```$", re.MULTILINE | re.DOTALL)
EXPORT = re.compile(r"^ +from cuconv\.\w+\.\w+ import (\w+)$", re.MULTILINE)
TREE = ("cuconv", "cuda_src", "tests", ".github", "pyproject.toml", "README.md", "Makefile", "LICENSE", ".ci")


def files() -> dict[str, str]:
    """The files of the recipe by path."""
    return dict(FILE.findall(RECIPE))


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this tree with the recipe's operator in it."""
    root = tmp_path_factory.mktemp("recipe")
    for name in TREE:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, root / name)
    for path, text in files().items():
        assert not (root / path).exists(), path
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
    (export,) = EXPORT.finditer(RECIPE)
    package = root / "cuconv" / "__init__.py"
    text = package.read_text(encoding="utf-8")
    text = text.replace("except ModuleNotFoundError", f"{export[0]}\nexcept ModuleNotFoundError", 1)
    package.write_text(text.replace("__all__ = [\n", f'__all__ = [\n    "{export[1]}",\n', 1), encoding="utf-8")
    return root


def run(tree: Path, *command: str) -> str:
    """What a command of Python's prints in the copy; it must end well."""
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run([sys.executable, *command], cwd=tree, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def test_the_recipe_has_a_file_of_each_kind() -> None:
    assert sorted({Path(path).suffix for path in files()}) == [".cu", ".py"]
    assert {path.split("/")[0] for path in files()} == {"cuconv", "cuda_src", "tests"}


def test_numerics_emulation_and_house_rules(tree: Path) -> None:
    if (reason := emulator.available()) is not None:
        pytest.skip(reason)
    chosen = ["tests/families", "tests/house/test_house.py", "tests/house/test_house_cuda.py"]
    chosen += ["tests/house/test_docstrings.py", "tests/bench/test_workloads.py"]
    printed = run(tree, "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen, "-k", "silu_mul or SiluMul")
    passed = re.search(r"(\d+) passed", printed)
    assert passed is not None and int(passed[1]) >= 20, printed


def test_it_compiles_for_every_architecture(tree: Path) -> None:
    printed = run(tree, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/jit/test_compile.py", "-k", "SiluMul")
    assert re.search(r"\d+ passed", printed) and "failed" not in printed


def test_the_command_line_knows_it(tree: Path) -> None:
    assert "silu_mul_kernel" in run(tree, "-m", "cuconv", "explain", "silu_mul", "--arch", "90")
