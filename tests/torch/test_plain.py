"""What causal-conv1d and mamba_ssm have beside their kernels, against cuconv's functions and against plain torch."""

from __future__ import annotations

import pytest

import cuconv
from tests.torch import inputs
from tests.torch.inputs import random

torch = pytest.importorskip("torch", reason="torch is not installed")

from cuconv.torch import Mamba, mamba_inner_fn, plain  # noqa: E402

CLOSE = {"rtol": 1e-10, "atol": 1e-12}


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("seqlen", [1, 2, 9])
@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("activation", [None, "silu"])
def test_convolution(seqlen: int, width: int, activation: str | None) -> None:
    x, weight, bias, states = inputs.conv_inputs(seqlen=seqlen, width=width)
    for given in (None, states):
        wanted = cuconv.causal_conv1d_fn(x, weight, bias, None, given, True, activation=activation)
        got = plain.causal_conv1d_ref(x, weight, bias, given, True, activation=activation)
        torch.testing.assert_close(got, wanted, **CLOSE)
        torch.testing.assert_close(
            plain.causal_conv1d_ref(x, weight, bias, given, activation=activation), wanted[0], **CLOSE
        )
    out = torch.empty_like(states)
    assert plain.causal_conv1d_ref(x.detach(), weight, bias, states, True, out)[1] is out
    torch.testing.assert_close(out, wanted[1], **CLOSE)


@pytest.mark.parametrize("state_len", [3, 5, 8])
@pytest.mark.parametrize("is_ring", [False, True])
@pytest.mark.parametrize("seqlen", [None, 1, 3])
def test_convolution_step(state_len: int, is_ring: bool, seqlen: int | None) -> None:
    if is_ring and state_len < 3 + (seqlen or 1):
        pytest.skip("A ring is not shorter than what it holds.")
    x = random(2, 6, grad=False) if seqlen is None else random(2, 6, seqlen, grad=False)
    state, weight, bias = random(2, 6, state_len, grad=False), random(6, 4, grad=False), random(6, grad=False)
    lengths = torch.tensor([2, 11], dtype=torch.int32) if is_ring else None
    states = [state.clone(), state.clone()]
    wanted = cuconv.causal_conv1d_update(x, states[0], weight, bias, "silu", lengths)
    got = plain.causal_conv1d_update_ref(x, states[1], weight, bias, "silu", lengths)
    torch.testing.assert_close(got, wanted, **CLOSE)
    torch.testing.assert_close(*states, **CLOSE)


def test_states_of_packed_sequences() -> None:
    x, borders = random(9, 6, grad=False), torch.tensor([0, 1, 1, 9])
    for state_len in (2, 5):
        wanted = cuconv.causal_conv1d_varlen_states(x, borders, state_len)
        torch.testing.assert_close(plain.causal_conv1d_varlen_states_ref(x, borders, state_len), wanted, **CLOSE)


def test_another_activation_is_an_error() -> None:
    x, weight, *_ = inputs.conv_inputs()
    with pytest.raises(NotImplementedError, match="activation must be None, silu, or swish"):
        plain.causal_conv1d_ref(x, weight, activation="gelu")


@pytest.mark.parametrize("kind", ["variable", "groups", "constant"])
def test_scan(kind: str) -> None:
    u, delta, A, B, C, D, z, bias = inputs.scan_inputs()
    if kind == "groups":
        B, C = random(2, 2, 3, 7), random(2, 2, 3, 7)
    elif kind == "constant":
        B, C = random(4, 3), random(4, 3)
    arguments = (u, delta, A, B, C, D, z, bias)
    wanted = cuconv.selective_scan_fn(*arguments, True, True)
    got = plain.selective_scan_ref(*arguments, True, True)
    torch.testing.assert_close(got, wanted, **CLOSE)
    gradients = (torch.autograd.grad(out.sin().sum() + last.sum(), arguments) for out, last in (got, wanted))
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(plain.selective_scan_ref(*arguments[:5]), cuconv.selective_scan_fn(*arguments[:5]))


@pytest.mark.parametrize("is_constant", [False, True])
def test_scan_of_complex_states(is_constant: bool) -> None:
    """It is a scan of as many states again, their conjugates."""
    u, delta, D = random(1, 2, 5), random(1, 2, 5), random(2)
    A = torch.complex(-random(2, 3, low=0.1), random(2, 3))
    B, C = (torch.complex(random(2, 3), random(2, 3)) for _ in range(2))
    if not is_constant:
        B, C = (torch.view_as_complex(random(1, 3, 5, 2)) for _ in range(2))
    given = [each if is_constant else torch.view_as_real(each).flatten(-2) for each in (B, C)]
    got = plain.selective_scan_ref(u, delta, A, *given, D)
    state, wanted = torch.zeros(1, 2, 6, dtype=A.dtype), []
    both = [torch.cat((each, each.conj()), dim=1) for each in (A, B, C)]
    for t in range(5):
        into, out_of = (each if is_constant else each[:, None, :, t] for each in both[1:])
        step = delta[:, :, t, None]
        state = torch.exp(step * both[0]) * state + step * u[:, :, t, None] * into
        wanted.append((state * out_of).sum(-1).real)
    torch.testing.assert_close(got, torch.stack(wanted, 2) + D[:, None] * u, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("has_heads", [False, True])
def test_state_step(has_heads: bool) -> None:
    rows, states, groups = ((4, 3), (4, 3, 5), (2,)) if has_heads else ((6,), (6, 5), ())
    state, x, dt, z = (random(2, *shape, grad=False) for shape in (states, rows, rows, rows))
    A, D, bias = random(*states, high=-0.1, grad=False), random(*rows, grad=False), random(*rows, grad=False)
    B, C = (random(2, *groups, 5, grad=False) for _ in range(2))
    both = [state.clone(), state.clone()]
    wanted = cuconv.selective_state_update(both[0], x, dt, A, B, C, D, z, bias, True)
    got = plain.selective_state_update_ref(both[1], x, dt, A, B, C, D, z, bias, True)
    torch.testing.assert_close(got, wanted, **CLOSE)
    torch.testing.assert_close(*both, **CLOSE)
    bare = [cuconv.selective_state_update, plain.selective_state_update_ref]
    torch.testing.assert_close(*(step(state.clone(), x, dt, A, B, C) for step in bare), **CLOSE)


@pytest.mark.parametrize("has_matrices", [False, True])
def test_inner_part(has_matrices: bool) -> None:
    block, xz = Mamba(8, d_state=4, dt_rank=3, dtype=torch.float64), random(2, 32, 9)
    x_weight = random(3 if has_matrices else 11, 16)
    B, C = (random(2, 4, 9), random(2, 4, 9)) if has_matrices else (None, None)
    biases = (None, None) if has_matrices else (random(4), random(4))
    arguments = (
        *(xz, block.conv1d.weight, block.conv1d.bias, x_weight, block.dt_proj.weight, block.out_proj.weight, random(8)),
        *(-block.A_log.exp(), B, C, block.D, block.dt_proj.bias, *biases),
    )
    torch.testing.assert_close(plain.mamba_inner_ref(*arguments), mamba_inner_fn(*arguments), **CLOSE)


def test_half_precision_is_computed_in_float32() -> None:
    given = inputs.scan_inputs()
    halves = [each.detach().to(torch.bfloat16) for each in given]
    wide = [each.float() for each in halves]
    got = plain.selective_scan_ref(*halves, True)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got, plain.selective_scan_ref(*wide, True).to(torch.bfloat16), rtol=0, atol=0)
