"""`cuconv doctor` of CUDA: drivers, CuPy packages, NVRTC and headers that are missing, old or broken."""

from __future__ import annotations

import ctypes
import json
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from cuconv.cli import cuda_probes, kernel_probe
from cuconv.cli.console import WRONG
from cuconv.jit import nvrtc, source
from cuconv.jit.source import Source
from tests.support.command_line import Capture, cuconv, value_of
from tests.support.findings import about, lay_distribution, lay_module, probe

pytestmark = pytest.mark.usefixtures("folder")


@pytest.fixture
def no_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cupy", "cupy_backends.cuda.libs"):
        monkeypatch.setitem(sys.modules, name, None)  # type: ignore[arg-type]
    monkeypatch.setattr(metadata, "distributions", lambda: iter(()))
    monkeypatch.setattr(nvrtc, "_binding", nvrtc._binding.__wrapped__)


@pytest.mark.usefixtures("no_cupy")
def test_without_cupy_it_names_the_command(capsys: Capture) -> None:
    code, value = value_of(capsys, "doctor")
    assert code == WRONG
    wanted = "pip install cupy-cuda12x nvidia-cuda-nvrtc-cu12 nvidia-cuda-runtime-cu12"
    assert [(f["status"], f["fix"]) for f in about(value["findings"], "CuPy")] == [("missing", wanted)]
    # What follows from it needs no command of its own.
    for subject in ("NVRTC", "GPU", "compiling"):
        assert [(f["status"], f["fix"]) for f in about(value["findings"], subject)] == [("note", "")]
    assert [f["subject"] for f in value["findings"] if f["status"] in ("missing", "wrong")] == ["CuPy"]


def test_two_cupy_packages_are_in_each_others_way(tmp_path: Path) -> None:
    (present,) = cuda_probes.installed_cupys()
    other = "cupy-cuda13x" if present != "cupy-cuda13x" else "cupy-cuda12x"
    lay_distribution(tmp_path / "path", other, "13.6.0")
    done = cuconv("doctor", "--json", path=str(tmp_path / "path"))
    found = about(json.loads(done.stdout)["findings"], "CuPy", "wrong")
    assert done.returncode == WRONG and len(found) == 1
    assert found[0]["facts"]["packages"].keys() == {present, other}
    assert found[0]["fix"].startswith(
        f"pip uninstall -y {min(present, other)} {max(present, other)} && pip install cupy-"
    )


@pytest.mark.parametrize(
    "text", ["raise OSError('libcurand.so.10: cannot open')", "import no_such_module", "1 / 0", "def broken("]
)
def test_a_cupy_that_cannot_be_imported_is_named_and_the_rest_goes_on(text: str, tmp_path: Path) -> None:
    lay_module(tmp_path / "path", "cupy", text)
    done = cuconv("doctor", "--json", path=str(tmp_path / "path"))
    assert done.stdout, done.stderr
    findings = json.loads(done.stdout)["findings"]
    (package,) = cuda_probes.installed_cupys()
    (finding,) = about(findings, "CuPy")
    assert (done.returncode, done.stderr, finding["status"]) == (WRONG, "", "wrong")
    assert finding["fix"] == f"pip install --force-reinstall {package}"
    assert [f["subject"] for f in findings if f["status"] in ("missing", "wrong")] == ["CuPy"]
    assert about(findings, "cache", "ok") and about(findings, "numpy", "ok")


def test_a_cupy_that_is_too_old_is_to_be_upgraded(monkeypatch: pytest.MonkeyPatch) -> None:
    import cupy

    monkeypatch.setattr(cupy, "__version__", "12.3.0")
    (finding,) = probe(cuda_probes.cupy_package())
    assert finding["status"] == "wrong" and "12.3.0" in finding["text"]
    assert finding["fix"].startswith("pip install --upgrade 'cupy-cuda1")


def test_a_driver_that_is_too_old_for_cupy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import cupy

    runtime = cupy.cuda.runtime.runtimeGetVersion()
    older = runtime // 1000 - 1
    monkeypatch.setattr(cuda_probes, "driver_version", lambda: older * 1000 + 80)
    (finding,) = probe(cuda_probes.cupy_package())
    assert finding["status"] == "wrong" and f"CUDA {older}.8 at most" in finding["text"]
    assert f"&& pip install cupy-cuda{older}x " in finding["fix"]
    for same in (runtime, runtime // 1000 * 1000, runtime + 1000):
        # Within a major version older drivers run newer code.
        monkeypatch.setattr(cuda_probes, "driver_version", lambda version=same: version)
        assert [f["status"] for f in probe(cuda_probes.cupy_package())] == ["ok"]


@pytest.mark.parametrize(("status", "told", "version"), [(0, 12040, 12040), (34, 12040, None), (0, 0, None)])
def test_the_driver_is_asked_and_a_stub_is_none(
    status: int, told: int, version: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def get_version(pointer: Any) -> int:
        pointer._obj.value = told
        return status

    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(cuDriverGetVersion=get_version))
    monkeypatch.setattr(cuda_probes, "driver_version", cuda_probes.driver_version.__wrapped__)
    assert cuda_probes.driver_version() == version
    (finding,) = probe(cuda_probes.driver())
    assert finding["status"] == ("note" if version is None else "ok")
    assert finding["facts"]["cuda"] == (None if version is None else "12.4")


@pytest.mark.parametrize(
    ("driver", "reason", "status"),
    [
        (12040, "cudaErrorNoDevice: no CUDA-capable device is detected", "note"),
        (12040, "cudaErrorUnknown: unknown error", "wrong"),
        (None, "cudaErrorInsufficientDriver: CUDA driver version is insufficient", "note"),
    ],
)
def test_a_driver_that_does_not_start_is_broken(
    driver: int | None, reason: str, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_probes, "driver_version", lambda: driver)
    monkeypatch.setattr("cupy.cuda.runtime.getDeviceCount", mock.Mock(side_effect=RuntimeError(reason)))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    (finding,) = probe(cuda_probes.gpus())
    assert finding["status"] == status and reason in finding["text"]
    assert ("CUDA_VISIBLE_DEVICES is '-1'" in finding["text"]) == (status == "note")


@pytest.mark.parametrize(
    ("capability", "status", "text"),
    [
        (90, "ok", "machine code for it, sm_90"),
        (88, "ok", "machine code for it, sm_86"),
        (140, "note", "newer than NVRTC 13.0, so the driver compiles compute_121"),
        (75, "wrong", "compiles for 80 and above"),
        (70, "wrong", "kernels need 75 or more"),
    ],
)
def test_what_is_compiled_for_a_gpu(capability: int, status: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "supported_archs", lambda: (80, 86, 87, 90, 120, 121))
    monkeypatch.setattr(nvrtc, "version", lambda: (13, 0))
    (finding,) = probe(cuda_probes.compiled_for(0, capability))
    assert finding["status"] == status and text in finding["text"]
    fixes = {"ok": "", "note": "pip install --upgrade 'nvidia-cuda-nvrtc==13.*'"}
    assert finding["fix"] == fixes.get(status, finding["fix"])
    if capability == 75:
        assert finding["fix"].endswith("&& pip install cupy-cuda12x nvidia-cuda-nvrtc-cu12 nvidia-cuda-runtime-cu12")
    if capability == 70:
        assert not finding["fix"]


def test_a_missing_nvrtc_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import cupy

    binding = mock.Mock()
    binding.getVersion.side_effect = RuntimeError("libnvrtc.so.12: cannot open shared object file")
    monkeypatch.setattr("cupy_backends.cuda.libs.nvrtc", binding)
    monkeypatch.setattr(nvrtc, "_nvidia_packages", list)
    monkeypatch.setattr(nvrtc, "_binding", nvrtc._binding.__wrapped__)
    (finding,) = probe(cuda_probes.compiler())
    major = cupy.cuda.runtime.runtimeGetVersion() // 1000
    assert (finding["subject"], finding["status"]) == ("NVRTC", "missing")
    assert finding["fix"] in (f"pip install nvidia-cuda-nvrtc-cu{major}", f"pip install 'nvidia-cuda-nvrtc=={major}.*'")


def test_missing_headers_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "_headers_major", lambda folder: None)
    monkeypatch.setattr(nvrtc, "toolkit_include_dirs", nvrtc.toolkit_include_dirs.__wrapped__)
    library, headers = probe(cuda_probes.compiler())
    assert (library["status"], headers["subject"], headers["status"]) == ("ok", "CUDA headers", "missing")
    # The compiler's own error names the same package.
    package = headers["fix"].removeprefix("pip install ")
    assert package.strip("'").startswith("nvidia-cuda-runtime") and package in headers["text"]


def test_device_code_that_does_not_compile_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Source({**source.load().files, "bench/copy.cu": "#error the dog ate it"})
    monkeypatch.setattr(source, "load", lambda: broken)
    finding = probe(kernel_probe.copy_kernel())[0]
    assert finding["status"] == "wrong" and "the dog ate it" in finding["text"]
    assert "copy_kernel<4>" in finding["facts"]["log"]


def test_the_probe_of_the_compiler_leaves_the_cache_alone(folder: Path) -> None:
    assert about(probe(kernel_probe.copy_kernel()), "compiling", "ok")
    assert not folder.exists()
