"""The two names that this package is installed by, one for each major version of CUDA."""

from __future__ import annotations

import importlib.util
import zipfile
from email import message_from_bytes
from email.message import Message
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest

from cuconv.runtime import distribution
from tests.house.test_package import Installed, missing_setuptools
from tests.support.discovery import ROOT

SCRIPT = ROOT / ".ci" / "wheels.py"


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("wheels", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel of each name."""
    if (reason := missing_setuptools()) is not None:
        pytest.skip(reason)
    if not SCRIPT.is_file():
        pytest.skip("not a source checkout")
    out = tmp_path_factory.mktemp("wheels")
    script().build(out)
    assert len(list(out.glob("*.tar.gz"))) == 2
    return {path.name.partition("-")[0].replace("_", "-"): path for path in out.glob("*.whl")}


def told(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return message_from_bytes(archive.read(name))


def test_each_name_brings_the_packages_of_one_cuda(wheels: dict[str, Path]) -> None:
    assert set(wheels) == set(distribution.NAMES.values()) == {"cuconv", "cuconv-cuda13x"}
    needed = {name: told(path).get_all("Requires-Dist") or [] for name, path in wheels.items()}
    for name, own, foreign in (("cuconv", "cupy-cuda12x", "13x"), ("cuconv-cuda13x", "cupy-cuda13x", "12x")):
        plain = [each for each in needed[name] if "extra" not in each]
        assert any(each.startswith(own) for each in plain) and not any(foreign in each for each in plain)
        assert len([each for each in plain if each.startswith("nvidia-")]) == 2
    assert not any("cu12" in each for each in needed["cuconv-cuda13x"])


def test_the_code_is_the_same(wheels: dict[str, Path]) -> None:
    contents = []
    for path in wheels.values():
        with zipfile.ZipFile(path) as archive:
            contents.append({n: archive.read(n) for n in archive.namelist() if ".dist-info/" not in n})
    assert contents[0] == contents[1] and "cuconv/torch/__init__.py" in contents[0]


@pytest.mark.parametrize("name", ["cuconv", "cuconv-cuda13x"])
def test_either_installs_and_runs(wheels: dict[str, Path], name: str, tmp_path: Path) -> None:
    there = Installed(tmp_path, wheels[name])
    assert there.run("cuconv", "--version").split() == ["cuconv", told(wheels[name])["Version"]]
    program = "from cuconv.runtime import distribution as d; print([d.NAMES[major] for major in d.installed()])"
    assert there.run("python", "-c", program).strip() in (f"['{name}']", "['cuconv', 'cuconv-cuda13x']")


@pytest.mark.parametrize(
    ("driver", "torch", "wanted"),
    [
        (None, None, 12),
        (None, "13.0", 13),
        (None, "11.8", 12),
        (12080, None, 12),
        (12080, "13.0", 12),
        (13000, None, 13),
        (13000, "12.6", 12),
        (13000, "13.0", 13),
        (14010, "14.0", 13),
        (11080, None, 12),
    ],
)
def test_which_name_fits(driver: int | None, torch: str | None, wanted: int) -> None:
    assert distribution.fitting(driver, torch) == wanted


def test_the_version_is_found_under_either_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name != "cuconv-cuda13x":
            raise metadata.PackageNotFoundError(name)
        return "1.2.3"

    monkeypatch.setattr(metadata, "version", version)
    assert distribution.installed() == {13: "1.2.3"} and distribution.version() == "1.2.3"
