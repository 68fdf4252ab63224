"""A machine with a GPU: workloads on it, torch tensors over CuPy's memory, and how calls on them are timed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cuconv.bench import device, measure
from cuconv.bench.machine import Machine
from cuconv.bench.peers import tensors
from cuconv.bench.workloads import SMALL, workloads

LARGEST_OF_EACH = [max(workloads(SMALL, function), key=lambda workload: workload.bytes_moved) for function in SMALL]
"""The smaller a call, the more sets of its arrays find the L2 cache cold."""


@pytest.fixture
def torch() -> Any:
    found = pytest.importorskip("torch")
    if not found.cuda.is_available():
        pytest.skip("torch finds no CUDA device")
    return found


@pytest.mark.gpu
@pytest.mark.parametrize("workload", LARGEST_OF_EACH, ids=lambda workload: workload.function)
def test_on_a_gpu(workload: Any) -> None:
    machine = Machine(quick=True)
    (row,) = measure.kernels(machine, workload, [])
    assert row.is_right, row.note
    assert row.kernel_us is not None and 0.1 < row.kernel_us.p50 < 1e5
    assert row.fraction_of_copy is not None and 0.001 < row.fraction_of_copy < 2
    assert all(0.1 < host.host_us < 1e5 for host in measure.hosts(machine, workload, row.kernel_us.p50))
    assert machine.header().compute_capability >= 70


@pytest.mark.gpu
@pytest.mark.parametrize("workload", LARGEST_OF_EACH, ids=lambda workload: workload.function)
def test_torch_tensors_lie_where_cupy_arrays_do(workload: Any, torch: Any) -> None:
    for name, array in device.arrays(workload).items():
        tensor = tensors.to_torch(array)
        back = tensors.to_cupy(tensor)
        assert tensor.data_ptr() == array.data.ptr == back.data.ptr
        assert (back.shape, back.strides, back.dtype) == (array.shape, array.strides, array.dtype)
        # With strides of its own: those of axes of length 1 can be any, and bytes need a last one of 1.
        host = tensor.clone(memory_format=torch.contiguous_format).view(torch.uint8).cpu().numpy()
        assert host.tobytes() == np.ascontiguousarray(device.fetch(array)).tobytes(), name


@pytest.mark.gpu
def test_calls_on_torch_are_timed_in_a_graph_as_ours_are(torch: Any) -> None:
    x = torch.ones(2**20, device="cuda")
    captured, note = tensors.times([lambda: x + 1, lambda: x * 2], 3)
    assert len(captured) == 3 and min(captured) > 0 and note == ""
    reads, note = tensors.times([lambda: x.sum().item()], 3)
    assert len(reads) == 3 and min(reads) > 0 and note == tensors.NOT_CAPTURED
