"""A wheel, a source distribution and an editable install hold every module and every file of device code."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from cuconv.jit import source
from tests.support.discovery import ROOT

SETUPTOOLS = 77
"""The version that pyproject.toml asks for."""

NOT_SHIPPED = "cuconv/cli/report/"
"""The command that makes this project's own tables and pictures."""


def missing_setuptools() -> str | None:
    try:
        version = metadata.version("setuptools")
    except metadata.PackageNotFoundError:
        version = "none"
    wanted = version != "none" and int(version.partition(".")[0]) >= SETUPTOOLS
    return None if wanted else f"building a wheel needs setuptools {SETUPTOOLS}; installed: {version}"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what is packaged, so that building leaves nothing in the source tree."""
    if (reason := missing_setuptools()) is not None:
        pytest.skip(reason)
    copy = tmp_path_factory.mktemp("tree")
    for name in ("cuconv", "cuda_src"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    return copy


def build(kind: str, tree: Path, out: Path) -> Path:
    """The "wheel", "sdist" or "editable" of a tree, built without the network."""
    program = f"import sys; from setuptools import build_meta; build_meta.build_{kind}(sys.argv[1])"
    built = subprocess.run([sys.executable, "-c", program, str(out)], cwd=tree, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    # A folder that setuptools only warns of may be left out by the next version.
    assert "absent from the `packages`" not in built.stderr
    (path,) = (path for path in out.iterdir() if path.suffix in (".whl", ".gz"))
    return path


@pytest.fixture(scope="module")
def wheel_file(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", tree, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def wheel(wheel_file: Path) -> list[str]:
    """The names in it."""
    with zipfile.ZipFile(wheel_file) as archive:
        return archive.namelist()


class Installed:
    """An environment with the wheel in it, and the packages that it needs; nothing of this tree."""

    def __init__(self, folder: Path, wheel_file: Path) -> None:
        self._outside = folder / "outside"
        self._outside.mkdir()
        self.root = folder / "environment"
        try:
            # This Python's pip installs into it: an environment with a pip of its own takes seconds to make.
            self._run(sys.executable, "-m", "venv", "--without-pip", str(self.root))
            self._run(sys.executable, "-m", "pip", "--version")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no environment can be made here: {error.stdout.strip() or error.stderr.strip()}")
        options = ["--no-deps", "--no-index", "--no-cache-dir", "--disable-pip-version-check"]
        pip = ["-m", "pip", "--python", str(self.root)]
        self._run(sys.executable, *pip, "install", *options, str(wheel_file))
        # Folders to look into after the environment's own; the .pth files in them, of editable installs, are not read.
        (site,) = self.root.glob("lib/python3*/site-packages")
        folders = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
        (site / "dependencies.pth").write_text("\n".join(folders))

    def run(self, program: str, *words: str, **environment: str) -> str:
        """What one of the environment's programs prints, run far from the tree; it must end well."""
        return self._run(str(self.root / "bin" / program), *words, **environment)

    def _run(self, *command: str, **environment: str) -> str:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "CUCONV", "PIP"))}
        return subprocess.run(
            command, cwd=self._outside, env={**clean, **environment}, capture_output=True, text=True, check=True
        ).stdout


@pytest.fixture(scope="module")
def installed(wheel_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("installed"), wheel_file)


def test_the_wheel_is_pure_python(wheel_file: Path, wheel: list[str]) -> None:
    assert wheel_file.name.endswith("-py3-none-any.whl")
    assert not [name for name in wheel if name.endswith((".so", ".pyd", ".cubin", ".ptx"))]


def test_what_is_installed_is_what_runs(installed: Installed) -> None:
    program = "import cuconv, cuconv.jit.source as s; print(cuconv.__file__, s.folder(), s.load().digest)"
    code, device_code, digest = installed.run("python", "-c", program).split()
    assert installed.root in Path(code).parents and installed.root in Path(device_code).parents
    assert digest == source.load().digest
    assert installed.run("cuconv", "--version").split() == ["cuconv", metadata_version(installed)]


def metadata_version(installed: Installed) -> str:
    """The version in the name of the installed wheel."""
    (folder,) = installed.root.glob("lib/python3*/site-packages/cuconv-*.dist-info")
    return folder.name.split("-")[1].removesuffix(".dist")


def test_an_installed_doctor_finds_all_well(installed: Installed, tmp_path: Path) -> None:
    told = json.loads(installed.run("cuconv", "doctor", "--json", CUCONV_CACHE_DIR=str(tmp_path)))
    assert told["is_well"]
    facts = {finding["subject"]: finding["facts"] for finding in told["findings"] if finding["status"] == "ok"}
    assert installed.root in Path(facts["cuconv"]["place"], "cuconv").parents
    assert facts["cuconv"]["version"] == metadata_version(installed)
    assert "copy_kernel<4>" in facts["compiling"]["kernel"]


def test_an_installed_warmup_compiles_once(installed: Installed, tmp_path: Path) -> None:
    words = ["-m", "cuconv", "warmup", "--op", "causal_conv1d_update", "--arch", "90", "--json"]
    first, second = (json.loads(installed.run("python", *words, CUCONV_CACHE_DIR=str(tmp_path))) for _ in range(2))
    assert first["compiled"] == len(first["kernels"]) > 0
    assert (second["compiled"], second["found"]) == (0, first["compiled"])
    assert all(tmp_path in Path(row["path"]).parents for row in second["kernels"])
    held = json.loads(installed.run("cuconv", "cache", "verify", "--json", CUCONV_CACHE_DIR=str(tmp_path)))
    assert (held["count"], held["damaged"]) == (first["compiled"], {})


def modules() -> set[str]:
    """Every module that is shipped, and every one of its data files."""
    found = {path.relative_to(ROOT).as_posix() for path in (ROOT / "cuconv").rglob("*.py")}
    assert any(name.startswith(NOT_SHIPPED) for name in found)
    return {name for name in found if not name.startswith(NOT_SHIPPED)} | {"cuconv/py.typed"}


def device_code() -> set[str]:
    found = {f"cuda_src/{name}" for name in source.read(ROOT / "cuda_src").files}
    assert len(found) > 4
    return found


def test_everything_is_in_the_wheel_and_nothing_else(wheel: list[str]) -> None:
    shipped = {name for name in wheel if ".dist-info/" not in name}
    assert shipped == modules() | {f"cuconv/{name}" for name in device_code()}
    assert any(name.endswith("/LICENSE") for name in wheel)


def test_everything_is_in_the_source_distribution(tree: Path, tmp_path: Path) -> None:
    with tarfile.open(build("sdist", tree, tmp_path)) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert modules() | device_code() | {"pyproject.toml", "README.md", "LICENSE"} <= names
    assert not [name for name in names if name.startswith(NOT_SHIPPED)]


def test_an_editable_install_runs_what_is_in_the_tree(tree: Path, tmp_path: Path) -> None:
    installed = Installed(tmp_path, build("editable", tree, tmp_path))
    program = "import cuconv.selective_scan.kernels as k, cuconv.jit.source as s; print(k.__file__, s.folder())"
    code, device = installed.run("python", "-c", program).split()
    assert (Path(code).parents[2], Path(device)) == (tree, tree / "cuda_src")
    # It has the source tree's own command.
    assert "report" in installed.run("cuconv", "--help")


def test_an_installed_package_does_not_offer_what_is_not_shipped(installed: Installed) -> None:
    told = installed.run("cuconv", "--help")
    assert "doctor" in told and "report" not in told


def test_the_top_level_is_tidy() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    top = {line.partition("/")[0] for line in listed.stdout.splitlines()}
    allowed = {"pyproject.toml", "Makefile", "README.md", "LICENSE", "cuconv", "cuda_src", "tests"}
    assert {name for name in top if not name.startswith(".")} <= allowed
