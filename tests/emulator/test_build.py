"""Builds of the emulator: the text that g++ is given, and the libraries that are kept."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cuconv.runtime.launch import LaunchConfig
from tests import cases, emulator
from tests.emulator import broken, compiler, debugger, process, translation
from tests.emulator.broken import Broken
from tests.emulator.primitives import Printed
from tests.support.command_line import Capture

needs_gxx = pytest.mark.skipif(emulator.available() is not None, reason=str(emulator.available()))


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder that has only the runtime, which takes longer to build than a kernel."""
    runtime = compiler.runtime().parent
    shutil.copytree(runtime, tmp_path / "cache" / "emulator" / runtime.name)
    monkeypatch.setenv("CUCONV_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def builds(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that g++ is asked to build from now on."""
    targets: list[Path] = []
    build = compiler._compile

    def counted(target: Path, *rest: Any) -> None:
        targets.append(target)
        build(target, *rest)

    monkeypatch.setattr(compiler, "_compile", counted)
    return targets


@pytest.mark.parametrize(
    ("code", "translated"),
    [
        ("__shared__ float a[4];", "auto& a = emulator::shared<float[4]>([] {});"),
        ("static __shared__ int a;", "auto& a = emulator::shared<int>([] {});"),
        (
            "__shared__ __align__(16) T a[kX][kY + 1];",
            "auto& a = emulator::shared<T[kX][kY + 1]>([] {}, (16));",
        ),
        (
            "__shared__ alignas(2 * sizeof(T)) Vec<T, 4> a;",
            "auto& a = emulator::shared<Vec<T, 4>>([] {}, (2 * sizeof(T)));",
        ),
        (
            "__shared__ typename Scan<T, 2>::Storage a;",
            "auto& a = emulator::shared<typename Scan<T, 2>::Storage>([] {});",
        ),
        (
            "extern __shared__ __align__(16) unsigned char a[];",
            "auto* const a = static_cast<unsigned char*>(emulator::dynamic_shared());",
        ),
        ("__shared__ float\n    a[4];\nb", "auto& a = emulator::shared<float[4]>([] {});\n\nb"),
        ("// __shared__ float a, b;", "// __shared__ float a, b;"),
        ("/* __shared__\n float a, b; */", "/* __shared__\n float a, b; */"),
        ("f(a); // x", "f(a); // x"),
    ],
)
def test_only_shared_memory_is_translated(code: str, translated: str) -> None:
    assert translation.translate("x.cu", code) == f'#line 1 "x.cu"\n{translated}'


def test_two_shared_variables_in_one_declaration_are_refused() -> None:
    with pytest.raises(ValueError, match=r"x.cu:3: .* one shared variable a declaration: __shared__ float a, b;"):
        translation.translate("x.cu", "\n\n__shared__ float a, b;")


@needs_gxx
def test_device_code_that_is_wrong_is_shown_by_its_own_name_and_line(tmp_path: Path) -> None:
    (tmp_path / "null_pointer.cu").write_text("\n\nint f() { return undeclared; }\n")
    kernel = in_folder(tmp_path)
    with pytest.raises(emulator.BuildError, match=r"null_pointer.cu:3:\d+: error: .undeclared. was not declared"):
        emulator.prebuild([kernel])


def in_folder(folder: Path, threads: int = 64) -> Broken:
    """A kernel with its source in another folder."""
    named = {"unit": "null_pointer", "source_folder": folder, "params": broken.CLASSES["null_pointer"].params}
    kernel: Broken = type("Elsewhere", (broken.CLASSES["null_pointer"],), named)(threads)
    return kernel


def copy_sources(folder: Path, addition: str = "") -> Path:
    """A folder with the kernel of null_pointer.cu, and text added to a header that it includes."""
    for name in ("null_pointer.cu", "common/params.cuh"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text((Broken.source_folder / name).read_text() + (addition if name.endswith(".cuh") else ""))
    return folder


@needs_gxx
@pytest.mark.usefixtures("empty_cache")
def test_what_is_built_is_found_by_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    targets = builds(monkeypatch)
    same, again, other = (copy_sources(tmp_path / n, text) for n, text in [("a", ""), ("b", ""), ("c", "// more\n")])
    (again / "common" / "of_others.cuh").write_text("// not included\n")
    library = compiler.library(in_folder(same))
    assert [target.name for target in targets] == [library.name]
    assert compiler.library(in_folder(again)) == library
    assert len(targets) == 1
    assert compiler.library(in_folder(other)) != library
    assert len(targets) == 2


@needs_gxx
@pytest.mark.usefixtures("empty_cache")
def test_only_what_is_missing_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "processors", lambda: 2)
    kernels = [broken.kernel("null_pointer", threads) for threads in (32, 64, 96, 128, 160, 192, 224, 256)]
    emulator.prebuild(kernels[:1])
    targets = builds(monkeypatch)
    emulator.prebuild(kernels)
    assert len(targets) == 2, "seven kernels in two libraries"
    libraries = {compiler.library(kernel) for kernel in kernels}
    assert len(libraries) == 3
    assert len(targets) == 2
    compiler.library(kernels[0]).unlink()
    assert compiler.library(kernels[0]).is_file()
    assert len(targets) == 3


@needs_gxx
@pytest.mark.usefixtures("empty_cache")
def test_two_processes_divide_builds_alike_and_each_is_done_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second comes to each of its builds when the first has just done it."""
    monkeypatch.setattr(compiler, "processors", lambda: 1)
    monkeypatch.setattr(compiler, "_MOST_A_BUILD", 2)
    kernels = [broken.kernel("null_pointer", 32 * (i + 1)) for i in range(4)]
    find, build = compiler._Unit.find, compiler._Unit.build
    monkeypatch.setattr(compiler._Unit, "build", lambda unit, chosen: planned.append(list(chosen)))
    divided = []
    for order in (kernels, kernels[::-1]):
        planned: list[list[Any]] = []
        emulator.prebuild(order)
        divided.append(sorted(planned, key=str))
    assert divided[0] == divided[1] and [len(chosen) for chosen in divided[0]] == [2, 2]
    monkeypatch.setattr(compiler._Unit, "build", build)
    targets = builds(monkeypatch)
    emulator.prebuild(kernels)
    assert len(targets) == 2
    early = iter(kernels)
    monkeypatch.setattr(compiler._Unit, "find", lambda unit, kernel: find(unit, kernel) if not next(early, 0) else None)
    emulator.prebuild(kernels)
    assert len(targets) == 2


@pytest.mark.parametrize(
    ("wanted", "at_a_time", "most"), [(991, 1, 24), (3, 1, 24), (991, 2, 24), (991, 16, 15), (40, 2, 6), (0, 64, 6)]
)
def test_builds_are_as_large_as_leaves_no_processor_idle(wanted: int, at_a_time: int, most: int) -> None:
    assert compiler.variants_a_build(wanted, at_a_time) == most


@needs_gxx
@pytest.mark.usefixtures("empty_cache")
def test_a_kernel_that_asks_how_it_starts_is_built_for_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = (launch.kernel for case in cases.tables("UNIT") for launch in case.launches())
    kernel = next(kernel for kernel in kernels if compiler.asks_how_it_starts(kernel))
    targets = builds(monkeypatch)
    emulator.prebuild([kernel, broken.kernel("null_pointer")])
    assert len(targets) == 3 and len({target.parent for target in targets}) == 3
    assert compiler.library(kernel) != compiler.library(kernel, ordinary=True)
    assert len(targets) == 3


@needs_gxx
def test_builds_of_the_oldest_sources_go(empty_cache: Path, tmp_path: Path) -> None:
    folders = []
    for age, number in enumerate(range(5)):
        kernel = in_folder(copy_sources(tmp_path / str(number), f"// {number}\n"))
        folders.append(compiler.library(kernel).parent)
        os.utime(folders[-1], (age, age))
    assert [folder.is_dir() for folder in folders] == [False, False, True, True, True]


def test_a_cache_that_cannot_be_written_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CUCONV_CACHE_DIR", str(tmp_path / "file"))
    root = compiler.root()
    assert tmp_path not in root.parents and root.is_dir() and os.access(root, os.W_OK)


@needs_gxx
@pytest.mark.usefixtures("empty_cache")
def test_the_last_launch_is_kept_for_a_debugger() -> None:
    x, out = np.ones(64, np.float32), np.zeros(64, np.float32)
    kernel = broken.kernel("null_pointer")
    numbers = kernel.params.pack_numbers(length=64, step=1)
    emulator.run(kernel, LaunchConfig((1, 1, 1), (64, 1, 1)), numbers, {"x": x, "out": out})
    arguments = debugger.arguments()
    child = subprocess.run(
        arguments[arguments.index("--args") + 1 :], env=process.environment(), capture_output=True, text=True
    )
    assert child.returncode == 0, child.stderr


@needs_gxx
def test_another_build_of_the_runtime_gets_a_process_of_its_own(
    empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one process two runtimes would use each other's variables and run each other's kernels."""
    other = shutil.copytree(empty_cache, tmp_path / "other")
    for folder in (empty_cache, other, empty_cache):
        monkeypatch.setenv("CUCONV_CACHE_DIR", str(folder))
        for threads in (64, 32):
            x, out = np.ones(64, np.float32), np.zeros(64, np.float32)
            kernel = broken.kernel("null_pointer", threads)
            numbers = kernel.params.pack_numbers(length=64, step=1)
            emulator.run(kernel, LaunchConfig((1, 1, 1), (threads, 1, 1)), numbers, {"x": x, "out": out})
            assert out.sum() == threads


@needs_gxx
def test_what_a_kernel_prints_is_shown(capsys: Capture) -> None:
    for value in (1.5, 2.5):
        config = LaunchConfig((1, 1, 1), (32, 1, 1))
        emulator.run(Printed(32), config, b"", {"x": np.full(1, value, np.float32)})
    assert capsys.readouterr().out == "x[0] is 1.5\nx[0] is 2.5\n"


@pytest.fixture
def fresh_answers() -> Iterator[None]:
    """Forget what is known of the machine, now and after the test, so that it is asked again."""
    cached = (compiler.missing, compiler._library)
    for function in cached:
        function.cache_clear()
    yield
    for function in cached:
        function.cache_clear()


@pytest.mark.usefixtures("fresh_answers")
def test_a_machine_without_gxx_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert emulator.available() == "the emulator needs g++, which is not installed"


@needs_gxx
@pytest.mark.usefixtures("fresh_answers")
def test_a_gxx_without_sanitizers_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "_library", Path)
    assert emulator.available() == "the emulator needs libasan.so, which this g++ lacks"
