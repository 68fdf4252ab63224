"""What is installed: every package folder, and in a wheel every file of device code."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from cuconv.jit import source
from tests.discovery import ROOT

SETUPTOOLS = 77
"""The version that pyproject.toml asks for."""

BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"


def missing_setuptools() -> str | None:
    try:
        version = metadata.version("setuptools")
    except metadata.PackageNotFoundError:
        version = "none"
    wanted = version != "none" and int(version.partition(".")[0]) >= SETUPTOOLS
    return None if wanted else f"building a wheel needs setuptools {SETUPTOOLS}; installed: {version}"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The names in a wheel, built without the network and beside the tree, so that nothing is left in it."""
    if (reason := missing_setuptools()) is not None:
        pytest.skip(reason)
    tree = tmp_path_factory.mktemp("tree")
    for name in ("cuconv", "cuda_src"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree / name)
    out = tmp_path_factory.mktemp("wheel")
    built = subprocess.run([sys.executable, "-c", BUILD, str(out)], cwd=tree, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    (path,) = out.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        return archive.namelist()


def test_every_file_of_device_code_is_in_the_wheel(wheel: list[str]) -> None:
    wanted = {f"cuconv/cuda_src/{name}" for name in source.read(ROOT / "cuda_src").files}
    assert len(wanted) > 4
    assert wanted == {name for name in wheel if name.endswith((".cu", ".cuh"))}


def test_every_module_is_in_the_wheel(wheel: list[str]) -> None:
    wanted = {path.relative_to(ROOT).as_posix() for path in (ROOT / "cuconv").rglob("*.py")}
    assert wanted == {name for name in wheel if name.endswith(".py")}
    assert "cuconv/py.typed" in wheel
    assert any(name.endswith("/LICENSE") for name in wheel)


def test_packages_are_the_folders() -> None:
    tomllib = pytest.importorskip("tomllib", reason="reading pyproject.toml needs Python 3.11")
    setup = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    folders = [
        path for top in ("cuconv", "cuda_src") for path in (ROOT / top, *(ROOT / top).rglob("*")) if path.is_dir()
    ]
    assert sorted(setup["packages"]) == sorted(package_of(path) for path in folders if path.name != "__pycache__")
    shipped = {package for package, patterns in setup["package-data"].items() if {"*.cu", "*.cuh"} & set(patterns)}
    assert shipped == {name for name in setup["packages"] if "cuda_src" in name}


def package_of(folder: Path) -> str:
    parts = folder.relative_to(ROOT).parts
    return ".".join(parts if parts[0] == "cuconv" else ("cuconv", *parts))


def test_the_top_level_is_tidy() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    top = {line.partition("/")[0] for line in listed.stdout.splitlines()}
    allowed = {"pyproject.toml", "Makefile", "README.md", "LICENSE", "cuconv", "cuda_src", "tests"}
    assert {name for name in top if not name.startswith(".")} <= allowed
