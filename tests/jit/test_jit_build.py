"""From device code to a cached kernel: the code's digest, build's hits and misses, builders that race."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from cuconv.jit import source
from cuconv.jit.build import build
from cuconv.jit.source import Source
from tests.jit.test_jit_cache import race

TINY = Source(
    {
        "scale.cu": '#include "common/twice.cuh"\n'
        "template <int kBy> __global__ void scale_kernel(float* p) { p[0] = twice(p[0]) * kBy; }\n",
        "common/twice.cuh": "template <typename T> __device__ T twice(T value) { return value + value; }\n",
    }
)


pytestmark = pytest.mark.usefixtures("folder")


def test_a_changed_header_is_a_changed_digest() -> None:
    changed = Source({**TINY.files, "common/twice.cuh": TINY.files["common/twice.cuh"] + " "})
    assert changed.digest != TINY.digest
    assert Source({name: TINY.files[name] for name in sorted(TINY.files)}).digest == TINY.digest


def test_text_cannot_move_between_files_unnoticed() -> None:
    contents: list[dict[str, str]] = [
        {"a": "bc"},
        {"ab": "c"},
        {"a": "b", "c": ""},
        {"a": "", "bc": ""},
        {"a\0": "bc"},
    ]
    assert len({Source(files).digest for files in contents}) == len(contents)


def test_source_reads_device_code_only(tmp_path: Path) -> None:
    (tmp_path / "common").mkdir()
    for name in ("k.cu", "common/vec.cuh", "notes.txt", ".k.cu.swp.cu"):
        (tmp_path / name).write_text(name)
    (tmp_path / ".#k.cu").symlink_to("nowhere")
    code = source.read(tmp_path)
    assert dict(code.files) == {"k.cu": "k.cu", "common/vec.cuh": "common/vec.cuh"}
    assert code.headers() == (("common/vec.cuh",), ("common/vec.cuh",))


def build_tiny(seed: int) -> None:
    with mock.patch.object(source, "load", lambda: TINY):
        for expression in ("scale_kernel<2>", f"scale_kernel<{10 + seed}>"):
            artifact = build("scale.cu", expression, 90)
            assert artifact.path.read_bytes()[:4] == b"\x7fELF"
            assert artifact.symbol.startswith("_Z")


def test_many_builders_of_the_same_and_different_kernels(folder: Path) -> None:
    race(build_tiny)
    assert len(list(folder.rglob("*.json"))) == 9
    with mock.patch("cuconv.jit.nvrtc.compile", side_effect=AssertionError("compiled again")):
        for seed in range(8):
            build_tiny(seed)


def test_build_compiles_once_and_says_so(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "load", lambda: TINY)
    caplog.set_level("INFO", "cuconv")
    first = build("scale.cu", "scale_kernel<2>", 90)
    second = build("scale.cu", "scale_kernel<2>", 90)
    assert second == replace(first, from_cache=True)
    assert first.resources is not None
    assert first.resources.spill_store_bytes == 0
    assert [record.getMessage().partition(" in ")[0] for record in caplog.records] == [
        "compiled scale_kernel<2> for sm_90"
    ]


def test_build_compiles_again_for_a_changed_header(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "load", lambda: TINY)
    first = build("scale.cu", "scale_kernel<2>", 90)
    halved = {
        **TINY.files,
        "common/twice.cuh": TINY.files["common/twice.cuh"].replace("value + value", "value / 2"),
    }
    monkeypatch.setattr(source, "load", lambda: Source(halved))
    second = build("scale.cu", "scale_kernel<2>", 90)
    assert not second.from_cache
    assert second.path.read_bytes() != first.path.read_bytes()


def test_a_file_that_a_kernel_does_not_include_may_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "load", lambda: TINY)
    first = build("scale.cu", "scale_kernel<2>", 90)
    monkeypatch.setattr(source, "load", lambda: Source({**TINY.files, "common/thrice.cuh": "", "shift.cu": ""}))
    assert build("scale.cu", "scale_kernel<2>", 90) == replace(first, from_cache=True)


def test_importing_build_does_not_bring_nvrtc() -> None:
    program = "import sys, cuconv.jit.build; print('cuconv.jit.nvrtc' in sys.modules)"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
