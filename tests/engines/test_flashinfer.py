"""Where FlashInfer's functions put states, the axes that they add, and what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import cuconv  # noqa: E402
from cuconv.engines import flashinfer  # noqa: E402
from tests.engines.tensors import EACH_DEVICE, indices, normal  # noqa: E402

HEADS, HEADDIM, STATES, SLOTS = 2, 4, 8, 10


def steps(device: str, *tokens: int) -> dict[str, Any]:
    """The arguments of a step for tokens of these leading sizes, but for its states."""
    x, dt = (normal(device, *tokens, HEADS, HEADDIM, seed=seed) for seed in range(2))
    B, C = (normal(device, *tokens, 1, STATES, seed=seed) for seed in range(2))
    A, D = -normal(device, HEADS, HEADDIM, STATES).abs(), normal(device, HEADS, HEADDIM)
    return {"x": x, "dt": dt, "A": A, "B": B, "C": C, "D": D, "dt_softplus": True}


def pool(device: str) -> Any:
    return normal(device, SLOTS, HEADS, HEADDIM, STATES, seed=5)


def written(before: Any, after: Any) -> list[int]:
    """The slots that have been written."""
    return [slot for slot in range(len(before)) if not torch.equal(before[slot], after[slot])]


@EACH_DEVICE
@pytest.mark.parametrize("destination", ["source", "slots"])
def test_the_last_state_of_accepted_tokens_goes_to_one_slot(destination: str, device: str) -> None:
    """Without a slot for the state after each token, num_accepted_tokens only says where a sequence starts."""
    given, state = steps(device, 2, 3), pool(device)
    sources, accepted = indices(device, [1, 2, 3], [4, 5, 6]), indices(device, 2, 0)
    targets = {"source": [2, 4], "slots": [7, 9]}[destination]
    got, wanted = state.clone(), state.clone()
    named = {} if destination == "source" else {"dst_state_batch_indices": indices(device, *targets)}
    out = flashinfer.selective_state_update(
        got, **given, state_batch_indices=sources, num_accepted_tokens=accepted, cache_steps=3, **named
    )
    starts, ends = indices(device, 2, 4), indices(device, *targets)
    expected = cuconv.selective_state_update(wanted, **given, state_batch_indices=starts, dst_state_batch_indices=ends)
    assert torch.equal(out, expected) and torch.equal(got, wanted) and written(state, got) == sorted(targets)


@EACH_DEVICE
def test_slots_for_several_tokens_are_written_whatever_is_disabled(device: str) -> None:
    given, state = steps(device, 2, 3), pool(device)
    got = state.clone()
    targets = indices(device, [2, 3, 7], [5, 6, 0])
    flashinfer.selective_state_update(
        got,
        **given,
        state_batch_indices=indices(device, 1, 4),
        dst_state_batch_indices=targets,
        disable_state_update=True,
        cache_steps=3,
    )
    assert written(state, got) == [0, 2, 3, 5, 6, 7]


@EACH_DEVICE
def test_a_single_token_without_cache_steps_ignores_the_buffer(device: str) -> None:
    given, state = steps(device, 2), pool(device)
    got, buffer = state.clone(), torch.zeros(SLOTS, 1, HEADS, HEADDIM, STATES, device=device)
    flashinfer.selective_state_update(
        got, **given, intermediate_states_buffer=buffer, num_accepted_tokens=indices(device, 3, 2)
    )
    assert written(state, got) == [0, 1] and not buffer.any()
    got = state.clone()
    out = flashinfer.selective_state_update(got, **given, intermediate_states_buffer=buffer, cache_steps=1)
    assert out.shape == (2, 1, HEADS, HEADDIM) and torch.equal(got, state) and buffer[:2].any()


def test_cache_steps_may_be_a_number_of_numpy() -> None:
    given, state = steps("cpu", 2, 3), pool("cpu")
    got, wanted = state.clone(), state.clone()
    out = flashinfer.selective_state_update(got, **given, cache_steps=np.int64(3))  # type: ignore[arg-type]
    assert torch.equal(out, flashinfer.selective_state_update(wanted, **given, cache_steps=3))
    assert torch.equal(got, wanted)


@EACH_DEVICE
@pytest.mark.parametrize("axes", ["state", "state and out", "all but state"])
def test_arrays_without_heads_stand_for_one(axes: str, device: str) -> None:
    """The result has the axis of heads, as FlashInfer's, unless the caller gives one without."""
    state = normal(device, SLOTS, 1, HEADDIM, STATES)
    x, dt = (normal(device, 3, 1, HEADDIM, seed=seed) for seed in range(2))
    B, C = (normal(device, 3, 1, STATES, seed=seed) for seed in range(2))
    A, D = -normal(device, 1, HEADDIM, STATES).abs(), normal(device, 1, HEADDIM)
    wanted = state.clone()
    expected = cuconv.selective_state_update(wanted, x, dt, A, B, C, D)
    got, out = state.clone(), torch.empty_like(x[:, 0]) if axes == "state and out" else None
    pool_of_one = got if axes == "all but state" else got[:, 0]
    rest = x[:, 0], dt[:, 0], A[0], B[:, 0], C[:, 0], D[0]
    result = flashinfer.selective_state_update(pool_of_one, *rest, out=out)
    assert torch.equal(got, wanted) and torch.equal(result.view_as(expected), expected)
    assert result is out if out is not None else result.shape == expected.shape


@pytest.mark.parametrize(
    ("named", "error"),
    [
        ({"algorithm": "fast"}, "algorithm: got 'fast'; wanted one of auto"),
        ({"backend": "triton"}, "backend: got 'triton'; wanted one of auto, flashinfer, cake"),
        ({"cache_steps": -1}, "cache_steps: got -1; wanted an int, at least 0"),
        ({"cache_steps": None}, "cache_steps: got None; wanted an int, at least 0"),
        ({"x": None}, "x: got (a NoneType|None)"),
        ({"cache_steps": 2, "intermediate_states_buffer": torch.zeros(2, 3, HEADS, HEADDIM, STATES)}, "cache_steps"),
        ({"num_accepted_tokens": torch.ones(2, dtype=torch.int32)}, "num_accepted_tokens: got an array; wanted None"),
    ],
)
def test_what_a_step_cannot_mean_is_refused(named: dict[str, Any], error: str) -> None:
    state = pool("cpu")
    before = state.clone()
    with pytest.raises((TypeError, ValueError), match=f"^{error}"):
        flashinfer.selective_state_update(state, **{**steps("cpu", 2, 3), **named})
    assert torch.equal(state, before)


def checkpointed(**named: Any) -> Any:
    """A checkpointing step of two sequences of two tokens, with other arguments in the place of some."""
    zeros = torch.zeros(SLOTS, dtype=torch.int32)
    given = steps("cpu", 2, 2)
    given["A"] = given["A"][:, :1, :1].expand(HEADS, HEADDIM, STATES)
    given["dt"] = given["dt"][..., :1].expand(2, 2, HEADS, HEADDIM)
    rings = {
        "x_cache": torch.zeros(SLOTS, HEADS, 8, HEADDIM),
        "B_cache": torch.zeros(SLOTS, 1, 8, STATES),
        "dt_cache": torch.zeros(SLOTS, HEADS, 8),
    }
    cursors = {"ring_start": zeros, "prev_num_accepted_tokens": zeros.clone()}
    every = {"state": pool("cpu"), **rings, **cursors, **given, "out": torch.empty_like(given["x"])}
    return flashinfer.checkpointing_ssu(**{**every, **named})


@pytest.mark.parametrize(
    ("named", "error"),
    [
        ({"algorithm": "simple"}, "algorithm: got 'simple'; wanted one of auto, monolith, two-kernel"),
        ({"algorithm": "two-kernel"}, "cb_scaled: got None; wanted an array"),
        ({"cb_scaled": torch.zeros(1)}, "cb_scaled, cumAdt_vec and cb_old: got some of them"),
        ({"d_split": 7}, "d_split: got 7; wanted 1, 2 or None"),
        ({"x_cache": None}, "x_cache: got a NoneType; wanted a torch tensor"),
        ({"x_cache": torch.zeros(SLOTS, HEADS, 8, HEADDIM, dtype=torch.float16)}, "x_cache: got dtype float16"),
        ({"B_cache": torch.zeros(SLOTS, 1, 7, STATES)}, "B_cache: got shape"),
        ({"prev_num_accepted_tokens": None}, "prev_num_accepted_tokens: got a NoneType; wanted a torch tensor"),
        ({"ring_start": torch.zeros(SLOTS)}, "ring_start: got dtype float32; wanted int32"),
        (
            {"cu_seqlens": torch.tensor([0, 2, 4], dtype=torch.int32), "max_seqlen": 2},
            r"x: got shape \(2, 2, 2, 4\); wanted a batch of 1 beside cu_seqlens",
        ),
    ],
)
def test_what_a_checkpointing_step_cannot_mean_is_refused(named: dict[str, Any], error: str) -> None:
    assert checkpointed().shape == (2, 2, HEADS, HEADDIM)
    with pytest.raises((TypeError, ValueError), match=f"^{error}"):
        checkpointed(**named)


@pytest.mark.parametrize("kind", [ValueError, AssertionError])
@pytest.mark.parametrize("tokens", [17, 27, 55])
def test_more_tokens_than_a_call_takes_are_refused_as_flashinfer_does(tokens: int, kind: type[Exception]) -> None:
    """FlashInfer asserts, and its test knows the error by "at most 16 cache tokens"; rings have twice the tokens."""
    rows, given = 2 * tokens, steps("cpu", 2, tokens)
    given["A"] = given["A"][:, :1, :1].expand(HEADS, HEADDIM, STATES)
    given["dt"] = given["dt"][..., :1].expand(2, tokens, HEADS, HEADDIM)
    rings = {
        "x_cache": torch.zeros(SLOTS, HEADS, rows, HEADDIM),
        "B_cache": torch.zeros(SLOTS, 1, rows, STATES),
        "dt_cache": torch.zeros(SLOTS, HEADS, rows),
    }
    out = torch.ones_like(given["x"])
    with pytest.raises(kind, match=f"^tokens of x: got {tokens}; wanted at most 16 cache tokens in a call$"):
        checkpointed(**given, **rings, out=out)
    assert (out == 1).all() and not any(ring.any() for ring in rings.values())
