"""Engines' state updates: the order of arguments, and where states go."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import cuconv  # noqa: E402
from cuconv.engines import flashinfer, megatron, sglang, tensorrt_llm, vllm  # noqa: E402
from tests.engines.tensors import EACH_DEVICE, indices, normal, starts  # noqa: E402

HEADS, HEADDIM, STATES, SLOTS = 4, 3, 5, 12
BUFFERED = [sglang, tensorrt_llm]


def parameters(device: str) -> dict[str, Any]:
    """A, D and dt_bias with heads."""
    rows = (HEADS, HEADDIM)
    return {
        **{"A": -normal(device, *rows, STATES).abs(), "D": normal(device, *rows)},
        "dt_bias": normal(device, *rows, seed=1),
    }


def inputs(device: str, *tokens: int, seed: int = 0) -> dict[str, Any]:
    """x, dt, B, C and z of these leading sizes, with heads."""
    x, dt, z = (normal(device, *tokens, HEADS, HEADDIM, seed=seed + i) for i in range(3))
    B, C = (normal(device, *tokens, 2, STATES, seed=seed + i) for i in range(2))
    return {"x": x, "dt": dt, "B": B, "C": C, "z": z}


def states_after(state: Any, given: dict[str, Any], fixed: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """The state and the result after each token (tokens, …) of one sequence that starts from `state`."""
    state, after, outs = state[None].clone(), [], []
    for t in range(len(given["x"])):
        each = {name: value[t : t + 1] for name, value in given.items()}
        outs.append(cuconv.selective_state_update(state, **each, **fixed, dt_softplus=True)[0])
        after.append(state[0].clone())
    return after, outs


def close(got: Any, wanted: Any) -> None:
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


@EACH_DEVICE
def test_vllm_s_packed_states_go_to_a_slot_per_token(device: str) -> None:
    """The state comes from column a - 1 of the sequence's slots, and entry 0 of a destination stores nothing."""
    lengths, state = (2, 0, 3), normal(device, SLOTS, HEADS, HEADDIM, STATES)
    given, fixed, before = inputs(device, 5), parameters(device), state.clone()
    sources = indices(device, [0, 7, 0], [1, 0, 0], [3, 0, 0], [9, 9, 9])
    finals = indices(device, [2, 4, 0], [1, 1, 1], [5, 0, 6], [9, 9, 9])
    out = torch.full_like(given["x"], torch.nan)
    z, dt_bias = given["z"], fixed["dt_bias"]
    result = vllm.selective_state_update(
        *(state, given["x"], given["dt"], fixed["A"], given["B"], given["C"], fixed["D"], dt_bias, z, True),
        state_batch_indices=sources, dst_state_batch_indices=finals, out=out,
        num_accepted_tokens=indices(device, 2, 1, 0), cu_seqlens=starts(device, lengths),
    )  # fmt: skip
    assert result is None
    expected = before.clone()
    for tokens, source, slots in ((slice(0, 2), 7, (2, 4)), (slice(2, 5), 3, (5, 0, 6))):
        after, outs = states_after(before[source], {name: each[tokens] for name, each in given.items()}, fixed)
        close(out[tokens], torch.stack(outs))
        for slot, one in zip(slots, after, strict=True):
            if slot:
                expected[slot] = one
    close(state, expected)


@EACH_DEVICE
def test_vllm_reads_the_first_column_of_index_arrays_without_accepted_tokens(device: str) -> None:
    state, given, fixed = normal(device, SLOTS, HEADS, HEADDIM, STATES), inputs(device, 2), parameters(device)
    before, out = state.clone(), torch.empty_like(given["x"])
    vllm.selective_state_update(
        *(state, given["x"], given["dt"], fixed["A"], given["B"], given["C"], fixed["D"], fixed["dt_bias"]),
        z=given["z"], dt_softplus=True, out=out,
        state_batch_indices=indices(device, [3, 1], [0, 1], [1, 1]),
        dst_state_batch_indices=indices(device, [5, 1], [6, 1], [1, 1]),
    )  # fmt: skip
    after, outs = states_after(before[3], {name: each[:1] for name, each in given.items()}, fixed)
    expected = before.clone()
    expected[5] = after[0]
    close(state, expected)
    close(out[0], outs[0])
    assert not out[1].any()


@EACH_DEVICE
def test_head_less_states_may_be_packed_and_maps_float32_beside_16_bit_inputs(device: str) -> None:
    dim, half = HEADDIM, torch.bfloat16
    state, x, dt = normal(device, 2, dim, STATES), *(normal(device, 3, dim, seed=i, dtype=half) for i in range(2))
    A, D, dt_bias = -normal(device, dim, STATES).abs(), normal(device, dim), normal(device, dim, seed=1)
    B, C = (normal(device, 3, STATES, seed=i) for i in range(2))
    out, before = torch.empty_like(x), state.clone()
    vllm.selective_state_update(
        state, x, dt, A, B, C, D, dt_bias, dt_softplus=True, out=out, cu_seqlens=starts(device, (1, 2))
    )
    for slot, tokens in ((0, (0,)), (1, (1, 2))):
        one = before[slot : slot + 1].clone()
        for t in tokens:
            each = [value[t : t + 1] for value in (x.float(), dt.float())]
            wanted = cuconv.selective_state_update(one, *each, A, B[t : t + 1], C[t : t + 1], D, None, dt_bias, True)
            torch.testing.assert_close(out[t : t + 1].float(), wanted, rtol=2**-7, atol=1e-5)
        close(state[slot : slot + 1], one)


def test_vllm_needs_a_place_for_its_result() -> None:
    state, given, fixed = normal("cpu", SLOTS, HEADS, HEADDIM, STATES), inputs("cpu", 2), parameters("cpu")
    with pytest.raises(ValueError, match="out: got None; wanted an array"):
        vllm.selective_state_update(
            state, given["x"], given["dt"], fixed["A"], given["B"], given["C"], fixed["D"], fixed["dt_bias"]
        )


@EACH_DEVICE
@pytest.mark.parametrize("engine", BUFFERED)
@pytest.mark.parametrize("is_kept", [False, True])
def test_intermediate_states_need_slots_and_leave_the_update_alone(engine: Any, is_kept: bool, device: str) -> None:
    given, fixed = inputs(device, 2, 3), parameters(device)
    state = normal(device, SLOTS, HEADS, HEADDIM, STATES)
    before = state.clone()
    for slots in (None, indices(device, 4, -1)):
        state.copy_(before)
        buffer = torch.zeros(6, 3, HEADS, HEADDIM, STATES, device=device)
        out = torch.empty_like(given["x"])
        engine.selective_state_update(
            state, **given, **fixed, dt_softplus=True, state_batch_indices=slots, out=out,
            disable_state_update=is_kept, intermediate_states_buffer=buffer, cache_steps=3,
            intermediate_state_indices=indices(device, 5, 2),
        )  # fmt: skip
        expected, rows = before.clone(), torch.zeros_like(buffer)
        for i, slot in ((0, 0), (1, 1)) if slots is None else ((0, 4),):
            after, outs = states_after(before[slot], {name: each[i] for name, each in given.items()}, fixed)
            close(out[i], torch.stack(outs))
            if not is_kept:
                expected[slot] = after[-1]
            if slots is not None:
                rows[5] = torch.stack(after)
        close(state, expected)
        close(buffer, rows)


@EACH_DEVICE
@pytest.mark.parametrize("engine", BUFFERED)
def test_a_tree_s_states_follow_their_parents(engine: Any, device: str) -> None:
    """Tree 0 → 1, 2 and 1 → 3, with the parents as engines' convolutions write them, 0 for the first token's."""
    given, fixed = inputs(device, 1, 4), parameters(device)
    state = normal(device, SLOTS, HEADS, HEADDIM, STATES)
    before, out = state.clone(), torch.empty_like(given["x"])
    buffer = torch.zeros(3, 4, HEADS, HEADDIM, STATES, device=device)
    engine.selective_state_update(
        state, **given, **fixed, dt_softplus=True, state_batch_indices=indices(device, 7), out=out,
        disable_state_update=True, intermediate_states_buffer=buffer, cache_steps=4,
        retrieve_parent_token=indices(device, [0, 0, 0, 1]), intermediate_state_indices=indices(device, 2),
    )  # fmt: skip
    for path in ((0,), (0, 1), (0, 2), (0, 1, 3)):
        tokens = torch.tensor(path, device=device)
        after, outs = states_after(before[7], {name: each[0, tokens] for name, each in given.items()}, fixed)
        close(buffer[2, path[-1]], after[-1])
        close(out[0, path[-1]], outs[-1])
    assert torch.equal(state, before)


@EACH_DEVICE
def test_megatron_stores_states_by_slot_and_advances(device: str) -> None:
    given, fixed = inputs(device, 2, 3), parameters(device)
    state = normal(device, SLOTS, HEADS, HEADDIM, STATES)
    before, buffer = state.clone(), torch.zeros(SLOTS, 3, HEADS, HEADDIM, STATES, device=device)
    out = megatron.selective_state_update(
        state, **given, **fixed, dt_softplus=True, state_batch_indices=indices(device, 4, -2),
        intermediate_ssm_states=buffer,
    )  # fmt: skip
    after, outs = states_after(before[4], {name: each[0] for name, each in given.items()}, fixed)
    close(buffer[4], torch.stack(after))
    close(state[4], after[-1])
    close(out[0], torch.stack(outs))
    others = [slot for slot in range(SLOTS) if slot != 4]
    assert torch.equal(state[others], before[others]) and not buffer[others].any() and not out[1].any()


@EACH_DEVICE
@pytest.mark.parametrize("target", ["buffer", "slots"])
def test_flashinfer_stores_no_final_state_beside_intermediate_ones(target: str, device: str) -> None:
    given, fixed = inputs(device, 2, 3), parameters(device)
    state = normal(device, SLOTS, HEADS, HEADDIM, STATES)
    before, expected = state.clone(), state.clone()
    buffer = torch.zeros(2, 3, HEADS, HEADDIM, STATES, device=device)
    sources = torch.tensor([4, 9, 1], device=device)
    named: dict[str, Any] = {"intermediate_states_buffer": buffer}
    named["intermediate_state_indices"] = torch.tensor([1, 0], device=device)
    if target == "slots":
        named = {"dst_state_batch_indices": torch.tensor([[1, -1, 2], [3, 5, -1]], device=device)}
    out = flashinfer.selective_state_update(
        state, **given, **fixed, dt_softplus=True, state_batch_indices=sources, cache_steps=3, **named
    )
    for i, slot in ((0, 4), (1, 9)):
        after, outs = states_after(before[slot], {name: each[i] for name, each in given.items()}, fixed)
        close(out[i], torch.stack(outs))
        if target == "buffer":
            close(buffer[1 - i], torch.stack(after))
        for column, one in zip(((1, -1, 2), (3, 5, -1))[i], after, strict=True):
            if target == "slots" and column >= 0:
                expected[column] = one
    close(state, expected)


@EACH_DEVICE
def test_flashinfer_s_states_of_codes_have_scales(device: str) -> None:
    given, fixed = inputs(device, 2, 3), parameters(device)
    state = normal(device, SLOTS, HEADS, HEADDIM, STATES)
    scale = state.abs().amax(-1) / 32767
    codes, slots = (state / scale[..., None]).round().short(), torch.tensor([4, 9], device=device)
    buffer = torch.zeros(2, 3, HEADS, HEADDIM, STATES, dtype=torch.int16, device=device)
    scales = torch.zeros(2, 3, HEADS, HEADDIM, device=device)
    before = codes.clone()
    out = flashinfer.selective_state_update(
        codes, **given, **fixed, dt_softplus=True, state_batch_indices=slots, state_scale=scale,
        intermediate_states_buffer=buffer, intermediate_state_scales=scales, cache_steps=3,
        intermediate_state_indices=torch.tensor([0, 1], device=device),
    )  # fmt: skip
    for i, slot in enumerate((4, 9)):
        after, outs = states_after(state[slot], {name: each[i] for name, each in given.items()}, fixed)
        torch.testing.assert_close(out[i], torch.stack(outs), rtol=1e-3, atol=1e-3)
        stored = buffer[i].float() * scales[i][..., None]
        torch.testing.assert_close(stored, torch.stack(after), rtol=1e-3, atol=1e-3)
    assert torch.equal(codes, before)


@EACH_DEVICE
def test_flashinfer_drops_no_sequence_for_its_number(device: str) -> None:
    given, fixed = inputs(device, 2), parameters(device)
    state = normal(device, 2, HEADS, HEADDIM, STATES)
    before = state.clone()
    flashinfer.selective_state_update(state, **given, **fixed, dt_softplus=True, pad_slot_id=1)
    assert (state != before).flatten(1).any(1).all()


def by_head(given: dict[str, Any]) -> dict[str, Any]:
    """The same with one value a head of A, dt, dt_bias and D, as strides of 0 along a head's rows and elements."""
    firsts = {name: array[..., :1] for name, array in given.items() if name in ("dt", "dt_bias", "D")}
    firsts |= {name: array[:, :1, :1] for name, array in given.items() if name == "A"}
    return given | {name: array.expand_as(given[name]) for name, array in firsts.items()}


@EACH_DEVICE
@pytest.mark.parametrize("packed", [False, True])
def test_flashinfer_s_caller_moves_the_cursors_of_rings(packed: bool, device: str) -> None:
    """Live tokens are put in the state when those of a step would be more than the window with them."""
    tokens, window, slots = 2, 5, (4, 9, 1)
    rows, generator = window + tokens, torch.Generator().manual_seed(5)
    fixed, state = by_head(parameters(device)), normal(device, SLOTS, HEADS, HEADDIM, STATES)
    known = {slot: state[slot].clone() for slot in slots}
    rings = [
        torch.full((SLOTS, *sizes), torch.nan, device=device)
        for sizes in ((HEADS, rows, HEADDIM), (2, rows, STATES), (HEADS, rows))
    ]
    first, live = [3] * SLOTS, [0] * SLOTS
    for step in range(12):
        each = [by_head(inputs(device, tokens, seed=10 * step + i)) for i in range(len(slots))]
        lengths = [tokens, step % 2, 1] if packed else [tokens] * len(slots)
        each = [
            {name: array[:length] for name, array in one.items()} for one, length in zip(each, lengths, strict=True)
        ]
        whole = {name: [one[name] for one in each] for name in each[0]}
        if packed:
            named = {name: torch.cat(arrays)[None] for name, arrays in whole.items()}
            named |= {"cu_seqlens": starts(device, lengths), "max_seqlen": tokens}
            named["dt"] = named["dt"][..., :1].expand_as(named["x"])
        else:
            named = by_head({name: torch.stack(arrays) for name, arrays in whole.items()})
        out = torch.full_like(named["x"], torch.nan)
        before = state.clone()
        result = flashinfer.checkpointing_ssu(
            state, *rings, indices(device, *first), indices(device, *live), **named, **fixed, out=out,
            dt_softplus=True, state_batch_indices=indices(device, *slots), algorithm="monolith",
        )  # fmt: skip
        assert result is out
        outs = torch.split(out[0], lengths) if packed else list(out)
        for slot, one, got, length in zip(slots, each, outs, lengths, strict=True):
            after, wanted = states_after(known[slot], one, fixed)
            if length:
                torch.testing.assert_close(got, torch.stack(wanted), rtol=1e-4, atol=1e-4)
            is_full = live[slot] + length > window
            assert is_full != torch.equal(state[slot], before[slot])
            accepted = int(torch.randint(0, length + 1, (), generator=generator))
            if is_full:
                first[slot], live[slot] = (first[slot] + live[slot]) % rows, 0
            live[slot] += accepted
            known[slot] = [known[slot], *after][accepted]
    others = [slot for slot in range(SLOTS) if slot not in slots]
    assert torch.equal(state[others], normal(device, SLOTS, HEADS, HEADDIM, STATES)[others])


@EACH_DEVICE
@pytest.mark.parametrize("rounds", [0, 4])
def test_stochastic_rounding_draws_its_seed_of_torch_and_0_rounds_are_10(rounds: int, device: str) -> None:
    given, fixed = inputs(device, 2), parameters(device)
    states = [normal(device, 2, HEADS, HEADDIM, STATES, dtype=torch.float16) for _ in range(3)]
    outs = [torch.empty_like(given["x"]) for _ in range(3)]
    named = {"dt_softplus": True, "enable_stochastic_rounding": True, "cache_philox_rounds": rounds}
    for engine, state, out in zip((vllm, sglang), states, outs, strict=False):
        torch.manual_seed(3)
        engine.selective_state_update(state, **given, **fixed, out=out, **named)
    torch.manual_seed(3)
    seed = torch.randint(0, 2**32, (1,), device=device)
    cuconv.selective_state_update(
        states[2], **given, **fixed, dt_softplus=True, rand_seed=seed, philox_rounds=rounds or 10, out=outs[2]
    )
    assert torch.equal(states[0], states[2]) and torch.equal(states[1], states[2])
    assert torch.equal(outs[0], outs[2]) and torch.equal(outs[1], outs[2])


def test_what_a_state_update_cannot_mean_is_refused() -> None:
    given, fixed = inputs("cpu", 2, 3), parameters("cpu")
    state, slots = normal("cpu", SLOTS, HEADS, HEADDIM, STATES), indices("cpu", 4, 1)
    buffer = torch.zeros(6, 3, HEADS, HEADDIM, STATES)
    named = {"intermediate_states_buffer": buffer, "state_batch_indices": slots}
    with pytest.raises(ValueError, match="cache_steps: got 2; wanted 3"):
        sglang.selective_state_update(state, **given, **fixed, cache_steps=2, **named)
    with pytest.raises(ValueError, match="retrieve_parent_token"):
        sglang.selective_state_update(state, **given, **fixed, retrieve_parent_token=indices("cpu", [0, 0, 1]))
    with pytest.raises(ValueError, match="dst_state_batch_indices"):
        flashinfer.selective_state_update(state, **given, **fixed, dst_state_batch_indices=slots, **named)


def test_flashinfer_s_rings_need_room_for_a_call() -> None:
    given, fixed = by_head(inputs("cpu", 2, 3)), by_head(parameters("cpu"))
    state, zeros = normal("cpu", SLOTS, HEADS, HEADDIM, STATES), torch.zeros(SLOTS, dtype=torch.int32)
    rings, longer = (
        [torch.zeros(SLOTS, *sizes) for sizes in ((HEADS, rows, HEADDIM), (2, rows, STATES), (HEADS, rows))]
        for rows in (3, 4)
    )
    first = (state, *rings, zeros, zeros)
    with pytest.raises(ValueError, match="out: got None"):
        flashinfer.checkpointing_ssu(*first, **given, **fixed, out=None)
    with pytest.raises(ValueError, match="rows of x_cache: got 3; wanted more than the 3 tokens"):
        flashinfer.checkpointing_ssu(*first, **given, **fixed, out=torch.empty_like(given["x"]))
    with pytest.raises(ValueError, match="max_seqlen: got 2; wanted an int beside cu_seqlens, else None"):
        flashinfer.checkpointing_ssu(*first, **given, **fixed, out=torch.empty_like(given["x"]), max_seqlen=2)
    packed = {name: array[:1] for name, array in given.items()} | {"cu_seqlens": starts("cpu", [3]), "max_seqlen": -1}
    with pytest.raises(ValueError, match="max_seqlen: got -1; wanted at least 0"):
        flashinfer.checkpointing_ssu(*first, **packed, **fixed, out=torch.empty_like(packed["x"]))
    for live, what in ((zeros.long(), "dtype int64"), (zeros[1:], "shape"), (zeros.repeat(2)[::2], "strides")):
        with pytest.raises((TypeError, ValueError), match=f"prev_num_accepted_tokens: got {what}"):
            flashinfer.checkpointing_ssu(
                *(state, *longer, zeros, live), **given, **fixed, out=torch.empty_like(given["x"])
            )
