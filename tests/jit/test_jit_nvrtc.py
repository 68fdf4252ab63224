"""Compiling with NVRTC: targets, what ptxas reports, and what a failing compile shows."""

from pathlib import Path

import pytest

from cuconv.jit import nvrtc
from cuconv.jit.cache import Resources
from cuconv.jit.nvrtc import Compiled, CompileError
from cuconv.jit.source import Source

KERNELS = """\
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include "common/twice.cuh"

template <typename T, int kShift>
__global__ void shift_kernel(T* p) {
    __shared__ float tile[128];
    tile[threadIdx.x] = twice(static_cast<float>(p[threadIdx.x]));
    __syncthreads();
    p[threadIdx.x] = static_cast<T>(tile[(threadIdx.x + kShift) % 128]);
}

template <int kCount>
__global__ void __launch_bounds__(1024) spilling_kernel(float* p, int n) {
    float a[kCount];
    for (int i = 0; i < kCount; ++i) { a[i] = p[i * 7 + threadIdx.x]; }
    for (int step = 0; step < n; ++step) {
#pragma unroll
        for (int i = 0; i < kCount; ++i) { a[i] = a[i] * a[(i + 13) % kCount] + a[(i * 5 + 3) % kCount]; }
    }
    for (int i = 0; i < kCount; ++i) { p[i * 1024 + threadIdx.x] = a[i]; }
}
"""
TWICE = "#pragma once\n\ntemplate <typename T>\n__device__ T twice(T value) {\n    return value + value;\n}\n"
TINY = Source({"shift.cu": KERNELS, "common/twice.cuh": TWICE})
SHIFTS = ("shift_kernel<__half, 1>", "shift_kernel<__nv_bfloat16, 2>", "shift_kernel<float, 3>")


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    return nvrtc.compile(TINY, "shift.cu", (*SHIFTS, "spilling_kernel<128>"), "sm_90")


def test_one_program_holds_every_expression(compiled: Compiled) -> None:
    assert (compiled.kind, compiled.image[:4]) == ("cubin", b"\x7fELF")
    symbols = [compiled.symbols[expression] for expression in SHIFTS]
    assert len(set(symbols)) == 3
    assert all(symbol.encode() in compiled.image for symbol in symbols)


@pytest.mark.parametrize("arch", [75, 80, 86, 89, 90, 100, 120])
def test_resources_are_read_for_every_arch(arch: int) -> None:
    if arch not in nvrtc.supported_archs():
        pytest.skip(f"this NVRTC does not compile for sm_{arch}")
    compiled = nvrtc.compile(TINY, "shift.cu", SHIFTS[:1], f"sm_{arch}")
    resources = compiled.resources[SHIFTS[0]]
    assert 4 <= resources.registers <= 40
    # Recent architectures keep the first kilobyte of shared memory for the system.
    assert resources.shared_bytes in (512, 512 + 1024)
    assert (resources.stack_bytes, resources.spill_store_bytes, resources.spill_load_bytes) == (0, 0, 0)


def test_spills_are_seen(compiled: Compiled) -> None:
    spilling = compiled.resources["spilling_kernel<128>"]
    assert min(spilling.stack_bytes, spilling.spill_store_bytes, spilling.spill_load_bytes) > 0
    assert compiled.resources[SHIFTS[0]].spill_store_bytes == 0


def test_the_same_text_compiles_to_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = nvrtc.compile(TINY, "shift.cu", SHIFTS[2:], "sm_90")
    (tmp_path / "common").mkdir()
    (tmp_path / "common" / "twice.cuh").write_text("#error a file on disk was compiled instead of the text in memory")
    monkeypatch.chdir(tmp_path)
    assert nvrtc.compile(TINY, "shift.cu", SHIFTS[2:], "sm_90").image == first.image


def test_ptx_is_compiled_for_a_virtual_architecture() -> None:
    compiled = nvrtc.compile(TINY, "shift.cu", SHIFTS[:1], "compute_90")
    assert compiled.kind == "ptx"
    assert b".target sm_90" in compiled.image
    assert compiled.resources == {}
    assert compiled.symbols[SHIFTS[0]].encode() in compiled.image


def test_an_unknown_unit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"unit is 'shft\.cu', want one of shift\.cu$"):
        nvrtc.compile(TINY, "shft.cu", SHIFTS, "sm_90")


def message_of(source: Source, *expressions: str) -> str:
    with pytest.raises(CompileError) as caught:
        nvrtc.compile(source, "shift.cu", expressions, "sm_90")
    return str(caught.value)


def test_an_error_in_the_unit_shows_its_numbered_line() -> None:
    text = message_of(Source({**TINY.files, "shift.cu": KERNELS.replace("twice(", "thrice(")}), *SHIFTS)
    assert text.startswith("shift.cu does not compile for sm_90 with NVRTC ")
    assert all(f"    {expression}\n" in text for expression in SHIFTS)
    assert 'identifier "thrice" is undefined' in text
    assert "\nshift.cu:8\n" in text
    assert "\n>     8 |     tile[threadIdx.x] = thrice(static_cast<float>(p[threadIdx.x]));\n" in text
    assert "\n      7 |     __shared__ float tile[128];\n" in text
    shown = [number for number in range(1, 30) if f"\n  {number:5} |" in text.replace("\n>", "\n ")]
    assert shown == [5, 6, 7, 8, 9, 10, 11]


def test_an_error_in_a_header_shows_its_numbered_line() -> None:
    text = message_of(Source({**TINY.files, "common/twice.cuh": TWICE.replace("+ value", "+ valve")}), SHIFTS[0])
    assert "\ncommon/twice.cuh:5\n" in text
    assert "\n>     5 |     return value + valve;\n" in text
    assert "\n      4 | __device__ T twice(T value) {\n" in text
    assert "shift.cu:" not in text


def test_a_missing_header_shows_the_include() -> None:
    text = message_of(Source({"shift.cu": '#include "common/gone.cuh"\n'}), "shift_kernel")
    assert '\n>     1 | #include "common/gone.cuh"' in text


def test_an_expression_that_names_nothing_is_shown() -> None:
    text = message_of(TINY, SHIFTS[0], "shift_kernel<float>")
    assert "    shift_kernel<float>\n" in text
    assert "error" in text


def test_a_flood_of_errors_is_cut() -> None:
    text = message_of(Source({"shift.cu": "".join(f"int a{i} = b{i};\n" for i in range(50))}), "a0")
    assert text.count("\nshift.cu:") == nvrtc._EXCERPTS_SHOWN


CUDA_12 = """\
ptxas warning : Value of threads per SM for entry _Zb is out of range. .minnctapersm will be ignored
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Za' for 'sm_75'
ptxas info    : Function properties for _Za
ptxas         .     48 bytes stack frame, 92 bytes spill stores, 96 bytes spill loads
ptxas info    : Used 64 registers, used 0 barriers, 48 bytes cumulative stack size, 364 bytes cmem[0]
ptxas info    : Compile time = 26.836 ms
ptxas info    : Compiling entry function '_Zb' for 'sm_75'
ptxas info    : Function properties for _Zb
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 1 barriers, 512 bytes smem, 368 bytes cmem[0]
ptxas info    : Compile time = 2.058 ms
"""
CUDA_13 = """\
ptxas info    : 16 bytes gmem, 8 bytes cmem[4]
ptxas info    : Compiling entry function '_Za' for 'sm_120a'
ptxas info    : Function properties for '_Za'
    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 8 bytes cumulative stack size, 1024+16 bytes smem
ptxas info    : Compile time = 12.500 ms
"""
NOT_INLINED = """\
ptxas info    : Compiling entry function '_Za' for 'sm_90'
ptxas info    : Function properties for _Za
ptxas         .     256 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 28 registers, used 0 barriers, 256 bytes cumulative stack size
ptxas info    : Compile time = 22.177 ms
ptxas info    : Function properties for _Zcallee
ptxas         .     8 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
"""


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        pytest.param(CUDA_12, {"_Za": Resources(64, 48, 92, 96, 0), "_Zb": Resources(10, 0, 0, 0, 512)}, id="cuda-12"),
        pytest.param(CUDA_13, {"_Za": Resources(255, 8, 4, 12, 1040)}, id="cuda-13"),
        pytest.param(NOT_INLINED, {"_Za": Resources(28, 256, 4, 8, 0)}, id="not-inlined"),
        pytest.param("", {}, id="ptx"),
    ],
)
def test_ptxas_logs_are_read(log: str, expected: dict[str, Resources]) -> None:
    assert nvrtc.parse_resources(log) == expected


CUDA_12_2 = (50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90)
CUDA_12_9 = (*CUDA_12_2, 100, 101, 103, 120, 121)
CUDA_13_0 = (75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121)


@pytest.mark.parametrize(
    ("supported", "device", "arch"),
    [
        (CUDA_12_9, 90, "sm_90"),
        (CUDA_13_0, 75, "sm_75"),
        (CUDA_12_9, 87, "sm_87"),
        (CUDA_12_9, 88, "sm_86"),
        (CUDA_13_0, 122, "sm_121"),
        (CUDA_12_9, 102, "sm_100"),
        (CUDA_12_2, 100, "compute_90"),
        (CUDA_12_2, 120, "compute_90"),
        (CUDA_12_2, 101, "compute_90"),
        ((80, 86, 90), 87, "compute_86"),
        ((87,), 89, "compute_87"),
        (CUDA_13_0, 140, "compute_121"),
    ],
)
def test_a_device_gets_the_best_target(
    supported: tuple[int, ...], device: int, arch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvrtc, "supported_archs", lambda: supported)
    target = nvrtc.target(device)
    assert target.arch == arch
    assert target.kind == ("cubin" if arch.startswith("sm_") else "ptx")


def test_a_device_below_everything_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "supported_archs", lambda: (80, 86, 90))
    monkeypatch.setattr(nvrtc, "version", lambda: (14, 0))
    with pytest.raises(RuntimeError, match=r"compute_capability is 75, but NVRTC 14\.0 compiles for 80 and above"):
        nvrtc.target(75)


def test_a_device_below_what_kernels_need_is_refused() -> None:
    assert nvrtc.supported_archs()[0] >= nvrtc.LEAST_ARCH
    with pytest.raises(RuntimeError, match="compute_capability is 70, but kernels need 75 or more"):
        nvrtc.target(70)


def test_neither_approximate_arithmetic_nor_file_names_enter_the_image() -> None:
    options = nvrtc.options("sm_90")
    assert not [option for option in options if "fast" in option or "lineinfo" in option]
    assert "-std=c++17" in options
    assert options != nvrtc.options("sm_80")


@pytest.mark.parametrize(
    ("version", "options"), [((12, 8), ()), ((12, 9), ("--no-cache",)), ((13, 0), ("--no-cache",))]
)
def test_nvrtc_keeps_nothing_where_it_could(
    version: tuple[int, int], options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvrtc, "version", lambda: version)
    assert nvrtc._without_cache() == options


@pytest.mark.gpu
def test_ptxas_reports_on_a_program_every_time() -> None:
    import cupy

    # NVRTC has a cache only where the driver has been initialised.
    cupy.zeros(1)
    reports = [nvrtc.compile(TINY, "shift.cu", SHIFTS, "sm_90").resources.keys() for _ in range(3)]
    assert reports == [set(SHIFTS)] * 3
