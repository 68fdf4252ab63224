"""vLLM's functions of versions before 0.20: a slot marks padding, block 0 is like any other, z is before dt_bias."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from cuconv.engines import vllm, vllm_0_19  # noqa: E402
from tests.engines.tensors import EACH_DEVICE, indices, normal, starts  # noqa: E402

DIM, WIDTH, SLOTS, PAD = 6, 4, 5, -1
LENGTHS = 3, 4, 2


@EACH_DEVICE
def test_a_prefill_keeps_block_0_and_drops_the_padding_slot(device: str) -> None:
    x, weight, pool = (normal(device, *sizes) for sizes in ((DIM, 9), (DIM, WIDTH), (SLOTS, DIM, WIDTH - 1)))
    goes_on, expected_pool = torch.tensor([True, False, True], device=device), pool.clone()
    out = vllm_0_19.causal_conv1d_fn(
        *(x, weight, None, pool, starts(device, LENGTHS), indices(device, 0, PAD, 3), goes_on),
        metadata="any",
    )
    expected = vllm.causal_conv1d_fn(
        *(x, weight, None, expected_pool, starts(device, LENGTHS), indices(device, 0, 2, 3), goes_on),
        null_block_id=2,
    )
    assert torch.equal(out, expected) and not out[:, 3:7].any()
    assert torch.equal(pool, expected_pool)


@EACH_DEVICE
def test_a_step_keeps_block_0_and_drops_the_padding_slot(device: str) -> None:
    x, weight, pool = (normal(device, *sizes) for sizes in ((2, DIM), (DIM, WIDTH), (SLOTS, DIM, WIDTH - 1)))
    given, before = x.clone(), pool.clone()
    out = vllm_0_19.causal_conv1d_update(x, pool, weight, None, "silu", indices(device, 0, PAD))
    expected = vllm.causal_conv1d_update(given[:1].clone(), before, weight, None, "silu", null_block_id=None)
    assert out is x and torch.equal(out, torch.cat((expected, given[1:]))) and torch.equal(pool, before)


@EACH_DEVICE
def test_a_state_update_takes_z_before_dt_bias_and_keeps_block_0(device: str) -> None:
    state, x, dt, z = (normal(device, *sizes) for sizes in ((SLOTS, DIM, 4), (2, DIM), (2, DIM), (2, DIM)))
    A, B, C = -normal(device, DIM, 4).abs(), normal(device, 2, 4), normal(device, 2, 4, seed=1)
    D, bias, before = normal(device, DIM), normal(device, DIM, seed=1), state.clone()
    out, expected = torch.empty_like(x), torch.empty_like(x)
    vllm_0_19.selective_state_update(
        *(state, x, dt, A, B, C, D, z, bias), dt_softplus=True, state_batch_indices=indices(device, 0, PAD), out=out
    )
    vllm.selective_state_update(
        *(before, x, dt, A, B, C, D, bias),
        z=z,
        dt_softplus=True,
        state_batch_indices=indices(device, 0, 1),
        null_block_id=1,
        out=expected,
    )
    assert torch.equal(out, expected) and not out[1].any() and torch.equal(state, before)


@EACH_DEVICE
def test_a_scan_keeps_block_0_and_drops_the_padding_slot(device: str) -> None:
    u, delta, states = (normal(device, *sizes) for sizes in ((DIM, 9), (DIM, 9), (SLOTS, DIM, 4)))
    A, B, C = -normal(device, DIM, 4).abs(), normal(device, 4, 9), normal(device, 4, 9, seed=1)
    given, before = delta.clone(), states.clone()
    named = {"query_start_loc": starts(device, LENGTHS), "delta_softplus": True}
    out = vllm_0_19.selective_scan_fn(u, states, delta, A, B, C, cache_indices=indices(device, 0, PAD, 3), **named)
    expected = vllm.selective_scan_fn(
        u, before, given, A, B, C, cache_indices=indices(device, 0, 2, 3), null_block_id=2, **named
    )
    assert out is delta and torch.equal(out, expected) and torch.equal(states, before)


def test_errors_name_the_arguments_of_these_versions() -> None:
    x, weight, pool = (normal("cpu", *sizes) for sizes in ((DIM, 9), (DIM, WIDTH), (SLOTS, DIM, WIDTH - 1)))
    with pytest.raises(TypeError, match="pad_slot_id: got 'none'; wanted an int"):
        vllm_0_19.causal_conv1d_fn(
            *(x, weight, None, pool, starts("cpu", LENGTHS), indices("cpu", 0, 1, 2)),
            pad_slot_id="none",  # type: ignore[arg-type]
        )


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of convolutions in the place of vLLM's, without its functions."""
    names = ["vllm", "model_executor", "layers", "mamba", "ops", "causal_conv1d"]
    for end in range(1, len(names) + 1):
        module = ModuleType(".".join(names[:end]))
        module.__path__ = []
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def test_what_older_versions_lack_at_the_end_does_not_matter(installed: ModuleType) -> None:
    def causal_conv1d_fn(x: Any, weight: Any, bias: Any, conv_states: Any, query_start_loc: Any) -> None: ...

    installed.__dict__["causal_conv1d_fn"] = causal_conv1d_fn
    assert vllm_0_19.install() == ("vllm.model_executor.layers.mamba.ops.causal_conv1d.causal_conv1d_fn",)
    assert installed.__dict__["causal_conv1d_fn"] is vllm_0_19.causal_conv1d_fn
    assert vllm_0_19.install() == ()


def test_a_version_with_other_arguments_stays_as_it_is(installed: ModuleType) -> None:
    def causal_conv1d_update(x: Any, conv_state: Any, weight: Any, cache_seqlens: Any) -> None:
        """Versions before 0.12 have other arguments."""

    given = {"causal_conv1d_fn": vllm.causal_conv1d_fn, "causal_conv1d_update": causal_conv1d_update}
    installed.__dict__.update(given)
    with pytest.warns(RuntimeWarning, match="has other arguments, and is not replaced"):
        assert vllm_0_19.install() == ()
    assert {name: installed.__dict__[name] for name in given} == given
