"""Engines' prefill: where windows are, what pads, and which states a prefix cache keeps."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import cuconv  # noqa: E402
from cuconv.engines import (  # noqa: E402
    megatron,
    sgl_kernel,
    sglang,
    tensorrt_llm,
    tokenspeed,
    vllm,
)
from tests.engines.tensors import EACH_DEVICE, indices, last_inputs, letters, normal, starts, whole  # noqa: E402

DIM, WIDTH = 6, 4
LENGTHS = (7, 1, 5)


def packed(device: str, lengths: tuple[int, ...] = LENGTHS) -> tuple[Any, Any, Any]:
    """x (dim, total) with contiguous channels, weight and bias."""
    return normal(device, sum(lengths), DIM).T, normal(device, DIM, WIDTH, seed=1), normal(device, DIM, seed=2)


def each_sequence(x: Any, lengths: tuple[int, ...] = LENGTHS) -> list[Any]:
    return list(torch.split(x, lengths, dim=1))


TRITON = {
    "vllm": lambda *given, **named: vllm.causal_conv1d_fn(*given, **named),
    "sglang": lambda *given, **named: sglang.causal_conv1d_fn(*given, list(LENGTHS), **named),
    "tensorrt_llm": lambda *given, **named: tensorrt_llm.causal_conv1d_fn_triton(*given, list(LENGTHS), **named),
    "tokenspeed": lambda *given, **named: tokenspeed.causal_conv1d_fn(*given, seq_lens_cpu=list(LENGTHS), **named),
}


@EACH_DEVICE
@pytest.mark.parametrize("engine", TRITON)
@pytest.mark.parametrize("activation", [True, "silu", "swish"])
def test_the_window_is_in_the_first_columns_of_a_longer_pool(engine: str, activation: Any, device: str) -> None:
    x, weight, bias = packed(device)
    pool = normal(device, 9, DIM, WIDTH + 2, seed=3)
    before, slots = pool.clone(), indices(device, 4, 1, 7)
    has = torch.tensor([False, True, True], device=device)
    out = TRITON[engine](
        *(x, weight, bias, pool, starts(device, LENGTHS)),
        cache_indices=slots, has_initial_state=has, activation=activation,
    )  # fmt: skip
    for i, tokens in enumerate(each_sequence(x)):
        slot, window = int(slots[i]), before[slots[i], :, : WIDTH - 1] * float(has[i])
        joined = torch.cat((window, tokens), 1)
        assert torch.equal(each_sequence(out)[i], whole(joined, weight, bias)[:, WIDTH - 1 :])
        assert torch.equal(pool[slot, :, : WIDTH - 1], joined[:, 1 - WIDTH :])
    assert torch.equal(pool[:, :, WIDTH - 1 :], before[:, :, WIDTH - 1 :])
    assert torch.equal(pool[[0, 2, 3, 5, 6, 8]], before[[0, 2, 3, 5, 6, 8]])


@EACH_DEVICE
def test_rows_of_index_arrays_beyond_the_batch_are_ignored(device: str) -> None:
    x, weight, bias = packed(device)
    pool = normal(device, 9, DIM, WIDTH - 1, seed=3)
    before = pool.clone()
    slots, has = indices(device, 4, 1, 7, 2, 2, 0), torch.tensor([False] * 3 + [True] * 3, device=device)
    out = vllm.causal_conv1d_fn(x, weight, bias, pool, starts(device, LENGTHS), slots, has)
    assert torch.equal(out, torch.cat([whole(each, weight, bias) for each in each_sequence(x)], 1))
    assert torch.equal(pool[[0, 2, 3, 5, 6, 8]], before[[0, 2, 3, 5, 6, 8]])


@EACH_DEVICE
@pytest.mark.parametrize("null", [0, 7])
def test_vllm_s_null_block_is_a_slot_and_pad_slot_id_is_none(null: int, device: str) -> None:
    x, weight, bias = packed(device)
    pool = normal(device, 9, DIM, WIDTH - 1, seed=3)
    before, slots = pool.clone(), indices(device, 4, null, 1)
    has = torch.zeros(3, dtype=torch.bool, device=device)
    out = vllm.causal_conv1d_fn(
        x, weight, bias, pool, starts(device, LENGTHS), slots, has, pad_slot_id=4, null_block_id=null
    )
    first, padding, last = each_sequence(out)
    assert torch.equal(first, whole(each_sequence(x)[0], weight, bias)) and torch.equal(pool[null], before[null])
    assert not padding.any() and last.any()


@EACH_DEVICE
@pytest.mark.parametrize("engine", ["sglang", "tensorrt_llm", "tokenspeed"])
def test_slot_0_is_live_without_indices_and_is_no_padding(engine: str, device: str) -> None:
    x, weight, bias = packed(device)
    pool = normal(device, 3, DIM, WIDTH - 1, seed=3)
    out = TRITON[engine](x, weight, bias, pool, starts(device, LENGTHS), pad_slot_id=0)
    assert torch.equal(out, torch.cat([whole(each, weight, bias) for each in each_sequence(x)], 1))
    assert all(torch.equal(pool[i], last_inputs(each, WIDTH - 1)) for i, each in enumerate(each_sequence(x)))


@EACH_DEVICE
@pytest.mark.parametrize("engine", [sgl_kernel, tensorrt_llm])
def test_cuda_engines_write_over_x_and_keep_it_where_there_is_padding(engine: Any, device: str) -> None:
    x, weight, bias = packed(device)
    x = x.contiguous()
    given, pool = x.clone(), normal(device, 9, DIM, WIDTH - 1, seed=3)
    slots, has = indices(device, 4, -1, 7), torch.zeros(3, dtype=torch.bool, device=device)
    named = {"query_start_loc": starts(device, LENGTHS), "cache_indices": slots, "has_initial_state": has}
    out = engine.causal_conv1d_fn(x, weight, bias, conv_states=pool, **named)
    first, padding, last = each_sequence(given)
    assert out.data_ptr() == x.data_ptr()
    assert torch.equal(out, torch.cat((whole(first, weight, bias), padding, whole(last, weight, bias)), 1))


@EACH_DEVICE
@pytest.mark.parametrize("engine", [sgl_kernel, tensorrt_llm])
def test_cuda_engines_take_dense_batches_with_states_in_place(engine: Any, device: str) -> None:
    x, weight, bias = normal(device, 3, DIM, 5), normal(device, DIM, WIDTH, seed=1), normal(device, DIM, seed=2)
    given, pool = x.clone(), normal(device, 3, DIM, WIDTH - 1, seed=3)
    before, has = pool.clone(), torch.tensor([True, False, True], device=device)
    engine.causal_conv1d_fwd(x, weight, bias, pool, None, None, has, True, -1)
    for i in range(3):
        joined = torch.cat((before[i] * float(has[i]), given[i]), 1)
        assert torch.equal(x[i], whole(joined, weight, bias)[:, WIDTH - 1 :])
        assert torch.equal(pool[i], given[i][:, 1 - WIDTH :])


@EACH_DEVICE
@pytest.mark.parametrize("call", ["fn", "fwd"])
@pytest.mark.parametrize("engine", [sgl_kernel, tensorrt_llm])
def test_cuda_engines_prefill_the_first_columns_of_longer_states(engine: Any, call: str, device: str) -> None:
    """There the steps of Triton find them; the columns behind, which leave room for drafts, stay as they are."""
    x, weight, bias = normal(device, DIM, 5), normal(device, DIM, WIDTH, seed=1), normal(device, DIM, seed=2)
    pool, tokens = normal(device, 4, DIM, WIDTH + 1, seed=3), x.clone()
    before, slots = pool.clone(), indices(device, 2)
    named = {"query_start_loc": indices(device, 0, 5), "cache_indices": slots, "conv_states": pool}
    named["has_initial_state"] = torch.tensor([True], device=device)
    if call == "fn":
        engine.causal_conv1d_fn(x, weight, bias, **named)
    else:
        engine.causal_conv1d_fwd(x, weight, bias, **named, silu_activation=True, pad_slot_id=-1)
    joined = torch.cat((before[2, :, : WIDTH - 1], tokens), 1)
    assert torch.equal(x, whole(joined, weight, bias)[:, WIDTH - 1 :])
    assert torch.equal(pool[2, :, : WIDTH - 1], joined[:, 1 - WIDTH :])
    pool[2, :, : WIDTH - 1] = before[2, :, : WIDTH - 1]
    assert torch.equal(pool, before)


@EACH_DEVICE
@pytest.mark.parametrize("engine", [sgl_kernel, tensorrt_llm])
def test_one_token_is_written_over_whatever_its_strides_are(engine: Any, device: str) -> None:
    """A single packed token is contiguous both ways: torch's own contiguous() leaves its strides as they are."""
    x, weight, bias = normal(device, 1, DIM).T, normal(device, DIM, WIDTH, seed=1), normal(device, DIM, seed=2)
    pool, token = normal(device, 4, DIM, WIDTH - 1, seed=3), x.clone()
    assert x.is_contiguous() and x.stride() == (1, DIM)
    engine.causal_conv1d_fwd(x, weight, bias, pool, indices(device, 0, 1), indices(device, 2), None, True, -1)
    assert torch.equal(x, whole(token, weight, bias)) and torch.equal(pool[2], last_inputs(token, WIDTH - 1))


@EACH_DEVICE
def test_megatron_reads_states_and_carries_them_over(device: str) -> None:
    x, weight, bias = packed(device)
    states = normal(device, 3, DIM, WIDTH - 1, seed=3)
    before = states.clone()
    out = megatron.causal_conv1d_varlen_fn(x.T.contiguous(), weight, bias, starts(device, LENGTHS), states)
    for i, tokens in enumerate(each_sequence(x)):
        joined = torch.cat((before[i], tokens), 1)
        assert torch.equal(each_sequence(out.T)[i], whole(joined, weight, bias)[:, WIDTH - 1 :])
    assert torch.equal(states, before)
    with pytest.raises(ValueError, match="activation: got True; wanted 'silu'"):
        megatron.causal_conv1d_varlen_fn(x.T, weight, bias, starts(device, LENGTHS), activation=True)


@EACH_DEVICE
def test_carried_states_are_the_last_inputs_of_state_and_slice(device: str) -> None:
    previous = torch.stack([letters(device, "abcd"), letters(device, "mnop"), letters(device, "qrst")])
    x = torch.cat((letters(device, "ef"), letters(device, "uvwxyz")), 1).T.contiguous()
    carried = megatron.causal_conv1d_varlen_carry_states(x, indices(device, 0, 2, 2, 8), previous)
    wanted = [letters(device, "cdef"), letters(device, "mnop"), letters(device, "wxyz")]
    assert torch.equal(carried, torch.stack(wanted))
    # Some versions give what follows from the boundaries, too.
    plan = dict.fromkeys(("token_indices", "prev_columns", "from_slice"), torch.zeros(3, 4, device=device))
    planned = megatron.causal_conv1d_varlen_carry_states(x, indices(device, 0, 2, 2, 8), previous, **plan)
    assert torch.equal(planned, carried)
    # States may have a dtype of their own.
    for dtype in (torch.float32, torch.float16):
        mixed = megatron.causal_conv1d_varlen_carry_states(
            x.bfloat16(), indices(device, 0, 2, 2, 8), previous.to(dtype)
        )
        assert mixed.dtype == dtype and torch.equal(mixed, carried.to(dtype))


@EACH_DEVICE
def test_lfm_keeps_gated_inputs_and_rounds_twice(device: str) -> None:
    given = [normal(device, sum(LENGTHS), 3 * DIM, dtype=torch.bfloat16)[:, i * DIM : (i + 1) * DIM] for i in range(3)]
    b, c, x = given
    weight, state = normal(device, DIM, 3, dtype=torch.bfloat16), normal(device, 5, DIM, 2, dtype=torch.bfloat16)
    slots, has = indices(device, 3, 0, -1), torch.zeros(3, dtype=torch.bool, device=device)
    before = state.clone()
    out = sglang.fused_lfm_short_conv_prefill(b, c, x, weight, state, starts(device, LENGTHS), slots, has, 7)
    gated = each_sequence((b * x).T)
    wanted = [c_i * whole(g, weight, None, None) for c_i, g in zip(each_sequence(c.T)[:2], gated[:2], strict=True)]
    assert torch.equal(out.T[:, : sum(LENGTHS[:2])], torch.cat(wanted, 1))
    assert torch.equal(state[3], gated[0][:, -2:]) and torch.equal(state[0], last_inputs(gated[1], 2))
    assert torch.equal(state[[1, 2, 4]], before[[1, 2, 4]])
    step = [each[:2].contiguous() for each in given]
    once = sglang.fused_lfm_short_conv_decode(*step, weight, state, indices(device, 3, 0))
    joined = [torch.cat((gated[i], (step[0] * step[2])[i, :, None]), 1) for i in range(2)]
    for i in range(2):
        assert torch.equal(once[i], step[1][i] * whole(joined[i], weight, None, None)[:, -1])
        assert torch.equal(state[3 - 3 * i], joined[i][:, -2:])


@EACH_DEVICE
def test_splits_are_ranges_of_channels(device: str) -> None:
    x, weight, bias = packed(device)
    pools = [normal(device, 3, DIM, WIDTH - 1, seed=3) for _ in range(2)]
    loc = starts(device, LENGTHS)
    q, k, v = sglang.causal_conv1d_fn_split_qkv(x, weight, bias, pools[0], loc, list(LENGTHS), 2, 2)
    heads = {"num_q_heads": 1, "num_k_heads": 1, "num_v_heads": 1, "head_q": 2, "head_k": 2, "head_v": 2}
    by_heads = tokenspeed.causal_conv1d_qkv_split_gdn_prefill(
        x, weight, bias, pools[1], loc, list(LENGTHS), *heads.values(), x.shape[1]
    )
    wanted = torch.cat([whole(each, weight, bias) for each in each_sequence(x)], 1).T
    assert torch.equal(torch.cat((q, k, v), 1), wanted) and q.is_contiguous()
    assert torch.equal(torch.cat([each[0, :, 0] for each in by_heads], 1), wanted)
    assert torch.equal(*pools)


@EACH_DEVICE
@pytest.mark.parametrize("norm", [False, True])
def test_a_split_after_the_convolution_copies_and_keeps_the_payload(norm: bool, device: str) -> None:
    mixed = normal(device, 9, 2 * 8 + 2 * 8 + 4 * 6, dtype=torch.bfloat16)
    gates = [normal(device, 9, 4, seed=i, dtype=torch.bfloat16) for i in range(2)]
    payload = mixed.new_full((9, 2 * 8 + 4 * 6 + 2 * 4), torch.nan)
    q, k, v = tokenspeed.fused_qkv_split_gdn_prefill(mixed, 2, 2, 4, 8, 8, 6, norm, (payload, *gates))
    raw = torch.split(mixed, (16, 16, 24), 1)
    assert torch.equal(payload, torch.cat((*raw[1:], *gates), 1))
    assert torch.equal(v[0].flatten(1), raw[2])
    for got, wanted in zip((q, k), raw, strict=False):
        heads = wanted.view(9, 2, 8).float()
        heads = heads / (heads.square().sum(-1, keepdim=True) + 1e-6).sqrt() if norm else heads
        assert torch.allclose(got[0].float(), heads.bfloat16().float(), rtol=2**-7, atol=0)


BLOCK, COMPUTED = 16, 20


def blocks(device: str, computed: tuple[int, ...], lengths: tuple[int, ...]) -> dict[str, Any]:
    """vLLM's arguments of cache mode "all", by its formulas."""
    ends = [c + n for c, n in zip(computed, lengths, strict=True)]
    return {
        "block_idx_first_scheduled_token": indices(device, *(-(-(c + 1) // BLOCK) - 1 for c in computed)),
        "block_idx_last_scheduled_token": indices(device, *(max(-(-e // BLOCK) - 1, 0) for e in ends)),
        "initial_state_idx": indices(device, *(max(-(-c // BLOCK) - 1, 0) for c in computed)),
    }


@EACH_DEVICE
@pytest.mark.parametrize(
    ("tokens", "wanted"),
    [(45, {12: 1, 28: 2, 44: 3, 45: 4}), (44, {12: 1, 28: 2, 44: 3}), (1, {1: 1}), (12, {12: 1}), (13, {12: 1, 13: 2})],
)
def test_a_prefix_cache_of_mode_all_keeps_the_state_at_every_block_end(
    tokens: int, wanted: dict[int, int], device: str
) -> None:
    """Blocks have 16 tokens, and 20 were computed before; `wanted` maps counts of new tokens to columns of states."""
    lengths, computed = (tokens, 3, 33), (COMPUTED, 0, 15)
    x, weight, bias = packed(device, lengths)
    table = torch.arange(1, 31, device=device, dtype=torch.int32).view(3, 10)
    pool = normal(device, 31, DIM, WIDTH - 1, seed=3)
    before = pool.clone()
    has = torch.tensor([True, False, True], device=device)
    placed = {**blocks(device, computed, lengths), "num_computed_tokens": indices(device, *computed)}
    out = vllm.causal_conv1d_fn(
        *(x, weight, bias, pool, starts(device, lengths), table, has),
        block_size_to_align=BLOCK, **placed,
    )  # fmt: skip
    expected = before.clone()
    # The third sequence's first block ends one token after its start: the state mixes old and new inputs.
    for i, columns in enumerate((wanted, {3: 0}, {1: 0, 17: 1, 33: 2})):
        window = before[table[i, int(placed["initial_state_idx"][i])].long()] * float(has[i])
        joined = torch.cat((window, each_sequence(x, lengths)[i]), 1)
        result = whole(joined, weight, bias)[:, WIDTH - 1 :]
        assert torch.equal(each_sequence(out, lengths)[i], result)
        for position, column in columns.items():
            expected[table[i, column].long()] = joined[:, position : position + WIDTH - 1]
    assert torch.equal(pool, expected)


@EACH_DEVICE
def test_a_decode_step_of_mode_all_starts_from_one_block_and_leaves_its_state_in_another(device: str) -> None:
    table, weight = indices(device, [1, 2, 3], [4, 5, 6]), normal(device, 2, WIDTH)
    pool = torch.zeros(7, 2, WIDTH - 1, device=device)
    pool[1], pool[5] = letters(device, "abc"), letters(device, "ijk")
    x = torch.stack((letters(device, "d")[:, 0], letters(device, "l")[:, 0]))
    out = vllm.causal_conv1d_update(
        *(x, pool, weight),
        conv_state_indices=table, initial_state_idx=indices(device, 0, 1),
        block_idx_last_scheduled_token=indices(device, 1, 1),
    )  # fmt: skip
    wanted = [whole(letters(device, text), weight, None, None)[:, -1] for text in ("abcd", "ijkl")]
    assert out is x and torch.equal(out, torch.stack(wanted))
    for slot, text in {1: "abc", 2: "bcd", 5: "jkl"}.items():
        assert torch.equal(pool[slot], letters(device, text))


@EACH_DEVICE
def test_a_scan_of_mode_all_keeps_the_state_at_every_block_end(device: str) -> None:
    lengths, computed, block = (45, 3, 33), (20, 0, 15), BLOCK
    total, d_state = sum(lengths), 4
    u, delta = normal(device, DIM, total), normal(device, DIM, total, seed=1).abs() / 4
    A, B, C = (
        -normal(device, DIM, d_state).abs(),
        normal(device, d_state, total),
        normal(device, d_state, total, seed=2),
    )
    table = torch.arange(1, 31, device=device, dtype=torch.int32).view(3, 10)
    pool = normal(device, 31, DIM, d_state, seed=3)
    before, has = pool.clone(), torch.tensor([True, False, True], device=device)
    borders = [[12, 28, 44, 45], [3], [1, 17, 33]]
    begins = [0, 45, 48]
    chunks = [0, *(begin + border for begin, ends in zip(begins, borders, strict=True) for border in ends)]
    written = delta.clone()
    out = vllm.selective_scan_fn(
        *(u, pool, written, A, B, C),
        query_start_loc=starts(device, lengths), cache_indices=table, has_initial_state=has, block_size=block,
        cu_chunk_seqlen=indices(device, *chunks), last_chunk_indices=indices(device, 3, 4, 7),
        **blocks(device, computed, lengths),
    )  # fmt: skip
    assert out is written
    expected = before.clone()
    for i, first in enumerate((1, 0, 0)):
        done, slot = 0, int(table[i, max(-(-computed[i] // block) - 1, 0)])
        state = before[slot : slot + 1] * float(has[i])
        for column, border in enumerate(borders[i], start=first):
            tokens = slice(begins[i] + done, begins[i] + border)
            part, state = cuconv.selective_scan_fn(
                *(each[None, :, tokens] for each in (u, delta)), A, B[None, :, tokens], C[None, :, tokens],
                return_last_state=True, initial_state=state.contiguous(),
            )  # fmt: skip
            assert torch.allclose(out[:, tokens], part[0], rtol=1e-4, atol=1e-5)
            expected[table[i, column].long()], done = state[0], border
    assert torch.allclose(pool, expected, rtol=1e-4, atol=1e-5)


@EACH_DEVICE
def test_chunks_that_do_not_exist_count_as_the_last_one(device: str) -> None:
    """The kernel brings such numbers inside, and the reference does, too."""
    given = [normal(device, DIM, 7), normal(device, 4, DIM, 3, seed=3), normal(device, DIM, 7, seed=1)]
    given += [-normal(device, DIM, 3).abs(), normal(device, 1, 3, 7), normal(device, 1, 3, 7, seed=2)]
    results = []
    for last in (1, 9):
        u, pool, delta, *rest = (each.clone() for each in given)
        out = vllm.selective_scan_fn(
            *(u, pool, delta, *rest), query_start_loc=starts(device, (4, 3)), block_size=8,
            cache_indices=indices(device, [1], [3]), has_initial_state=torch.tensor([True, True], device=device),
            cu_chunk_seqlen=indices(device, 0, 4, 7), last_chunk_indices=indices(device, 0, last),
            **blocks(device, (0, 0), (4, 3)),
        )  # fmt: skip
        results.append((out, pool))
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


@EACH_DEVICE
@pytest.mark.parametrize("gated", [False, True], ids=["over_delta", "over_z"])
def test_a_scan_of_a_batch_updates_its_slots_and_is_written_over_z_or_delta(gated: bool, device: str) -> None:
    batch, length, d_state = 3, 21, 4
    u, delta, z = (normal(device, batch, DIM, length, seed=seed) for seed in range(3))
    A, B, C = -normal(device, DIM, d_state).abs(), *(normal(device, batch, 1, d_state, length, seed=n) for n in (3, 4))
    pool = normal(device, 6, DIM, d_state, seed=5)
    wanted, before = pool.clone(), (delta.clone(), z.clone())
    table, has = indices(device, 4, 0, 2), torch.tensor([True, True, False], device=device)
    results, states = cuconv.selective_scan_fn(
        *(u, delta, A, B, C), z=z if gated else None, delta_softplus=True, return_last_state=True,
        initial_state=(pool[table.long()] * has[:, None, None]).contiguous(),
    )  # fmt: skip
    out = vllm.selective_scan_fn(
        *(u, pool, delta, A, B, C), z=z if gated else None, delta_softplus=True,
        cache_indices=table, has_initial_state=has,
    )  # fmt: skip
    assert out is (z if gated else delta)
    wanted[[4, 2]] = states[[0, 2]]
    # The null block's sequence has no results, and what is overwritten keeps its contents there.
    results[1] = before[gated][1]
    assert torch.allclose(pool, wanted, rtol=1e-4, atol=1e-5)
    assert torch.allclose(out, results, rtol=1e-4, atol=1e-5)
    assert torch.equal(*((delta, before[0]) if gated else (z, before[1])))


@EACH_DEVICE
def test_mode_align_is_a_snapshot_beside_the_running_block(device: str) -> None:
    """Block size 512, hash alignment 64, 1000 tokens: the state after 960 is in column 0, the last one in column 1."""
    length, block, alignment, lookahead = 1000, 512, 64, 0
    position = (length - max(1, lookahead)) // alignment * alignment
    x, weight = normal(device, length, 2).T, normal(device, 2, WIDTH)
    table, pool = indices(device, [3, 5]), torch.zeros(6, 2, WIDTH - 1, device=device)
    column = -(-length // block) - 2
    assert (position, column) == (960, 0)
    snapshot = torch.tensor([[0, position, int(table[0, column])]], device=device)
    cuconv.causal_conv1d_varlen_fn(
        *(x, weight, None, pool, indices(device, 0, length), table[:, 1]), snapshots=snapshot, first_column=0
    )
    assert torch.equal(pool[3], x[:, 957:960]) and torch.equal(pool[5], x[:, 997:])
    assert not pool[[0, 1, 2, 4]].any()


@EACH_DEVICE
def test_sglang_s_tracking_is_a_snapshot_at_a_multiple_of_the_chunk(device: str) -> None:
    """The state after floor((L - P) / chunk) * chunk new tokens of a tracked sequence goes to its track slot."""
    lengths, prefixes, chunk = (70, 9, 130), (64, 0, 7), 64
    x, weight, bias = packed(device, lengths)
    pool = torch.zeros(9, DIM, WIDTH - 1, device=device)
    tracked = [int(length // chunk * chunk) for length in lengths]
    mask, track_slots = torch.tensor([True, False, True]), (6, 7, 8)
    rows = [[i, tracked[i], track_slots[i] if mask[i] else -1] for i in range(3)]
    assert [row[1] for row in rows] == [64, 0, 128] and len(prefixes) == 3
    cuconv.causal_conv1d_varlen_fn(
        *(x, weight, bias, pool, starts(device, lengths)),
        snapshots=torch.tensor(rows, device=device), first_column=0,
    )  # fmt: skip
    for i in (0, 2):
        assert torch.equal(pool[track_slots[i]], each_sequence(x, lengths)[i][:, tracked[i] - 3 : tracked[i]])
    assert not pool[7].any()


def test_what_an_engine_s_prefill_cannot_mean_is_refused() -> None:
    x, weight, bias = packed("cpu")
    pool, loc = normal("cpu", 9, DIM, WIDTH - 1), starts("cpu", LENGTHS)
    last = indices("cpu", 0, 0, 0)
    with pytest.raises(ValueError, match="block_size_to_align: got None; wanted tokens per block, for block_idx"):
        vllm.causal_conv1d_fn(x, weight, bias, pool, loc, block_idx_last_scheduled_token=last)
    with pytest.raises(ValueError, match="activation"):
        vllm.causal_conv1d_fn(x, weight, bias, pool, loc, activation="gelu")
    with pytest.raises(ValueError, match="x: got strides"):
        sgl_kernel.causal_conv1d_fwd(x, weight, bias, pool, loc, None, None, True, -1)
    with pytest.raises(ValueError, match="x: got strides"):
        tensorrt_llm.causal_conv1d_fwd(x, weight, bias, pool, loc, None, None, True, -1)
