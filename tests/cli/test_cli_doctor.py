"""`cuconv doctor`: that it finds what is there, names what is missing, and survives whatever is broken."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cuconv.bench.copy import Copy
from cuconv.cli import doctor, kernel_probe
from cuconv.cli.console import OK, WRONG
from cuconv.cli.finding import Finding
from cuconv.jit import nvrtc, source
from tests.conftest import missing_gpu
from tests.jit.test_jit_cache import KEY, store, truncated
from tests.support.command_line import Capture, cuconv, text_of, value_of
from tests.support.findings import about, lay_module, probe

pytestmark = pytest.mark.usefixtures("folder")


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the doctor says of this machine, in a process of its own."""
    done = cuconv("doctor", "--json", CUCONV_CACHE_DIR=str(tmp_path_factory.mktemp("cache")), CUCONV_CHECK="")
    assert "Traceback" not in done.stderr
    return done.returncode, json.loads(done.stdout)


def test_this_machine_can_compile(here: Any) -> None:
    """The tests themselves need all that the doctor looks for."""
    code, value = here
    assert [f for f in value["findings"] if f["status"] in ("missing", "wrong")] == []
    assert (code, value["is_well"]) == (OK, True)
    (compiled,) = about(value["findings"], "compiling")[:1]
    assert compiled["status"] == "ok" and "compiled in" in compiled["text"]


def test_what_is_told_is_so(here: Any) -> None:
    findings = here[1]["findings"]
    facts = {f["subject"]: f["facts"] for f in findings}
    assert facts["numpy"]["version"] == np.__version__
    assert facts["ml_dtypes"]["version"] == metadata.version("ml_dtypes")
    assert facts["device code"]["digest"] == source.load().digest
    assert facts["NVRTC"]["version"] == "{}.{}".format(*nvrtc.version())
    assert tuple(facts["NVRTC"]["archs"]) == nvrtc.supported_archs()
    assert Path(facts["NVRTC"]["library"]).is_file() and "libnvrtc" in facts["NVRTC"]["library"]
    assert all((Path(folder) / "cuda_fp16.h").is_file() for folder in facts["CUDA headers"]["folders"])
    packages = facts["CuPy"]["packages"]
    assert len(packages) == 1 and packages == {name: metadata.version(name) for name in packages}
    assert {f["status"] for f in findings} <= {"ok", "note"}


def test_no_gpu_is_no_fault(here: Any) -> None:
    reason = missing_gpu()
    if reason is None:
        pytest.skip("there is a GPU")
    (finding,) = about(here[1]["findings"], "GPU")
    assert finding["status"] == "note" and "warmup --arch 90" in finding["text"]


@pytest.mark.gpu
def test_a_gpu_is_described_and_runs_a_kernel(here: Any) -> None:
    import cupy

    for number in range(cupy.cuda.runtime.getDeviceCount()):
        found = about(here[1]["findings"], f"GPU {number}", "ok")
        device = cupy.cuda.Device(number)
        assert found[0]["facts"]["capability"] == int(device.compute_capability)
        assert abs(found[0]["facts"]["memory_bytes"] / device.mem_info[1] - 1) < 0.05
        assert any("loaded and launched" in f["text"] for f in found)


@pytest.mark.gpu
def test_a_kernel_that_copies_wrongly_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch that moves only half of what it should."""
    make = Copy.launch_config
    monkeypatch.setattr(Copy, "launch_config", lambda self, nbytes: make(self, nbytes // 2))
    (finding,) = probe(kernel_probe._copied(0))
    assert finding["status"] == "wrong" and "wrong" in finding["text"]


PROBES: dict[str, Callable[[], Iterator[Finding]]] = {
    "fine": lambda: iter([Finding("fine", "ok", "is there", facts={"n": 1})]),
    "half": lambda: (Finding(f"half {1 // n}", "note", "so far") for n in (1, 0)),
    "gone": lambda: iter([Finding("gone", "missing", "is not there", "pip install gone")]),
}


def test_what_a_probe_dies_of_is_a_finding(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PROBES", PROBES)
    code, value = value_of(capsys, "doctor")
    assert (code, value["is_well"]) == (WRONG, False)
    assert [(f["subject"], f["status"]) for f in value["findings"]] == [
        ("fine", "ok"),
        ("half 1", "note"),
        ("half", "wrong"),
        ("gone", "missing"),
    ]
    assert "ZeroDivisionError" in value["findings"][2]["text"]
    assert (value["findings"][0]["facts"], value["findings"][3]["fix"]) == ({"n": 1}, "pip install gone")
    code, text = text_of(capsys, "doctor")
    lines = text.splitlines()
    assert code == WRONG and "2 to put right" in lines[-1]
    assert lines[0].split() == ["ok", "fine", "is", "there"]
    assert [line.strip() for line in lines if "fix:" in line] == ["fix: pip install gone"]


def test_notes_alone_are_well(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PROBES", {"fine": PROBES["fine"], "n": lambda: iter([Finding("n", "note", "so")])})
    assert value_of(capsys, "doctor")[0] == OK
    assert text_of(capsys, "doctor")[1].endswith("\nAll is well.\n")


def test_a_cache_that_cannot_be_written_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    done = cuconv("doctor", "--json", CUCONV_CACHE_DIR=str(tmp_path / "file"))
    (finding,) = about(json.loads(done.stdout)["findings"], "cache")
    assert (done.returncode, done.stderr, finding["status"]) == (WRONG, "", "wrong")
    assert "CUCONV_CACHE_DIR" in finding["fix"]


def test_a_folder_of_an_architecture_that_cannot_be_written_is_wrong(folder: Path) -> None:
    """One that another user has made, say; here a file is in its place."""
    folder.mkdir()
    (folder / "sm_90").write_text("in the way")
    (finding,) = probe(doctor.PROBES["cache"]())
    assert finding["status"] == "wrong" and "sm_90" in finding["text"]


def test_kernels_are_counted_and_damage_is_a_note(folder: Path) -> None:
    truncated(store())
    store(replace(KEY, expression="shift_kernel<3>"))
    store(replace(KEY, source_digest=source.load().of("bench/copy.cu").digest))
    room, held = probe(doctor.PROBES["cache"]())
    assert (room["status"], held["status"], held["fix"]) == ("ok", "note", "cuconv cache verify --repair")
    assert room["facts"]["folder"] == str(folder) and room["facts"]["free_bytes"] > 0
    assert held["facts"] == {"entries": 3, "damaged": 1, "stale": 1, "leftovers": 0}


def test_variables_with_a_meaning_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in doctor.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert [f["status"] for f in probe(doctor.PROBES["environment"]())] == ["ok"]
    monkeypatch.setenv("CUCONV_CHECK", "1")
    monkeypatch.setenv("CUCONV_CACHE_DIR", "kernels")
    told, *notes = probe(doctor.PROBES["environment"]())
    assert told["facts"]["CUCONV_CACHE_DIR"] == "kernels" and "CUCONV_CHECK=1" in told["text"]
    assert ["relative" in note["text"] for note in notes] == [True, False]
    assert all(note["status"] == "note" for note in notes)


TORCH = """
__version__ = "2.9.0+x"
class version: cuda = {cuda!r}
class cuda: is_available = staticmethod(lambda: {seen})
"""


@pytest.mark.parametrize(
    ("code", "status", "text"),
    [
        (TORCH.format(cuda="12.8", seen=True), "ok", "2.9.0+x, for CUDA 12.8"),
        (TORCH.format(cuda="12.8", seen=False), "ok", "which sees no GPU"),
        (TORCH.format(cuda=None, seen=False), "note", "without CUDA"),
        ("raise OSError('libcudnn.so.9: cannot open')", "note", "libcudnn.so.9"),
    ],
)
def test_torch_is_optional(code: str, status: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay_module(tmp_path, "torch", code)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    (finding,) = probe(doctor.PROBES["torch"]())
    sys.modules.pop("torch", None)
    assert finding["status"] == status and text in finding["text"]


def test_torch_need_not_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # type: ignore[arg-type]
    (finding,) = probe(doctor.PROBES["torch"]())
    assert finding["status"] == "note" and "not installed" in finding["text"]
