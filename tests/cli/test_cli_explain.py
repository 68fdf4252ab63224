"""`cuconv explain`: the launches as they are planned, what they take as the compiler says, predictions that add up."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

import cuconv
from cuconv.bench.gpus import EMPTY_KERNEL, KNOWN, REFERENCE, Gpu, as_known, present
from cuconv.bench.makers import called, parse
from cuconv.bench.occupancy import LIMITS, occupancy
from cuconv.bench.workloads import SMALL, workloads
from cuconv.cli import explain, main
from cuconv.cli.console import CANNOT, OK
from cuconv.jit import nvrtc
from cuconv.jit.build import build
from cuconv.runtime.abstract import launches_of
from cuconv.runtime.kernel import LoadedKernel
from tests.support.command_line import Capture


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture(autouse=True)
def cached(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUCONV_CACHE_DIR", str(folder))


def explained(capsys: Capture, *words: str) -> Any:
    assert main(["explain", *words, "--json"]) == OK
    return json.loads(capsys.readouterr().out)


def seconds_of(gpu: Gpu, nbytes: int) -> float:
    """For a copy; every known GPU has one."""
    seconds = gpu.copy_seconds(nbytes)
    assert seconds is not None
    return seconds


SCAN, SHAPE = "selective_scan_fn", "dim=64,seqlen=4096,contiguous=channels"


@pytest.mark.parametrize("arch", ["90", "sm_80"])
def test_launches_are_those_of_the_call(capsys: Capture, arch: str) -> None:
    value = explained(capsys, SCAN, "--shape", SHAPE, "--gpu", "H200", "--arch", arch)
    launches = launches_of(cuconv.selective_scan_fn, **parse(SCAN, SHAPE).abstract())
    assert value["sizes"]["dim"] == 64 and len(launches) == 3
    for found, (kernel, config, *_) in zip(value["launches"], launches, strict=True):
        assert found["kernel"] == kernel.expression and found["file"] == kernel.file
        assert list(found["parameters"]) == [each.name for each in fields(kernel)]
        assert (found["grid"], found["block"]) == (list(config.grid), list(config.block))
        assert found["dynamic_shared_bytes"] == config.shared_mem
        resources = build(kernel.file, kernel.expression, value["arch"]).resources
        assert resources is not None and found["resources"] == vars(resources)
        room = occupancy(value["arch"], config.block[0], resources.registers, resources.shared_bytes)
        assert room is not None and found["occupancy"]["blocks"] == room.blocks
        assert found["occupancy"]["waves"] == pytest.approx(config.grid[0] / (REFERENCE.multiprocessors * room.blocks))
    assert value["arch"] == int(arch.removeprefix("sm_"))


def test_text_has_what_json_has(capsys: Capture) -> None:
    words = ("causal_conv1d_fn", "--shape", "batch=8,dim=4096", "--gpu", "H200")
    value = explained(capsys, *words)
    assert main(["explain", *words]) == OK
    text = capsys.readouterr().out
    (launch,) = value["launches"]
    assert launch["kernel"] in text and "width=4  input_t=bfloat16" in text
    assert f"grid {launch['grid'][0]} x 1 x 1" in text and f"{launch['resources']['registers']} registers" in text
    assert f"limited by {launch['occupancy']['limited_by'][0]}" in text
    assert f"{launch['occupancy']['waves']:.2f} over {REFERENCE.multiprocessors} multiprocessors" in text
    assert f"{value['predicted']['seconds'] * 1e6:.1f} us, bound by memory: predicted, not measured" in text


@pytest.mark.parametrize(("dim", "bound", "launches"), [(5120, "exponentials", 1), (64, "memory", 3)])
def test_what_binds(capsys: Capture, dim: int, bound: str, launches: int) -> None:
    shape = SHAPE.replace("64", str(dim), 1)
    found = explained(capsys, SCAN, "--shape", shape, "--gpu", "H200")["predicted"]
    assert found["exponentials"] == dim * 4096 * 16 and found["bytes"] == parse(SCAN, shape).bytes_moved
    seconds = {"memory": seconds_of(REFERENCE, found["bytes"]), "exponentials": found["exponentials"] / 3.6e12}
    assert found["copy_seconds"] == pytest.approx(seconds["memory"])
    assert found["exponential_seconds"] == pytest.approx(seconds["exponentials"])
    assert found["bound_by"] == bound == max(seconds, key=seconds.__getitem__)
    assert found["seconds"] == pytest.approx(seconds[bound] + (launches - 1) * EMPTY_KERNEL)


def test_what_is_empty_launches_nothing(capsys: Capture) -> None:
    words = ["explain", "causal_conv1d_varlen_fn", "--shape", "sequences=0"]
    assert main(words) == OK
    text = capsys.readouterr().out
    assert "nothing is launched" in text and "at best" not in text
    assert main([*words, "--json"]) == OK
    value = json.loads(capsys.readouterr().out)
    assert value["launches"] == [] and value["predicted"]["seconds"] is None


def test_an_unknown_gpu_is_explained_as_far_as_it_is_known(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    # Newer than every NVRTC: it gets PTX, which has no registers.
    newer = replace(REFERENCE, name="N", capability=990, bandwidth=0.0, clock=0.0)
    monkeypatch.setattr(explain, "_gpu", lambda name: newer)
    assert main(["explain", "causal_conv1d_varlen_states"]) == OK
    text = capsys.readouterr().out
    assert "to PTX, which the driver compiles" in text and "nothing is predicted" in text
    value = explained(capsys, "causal_conv1d_varlen_states")
    assert value["launches"][0]["resources"] is None and value["predicted"]["seconds"] is None


def test_a_kernel_that_does_not_compile(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise nvrtc.CompileError("x.cu does not compile")

    monkeypatch.setattr("cuconv.jit.build.build", fail)
    assert main(["explain", "causal_conv1d_fn"]) == CANNOT
    assert "was not compiled: x.cu does not compile" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("capability", "threads", "registers", "shared_bytes", "blocks", "limited_by"),
    [
        # 64 * 32 registers a warp: eight in each quarter of 16384.
        (90, 128, 64, 0, 8, ("registers",)),
        # 33 * 32 rounded up to 1280: twelve in each quarter.
        (90, 128, 33, 0, 12, ("registers",)),
        # A warp of 8192: two in each quarter, eight in all, of which three make a block.
        (90, 96, 255, 0, 2, ("registers",)),
        (90, 1024, 32, 0, 2, ("registers", "threads")),
        (90, 32, 16, 0, 32, ("blocks",)),
        (86, 32, 16, 0, 16, ("blocks",)),
        (86, 256, 32, 0, 6, ("threads",)),
        # 48 KiB and the system's one of 228.
        (90, 128, 32, 48 * 1024, 4, ("shared memory",)),
        (120, 128, 32, 48 * 1024, 2, ("shared memory",)),
        (75, 128, 32, 32 * 1024, 2, ("shared memory",)),
        (90, 1024, 128, 0, 0, ("registers",)),
    ],
)
def test_occupancy(
    capability: int, threads: int, registers: int, shared_bytes: int, blocks: int, limited_by: tuple[str, ...]
) -> None:
    found = occupancy(capability, threads, registers, shared_bytes)
    assert found is not None
    assert (found.blocks, found.limited_by) == (blocks, limited_by)
    assert found.warps == blocks * threads // 32 <= found.most_warps


def test_limits_are_known_for_what_is_compiled() -> None:
    assert {arch for arch in nvrtc.supported_archs() if arch >= 70} <= LIMITS.keys()
    assert occupancy(64, 128, 32, 0) is None


def test_predictions_are_the_measurements_and_between_them() -> None:
    for mib, microseconds in ((1, 1.8), (8, 3.7), (64, 18.5), (512, 131.0)):
        assert seconds_of(REFERENCE, mib * 2**20) == pytest.approx(microseconds * 1e-6)
    sizes = [int(2 ** (power / 4)) for power in range(160)]
    for gpu in KNOWN.values():
        times = [seconds_of(gpu, size) for size in sizes]
        assert times == sorted(times)
        # Never faster than the memory, and of much nearly as fast.
        floors = [size / gpu.bandwidth for size in sizes]
        assert all(time > floor for time, floor in zip(times, floors, strict=True))
        assert times[-1] == pytest.approx(floors[-1], rel=0.2)


def test_a_present_gpu_is_known_by_name_and_numbers() -> None:
    known = KNOWN["RTX4090"]
    same = replace(known, name="NVIDIA GeForce RTX 4090", bandwidth=known.bandwidth * 1.02, clock=2.6e9)
    assert as_known(same) == replace(known, name=same.name)
    assert as_known(replace(same, bandwidth=0.0)).bandwidth == known.bandwidth
    for other in (replace(same, multiprocessors=114), replace(same, bandwidth=7e11), replace(same, name="RTX 4080")):
        assert as_known(other) == other


@pytest.mark.gpu
def test_the_present_gpu() -> None:
    from cupy import cuda

    gpu, device = present(), cuda.Device()
    assert gpu.multiprocessors == device.attributes["MultiProcessorCount"]
    assert str(gpu.capability) == device.compute_capability
    copied = gpu.copy_seconds(2**30)
    assert copied is None or 1e-4 < copied < 1e-1


@pytest.mark.gpu
def test_the_driver_counts_as_many_blocks() -> None:
    from cupy import cuda
    from cupy_backends.cuda.api import driver

    capability = int(cuda.Device().compute_capability)
    for function in SMALL:
        for workload in workloads(SMALL, function):
            for kernel, config, *_ in launches_of(called(workload), **workload.abstract()):
                resources = build(kernel.file, kernel.expression, capability).resources
                loaded: LoadedKernel = kernel.load(0)
                if resources is not None:
                    found = occupancy(capability, config.block[0], resources.registers, resources.shared_bytes)
                    counted = driver.occupancyMaxActiveBlocksPerMultiprocessor(loaded._pointer, config.block[0], 0)
                    assert found is not None and found.blocks == counted, kernel.expression
