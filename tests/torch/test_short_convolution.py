"""The short convolution of flash-linear-attention beside the same mathematics in plain torch."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.torch import inputs
from tests.torch.inputs import random

torch = pytest.importorskip("torch", reason="torch is not installed")

from cuconv.torch import ShortConvolution  # noqa: E402


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def short(width: int = 4, **options: Any) -> Any:
    return ShortConvolution(6, width, dtype=torch.float64, **options)


@pytest.mark.parametrize(("bias", "activation"), list(itertools.product([False, True], [None, "silu"])))
def test_short_convolution(bias: bool, activation: str | None) -> None:
    layer, x, residual, mask = (
        short(bias=bias, activation=activation),
        random(2, 9, 6),
        random(2, 9, 6),
        torch.ones(2, 9),
    )
    mask[0, :3] = 0
    before = x.detach().clone()
    got, state = layer(x, residual, mask, output_final_state=True)
    masked = x * mask[:, :, None]
    wanted, _ = inputs.conv(masked.transpose(1, 2), layer.weight.squeeze(1), layer.bias, silu=activation is not None)
    torch.testing.assert_close(got, wanted.transpose(1, 2) + residual)
    assert torch.equal(x, before) and not state[:, :, 0].any()
    assert torch.equal(state[:, :, 1:], masked.transpose(1, 2)[:, :, -3:])
    for one, other in zip(
        torch.autograd.grad(got.square().sum() + state.sum(), (x, residual, layer.weight)),
        torch.autograd.grad(
            (wanted.transpose(1, 2) + residual).square().sum() + masked[:, -3:].sum(), (x, residual, layer.weight)
        ),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("tokens", [1, 2, 3, 9])
def test_gradients_reach_the_state_before(tokens: int) -> None:
    layer, x, cache = short(), random(2, tokens, 6), random(2, 6, 4)
    got, state = layer(x, cache=cache, output_final_state=True)
    wanted, final = inputs.conv(x.transpose(1, 2), layer.weight.squeeze(1), None, cache[:, :, 1:])
    factors = torch.rand_like(state)
    got_gradients = torch.autograd.grad(got.sin().sum() + (state * factors).sum(), (x, cache, layer.weight))
    wanted_loss = wanted.sin().sum() + (final * factors[:, :, 1:]).sum()
    for one, other in zip(got_gradients, torch.autograd.grad(wanted_loss, (x, cache, layer.weight)), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("with_cache", [False, True])
def test_packed_sequences_are_rows(with_cache: bool) -> None:
    layer, x, starts = short(), random(1, 9, 6), torch.tensor([0, 2, 2, 9])
    cache = random(3, 6, 4) if with_cache else None
    got, state = layer(x, cache=cache, output_final_state=True, cu_seqlens=starts)
    outs, states = [], []
    for i, (begin, end) in enumerate(itertools.pairwise(starts.tolist())):
        before = None if cache is None else cache[i : i + 1, :, 1:]
        if end == begin:
            states.append(x.new_zeros(1, 6, 3) if before is None else before)
            continue
        out, final = inputs.conv(x[:, begin:end].transpose(1, 2), layer.weight.squeeze(1), None, before)
        outs.append(out.transpose(1, 2))
        states.append(final)
    torch.testing.assert_close(got, torch.cat(outs, 1))
    torch.testing.assert_close(state[:, :, 1:], torch.cat(states))
    arguments = (x, layer.weight) if cache is None else (x, layer.weight, cache)
    factors = torch.rand_like(state)
    loss = got.sin().sum() + (state * factors).sum()
    wanted = torch.cat(outs, 1).sin().sum() + (torch.cat(states) * factors[:, :, 1:]).sum()
    for one, other in zip(torch.autograd.grad(loss, arguments), torch.autograd.grad(wanted, arguments), strict=True):
        torch.testing.assert_close(one, other)


def test_tokens_of_a_decode_update_the_cache() -> None:
    layer, x = short(), random(2, 9, 6, grad=False)
    wanted, _ = layer(x)
    with torch.no_grad():
        first, cache = layer(x[:, :5], output_final_state=True)
        parts, same = [first], cache
        for t in range(5, 9):
            out, cache = layer(x[:, t : t + 1], cache=cache, output_final_state=True)
            assert cache is same
            parts.append(out)
        packed, _ = layer(x[:, 8:].transpose(0, 1), cache=torch.zeros(2, 6, 4).double(), cu_seqlens=torch.arange(3))
        assert packed.shape == (1, 2, 6)
    torch.testing.assert_close(torch.cat(parts, 1), wanted)


def test_a_cache_is_updated_only_where_autograd_does_not_follow() -> None:
    layer, x, cache = short(), random(2, 1, 6, grad=False), random(2, 6, 4, grad=False)
    before = cache.clone()
    _, states = layer(x, cache=cache, output_final_state=True)
    assert torch.equal(cache, before) and states is not cache
    layer.requires_grad_(False)
    _, updated = layer(x, cache=cache, output_final_state=True)
    assert updated is cache
    torch.testing.assert_close(cache[:, :, 1:], states[:, :, 1:])


@pytest.mark.parametrize("with_cache", [False, True])
@pytest.mark.parametrize("cu_seqlens", [None, torch.tensor([0, 1, 2])], ids=["rows", "packed"])
def test_states_after_are_returned_only_where_they_are_asked_for(cu_seqlens: Any, with_cache: bool) -> None:
    """Layers of flash-linear-attention tell by None that there is nothing to store."""
    layer = short()
    x = random(*((2, 1, 6) if cu_seqlens is None else (1, 2, 6)), grad=False)
    for call in (layer, layer.step):
        cache = random(2, 6, 4, grad=False) if with_cache else None
        before = None if cache is None else cache.clone()
        with torch.no_grad():
            out, states = call(x, cache=cache, cu_seqlens=cu_seqlens)
            wanted, after = call(x, cache=before, output_final_state=True, cu_seqlens=cu_seqlens)
        assert states is None and torch.equal(out, wanted)
        assert cache is None or torch.equal(cache, after)


@pytest.mark.parametrize("with_cache", [False, True])
@pytest.mark.parametrize("starts", [[0, 1, 2], [0, 2, 2], [0, 0, 2], [0, 0, 3, 3]], ids=str)
def test_as_many_tokens_as_sequences_may_be_packed_in_any_way(starts: list[int], with_cache: bool) -> None:
    sequences = len(starts) - 1
    layer, x, cu_seqlens = short(), random(1, sequences, 6, grad=False), torch.tensor(starts)
    cache = random(sequences, 6, 4, grad=False) if with_cache else None
    wanted, wanted_states = layer(x, None, None, cache, True, cu_seqlens)
    for call in (layer, layer.step):
        kept = None if cache is None else cache.clone()
        with torch.no_grad():
            got, states = call(x, cache=kept, output_final_state=True, cu_seqlens=cu_seqlens)
        torch.testing.assert_close(got, wanted)
        torch.testing.assert_close(states[:, :, 1:], wanted_states[:, :, 1:])
        assert kept is None or states is kept


def test_a_fused_projection_needs_no_copies() -> None:
    layer, qkv = short(), random(2, 9, 18)
    q = qkv[..., 6:12]
    got = torch.autograd.grad(layer(q)[0].mean(0).sum(), (qkv, layer.weight))
    wanted, _ = inputs.conv(q.transpose(1, 2), layer.weight.squeeze(1))
    for one, other in zip(got, torch.autograd.grad(wanted.mean(0).sum(), (qkv, layer.weight)), strict=True):
        torch.testing.assert_close(one, other)


def test_a_residual_of_more_bits_leaves_the_result_its_dtype() -> None:
    layer, x, residual = short().to(torch.bfloat16), random(1, 9, 6).to(torch.bfloat16), random(1, 9, 6).float()
    with torch.no_grad():
        alone, got = layer(x)[0], layer(x, residual)[0]
    assert got.dtype == torch.bfloat16
    assert torch.equal(got, (alone + residual).to(torch.bfloat16))


class Context:
    """What flash-linear-attention's layers get where a sequence is spread over devices."""


def test_bad_options() -> None:
    with pytest.raises(ValueError, match="mask: got a tensor; wanted None beside cu_seqlens"):
        short()(random(1, 9, 6), mask=torch.ones(1, 9), cu_seqlens=torch.tensor([0, 9]))
    with pytest.raises(ValueError, match="batch of x: got 2; wanted 1 beside cu_seqlens"):
        short()(random(2, 9, 6), cu_seqlens=torch.tensor([0, 9]))
    with pytest.raises(ValueError, match="cp_context: got a Context; wanted None: no tokens come from other devices"):
        short()(random(1, 9, 6), cp_context=Context())
    for named, wrong in (
        ({"x": random(9, 6)}, r"x: got shape \(9, 6\); wanted 3 axes"),
        ({"x": random(1, 9, 5)}, "hidden_size of x: got 5; wanted 6, the layer's"),
        ({"cache": random(6, 4)}, r"cache: got shape \(6, 4\); wanted \(1, 6, 4\)"),
        ({"x": random(1, 1, 6), "cache": random(2, 6, 4)}, r"cache: got shape \(2, 6, 4\); wanted \(1, 6, 4\)"),
        ({"residual": random(2, 1, 9, 6)}, r"residual: got shape \(2, 1, 9, 6\); wanted \(1, 9, 6\)"),
        ({"cu_seqlens": torch.tensor([[0, 9]])}, r"cu_seqlens: got shape \(1, 2\); wanted 1 axes"),
    ):
        with pytest.raises(ValueError, match=wrong):
            short()(**{"x": random(1, 9, 6), **named})
    with pytest.raises(ValueError, match="activation: got 'gelu'"):
        short(activation="gelu")


def test_what_prepares_kernels_elsewhere_is_ignored() -> None:
    layer, x = short(), random(1, 9, 6)
    wanted, _ = layer(x)
    starts, chunk_indices = torch.tensor([0, 9]), torch.zeros(1, 2, dtype=torch.int64)
    got, _ = layer(x, None, None, None, False, starts, chunk_indices, cu_seqlens_cpu=starts, cp_context=None)
    torch.testing.assert_close(got, wanted)
