"""Finding the NVRTC library and the CUDA headers that belong to it."""

import ctypes
from pathlib import Path
from unittest import mock

import pytest

from cuconv.jit import nvrtc


def lay_headers(folder: Path, cuda_version: int, without: str = "") -> Path:
    folder.mkdir(parents=True)
    for name in ("cuda_fp16.h", "cuda_bf16.h", "cuda.h"):
        if name != without:
            (folder / name).write_text(f"#define CUDA_VERSION {cuda_version}\n")
    return folder


def include_dirs(monkeypatch: pytest.MonkeyPatch, major: int, packages: list[Path], **env: Path) -> tuple[Path, ...]:
    """What is found there, less what the machine's own toolkit adds."""
    monkeypatch.setattr(nvrtc, "version", lambda: (major, 0))
    monkeypatch.setattr(nvrtc, "_nvidia_packages", lambda: packages)
    for name in ("CUDA_PATH", "CUDA_HOME"):
        monkeypatch.delenv(name, raising=False)
        if name in env:
            monkeypatch.setenv(name, str(env[name]))
    found = nvrtc.toolkit_include_dirs.__wrapped__()
    return tuple(folder for folder in found if folder != Path("/usr/local/cuda/include"))


def test_wheels_come_before_toolkits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for major, wheel in ((12, "cuda_runtime"), (13, "cu13")):
        root = tmp_path / str(major)
        in_wheel = lay_headers(root / "second" / wheel / "include", major * 1000 + 90)
        in_toolkit = lay_headers(root / "toolkit" / "include", major * 1000)
        packages = [root / "first", root / "second"]
        found = include_dirs(monkeypatch, major, packages, CUDA_PATH=root / "toolkit", CUDA_HOME=root / "toolkit")
        assert found == (in_wheel, in_toolkit)


def test_headers_of_another_major_version_or_incomplete_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay_headers(tmp_path / "nvidia" / "cuda_runtime" / "include", 11080)
    lay_headers(tmp_path / "incomplete" / "include", 12040, without="cuda_bf16.h")
    fitting = lay_headers(tmp_path / "toolkit" / "include", 12040)
    packages = [tmp_path / "nvidia"]
    found = include_dirs(monkeypatch, 12, packages, CUDA_PATH=tmp_path / "incomplete", CUDA_HOME=tmp_path / "toolkit")
    assert found == (fitting,)


@pytest.mark.parametrize(("major", "package"), [(11, "nvidia-cuda-runtime-cu11"), (99, "nvidia-cuda-runtime==99.*")])
def test_missing_headers_name_the_command(
    major: int, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RuntimeError) as caught:
        include_dirs(monkeypatch, major, [tmp_path], CUDA_HOME=tmp_path / "toolkit")
    assert f"run pip install '{package}'" in str(caught.value)
    assert str(tmp_path / "toolkit" / "include") in str(caught.value)


def test_a_library_in_a_wheel_is_loaded_for_a_cupy_that_does_not_look_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "cuda_nvrtc" / "lib" / "libnvrtc.so.12"
    library.parent.mkdir(parents=True)
    library.touch()
    loaded: list[str] = []
    binding = mock.Mock()
    binding.getVersion.side_effect = [RuntimeError("cannot open shared object file"), (12, 9)]
    monkeypatch.setattr("cupy_backends.cuda.libs.nvrtc", binding)
    monkeypatch.setattr(nvrtc, "_nvidia_packages", lambda: [tmp_path])
    monkeypatch.setattr(ctypes, "CDLL", loaded.append)
    assert nvrtc._binding.__wrapped__() is binding
    assert loaded == [str(library)]


def test_a_missing_library_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    binding = mock.Mock()
    binding.getVersion.side_effect = RuntimeError("cannot open shared object file")
    monkeypatch.setattr("cupy_backends.cuda.libs.nvrtc", binding)
    monkeypatch.setattr(nvrtc, "_nvidia_packages", list)
    with pytest.raises(RuntimeError, match="run pip install nvidia-cuda-nvrtc-cu12 beside cupy-cuda12x"):
        nvrtc._binding.__wrapped__()
