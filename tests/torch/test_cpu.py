"""torch tensors on the CPU: computed by the references, in the memory that they have."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cuconv
from cuconv.bench.workloads import SMALL, workloads
from tests.torch import inputs
from tests.torch.inputs import as_array, as_tensor

torch = pytest.importorskip("torch", reason="torch is not installed")

ROOT = Path(cuconv.__file__).parents[1]


def as_tuple(results: Any) -> tuple[Any, ...]:
    return tuple(results) if isinstance(results, tuple) else (results,)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("function", [name for name in cuconv.OPERATORS if name in SMALL])
def test_tensors_give_what_numpy_arrays_give(function: str, dtype: str) -> None:
    workload = next(iter(workloads(SMALL, function, dtype=dtype)))
    plain = workload.host()
    tensors = {name: as_tensor(array.copy()) for name, array in workload.host().items()}
    wanted = getattr(cuconv, function)(**workload.call(plain))
    got = getattr(cuconv, function)(**workload.call(tensors))
    for name in workload.updated:
        np.testing.assert_array_equal(as_array(tensors[name]), plain[name])
    for one, other in zip(as_tuple(got), as_tuple(wanted), strict=True):
        if other is None:
            assert one is None
            continue
        assert isinstance(one, torch.Tensor) and str(one.dtype) == f"torch.{other.dtype}"
        np.testing.assert_array_equal(as_array(one), other)


@pytest.mark.parametrize("swap", [(), (1, 2), (0, 1)], ids=["contiguous", "channels last", "batch inside"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_results_lie_as_x_does(dtype: str, swap: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x, weight, bias, states = inputs.conv_inputs(dtype=getattr(torch, dtype), grad=False)
    if swap:
        x = x.transpose(*swap).contiguous().transpose(*swap)
    out, final = cuconv.causal_conv1d_fn(x, weight, bias, None, states, True, activation="silu")
    assert out.dtype == final.dtype == x.dtype and out.stride() == x.stride()
    wide = [each.double() for each in (x, weight, bias, states)]
    wanted, wanted_final = inputs.conv(*wide)
    torch.testing.assert_close(out.double(), wanted, rtol=0, atol=2 * torch.finfo(x.dtype).eps * wanted.abs().max())
    assert torch.equal(final.double(), wanted_final)


def test_the_result_of_an_expanded_tensor_is_contiguous() -> None:
    weight = torch.ones(6, 4)
    for x in (torch.ones(6, 9).expand(2, 6, 9), torch.ones(2, 1, 9).expand(2, 6, 9)):
        assert cuconv.causal_conv1d_fn(x, weight).is_contiguous()


def test_a_given_output_is_written() -> None:
    torch.manual_seed(0)
    x, weight, _, _ = inputs.conv_inputs(dtype=torch.bfloat16, grad=False)
    wide = torch.full((2, 6, 18), float("nan"), dtype=torch.bfloat16)
    out = wide[:, :, ::2]
    assert cuconv.causal_conv1d_fn(x, weight, out=out) is out
    assert torch.equal(out, cuconv.causal_conv1d_fn(x, weight)) and wide[:, :, 1::2].isnan().all()


def test_float64_takes_the_place_of_float32_everywhere() -> None:
    torch.manual_seed(0)
    u, delta, A, B, C, D, z, bias = inputs.scan_inputs(grad=False)
    out, state = cuconv.selective_scan_fn(u, delta, A, B, C, D, z, bias, True, True)
    wanted, wanted_state = inputs.scan(u, delta, A, B, C, D, z, bias, True)
    assert out.dtype == state.dtype == torch.float64
    torch.testing.assert_close(out, wanted, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(state, wanted_state, rtol=1e-12, atol=1e-12)
    with pytest.raises(TypeError, match=r"^A: got dtype float32; wanted float64$"):
        cuconv.selective_scan_fn(u, delta, A.float(), B, C)


def test_arrays_of_float64_are_still_refused() -> None:
    with pytest.raises(TypeError, match="float64"):
        cuconv.causal_conv1d_fn(np.zeros((1, 2, 3)), np.zeros((2, 4)))


def test_overlap_is_found_in_bytes_of_float64() -> None:
    memory = torch.zeros(100, dtype=torch.float64)
    x, out = memory[:40].view(1, 4, 10), memory[39:79].view(1, 4, 10)
    with pytest.raises(ValueError, match="out: got memory that overlaps x"):
        cuconv.causal_conv1d_fn(x, torch.zeros(4, 2, dtype=torch.float64), out=out)


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_an_update_is_seen_by_autograd(mode: Any) -> None:
    x, state, weight = torch.ones(2, 6), torch.zeros(2, 6, 3), torch.ones(6, 4)
    gradient = torch.ones(2, 6, 3, requires_grad=True)
    # What is saved with grad mode may be written without.
    product = (gradient * state).sum()
    with mode():
        cuconv.causal_conv1d_update(x, state, weight)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def test_a_given_output_that_was_saved_is_seen_by_autograd() -> None:
    x, weight, out = torch.ones(1, 6, 5), torch.ones(6, 4), torch.zeros(1, 6, 5)
    product = (torch.ones(1, 6, 5, requires_grad=True) * out).sum()
    with torch.no_grad():
        cuconv.causal_conv1d_fn(x, weight, out=out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def test_what_inference_mode_has_made_may_be_updated_in_every_mode() -> None:
    with torch.inference_mode():
        state = torch.zeros(2, 6, 3)
    for mode in (torch.inference_mode, torch.no_grad, torch.enable_grad):
        with mode():
            before = state.clone()
            cuconv.causal_conv1d_update(torch.ones(2, 6), state, torch.ones(6, 4))
            assert not torch.equal(state, before)


def test_a_tensor_on_another_device_is_named() -> None:
    with pytest.raises(ValueError, match="meta"):
        cuconv.causal_conv1d_fn(torch.ones(1, 2, 3, device="meta"), torch.ones(2, 4, device="meta"))


def test_a_tensor_whose_sign_is_kept_apart_is_refused() -> None:
    x = torch.ones(1, 2, 3, dtype=torch.complex64).conj().imag
    weight = torch.ones(2, 4)
    with pytest.raises(TypeError, match=r"^x: got a tensor to negate on reading; wanted its resolve_neg\(\)$"):
        cuconv.causal_conv1d_fn(x, weight)
    assert torch.equal(cuconv.causal_conv1d_fn(x.resolve_neg(), weight), torch.zeros(1, 2, 3))


def test_a_call_on_tensors_imports_nothing_for_autograd() -> None:
    program = (
        "import sys, torch, cuconv\n"
        "cuconv.causal_conv1d_fn(torch.ones(1, 2, 3), torch.ones(2, 4))\n"
        "assert 'cuconv.torch' not in sys.modules and 'cupy' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
