"""Engines' decode steps of the convolution: where states are, where they go, and what pads."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from cuconv.engines import (  # noqa: E402
    megatron,
    sgl_kernel,
    sglang,
    tensorrt_llm,
    tokenspeed,
    vllm,
)
from tests.engines.tensors import EACH_DEVICE, indices, letters, normal, starts, whole  # noqa: E402

WIDTH = 4
BUFFERED = {"sglang": sglang.causal_conv1d_update, "tensorrt_llm": tensorrt_llm.causal_conv1d_update_triton}


def pool_of(device: str, *texts: str) -> Any:
    """A pool with the states that these letters spell, one per slot."""
    return torch.stack([letters(device, text) for text in texts])


def results(device: str, weight: Any, *texts: str) -> Any:
    """The result for the last letter of each text."""
    return torch.stack([whole(letters(device, text), weight)[:, -1] for text in texts])


@EACH_DEVICE
def test_vllm_s_window_slides_in_a_longer_slot(device: str) -> None:
    """Slot [g h s t u] and two accepted tokens: the window is h s t, and x y leave [s t x y u]."""
    pool, weight = pool_of(device, "zzzzz", "ghstu"), normal(device, 2, WIDTH)
    x = letters(device, "xy")[None]
    out = vllm.causal_conv1d_update(
        *(x, pool, weight, None, True, indices(device, [1, 0, 0]), indices(device, 2)),
    )
    assert out is x and torch.equal(pool, pool_of(device, "zzzzz", "stxyu"))
    assert torch.equal(out[0].T, results(device, weight, "hstx", "hstxy"))


@EACH_DEVICE
def test_vllm_s_packed_steps_of_any_lengths_slide_alike(device: str) -> None:
    texts = ("zzzzz", "abcde", "fghij", "klmno", "pqrst")
    pool, weight = pool_of(device, *texts), normal(device, 2, WIDTH)
    x = letters(device, "uvwx").T.contiguous()
    out = vllm.causal_conv1d_update(
        *(x, pool, weight, None, "silu", indices(device, [1, 0], [3, 0], [4, 0], [0, 0])),
        num_accepted_tokens=indices(device, 3, 1, 2, 1), query_start_loc=indices(device, 0, 1, 1, 4, 4),
        max_query_len=3,
    )  # fmt: skip
    assert out is x
    assert torch.equal(out, results(device, weight, "cdeu", "qrsv", "qrsvw", "qrsvwx"))
    assert torch.equal(pool, pool_of(device, "zzzzz", "deude", "fghij", "klmno", "rsvwx"))


@EACH_DEVICE
def test_vllm_s_starts_may_be_padded_beyond_its_slots(device: str) -> None:
    weight, x = normal(device, 2, WIDTH), letters(device, "vwxyz").T.contiguous()
    found = []
    for ends in ((3, 5), (3, 5, 5, 5)):
        pool, padded = pool_of(device, "zzzzz", "abcde", "fghij"), indices(device, 0, *ends)
        slots, accepted = indices(device, [1, 0, 0], [2, 0, 0]), indices(device, 1, 1)
        given = (x.clone(), pool, weight, None, None, slots, accepted, padded, 3)
        found.append((vllm.causal_conv1d_update(*given), pool))
    assert torch.equal(found[0][0], found[1][0]) and torch.equal(found[0][1], found[1][1])


@EACH_DEVICE
def test_vllm_s_packed_steps_without_speculation_shift_by_their_lengths(device: str) -> None:
    pool, weight = pool_of(device, "zzz", "abc", "def", "ghi"), normal(device, 2, WIDTH)
    x, out = letters(device, "uvwx").T.contiguous(), normal(device, 4, 2)
    given = x.clone()
    got = vllm.causal_conv1d_update(
        *(x, pool, weight, None, "silu", indices(device, 1, 2, 3)),
        query_start_loc=starts(device, (2, 1, 1)), max_query_len=2, out=out,
    )  # fmt: skip
    assert got is out and torch.equal(x, given)
    assert torch.equal(out, results(device, weight, "abcu", "abcuv", "defw", "ghix"))
    assert torch.equal(pool, pool_of(device, "zzz", "cuv", "efw", "hix"))


@EACH_DEVICE
def test_vllm_overwrites_x_only_of_the_pool_s_dtype_and_keeps_its_null_rows(device: str) -> None:
    pool, weight = pool_of(device, "zzz", "abc"), normal(device, 2, WIDTH)
    x = letters(device, "uv").T.contiguous()
    slots = indices(device, 0, 1)
    out = vllm.causal_conv1d_update(x, pool, weight, None, "silu", slots)
    assert out is x and torch.equal(x[0], letters(device, "u")[:, 0])
    assert torch.equal(x[1:], results(device, weight, "abcv"))
    half = letters(device, "uv").T.bfloat16()
    given = half.clone()
    out = vllm.causal_conv1d_update(half, pool, weight, None, None, slots)
    assert out is not half and torch.equal(half, given) and out.dtype == torch.bfloat16
    assert torch.equal(pool, pool_of(device, "zzz", "cvv"))


@EACH_DEVICE
@pytest.mark.parametrize("engine", BUFFERED)
def test_live_slots_advance_beside_windows_that_overlap(engine: str, device: str) -> None:
    """Windows of one row are columns t to t + width - 2 of one buffer (dim, tokens + width - 2)."""
    pool, weight = pool_of(device, "abcz", "efgz", "ijkz"), normal(device, 2, WIDTH)
    buffer = torch.zeros(5, 2, 2 + WIDTH - 1, device=device)
    windows = buffer.as_strided((5, 3, 2, WIDTH - 1), (buffer.stride(0), 1, buffer.stride(1), 1))
    x = torch.stack([letters(device, "uvw"), letters(device, "mno"), letters(device, "xyz")])
    out = BUFFERED[engine](
        *(x, pool, weight, None, "silu", None, indices(device, 2, -1, 0)),
        intermediate_conv_window=windows, intermediate_state_indices=indices(device, 4, 1, 2),
    )  # fmt: skip
    assert out is not x and not out[1].any()
    assert torch.equal(pool, pool_of(device, "xyzz", "efgz", "uvwz"))
    assert torch.equal(buffer[4], letters(device, "jkuvw")) and torch.equal(buffer[2], letters(device, "bcxyz"))
    assert not buffer[[0, 1, 3]].any()
    assert torch.equal(out[0].T, results(device, weight, "ijku", "ijkuv", "ijkuvw"))


@EACH_DEVICE
def test_sglang_takes_both_names_of_accepted_tokens_and_rows_by_slot(device: str) -> None:
    weight, x = normal(device, 2, WIDTH), letters(device, "xy")[None]
    for name in ("num_accept_tokens", "num_accepted_tokens"):
        pool = pool_of(device, "zzzz", "ghst")
        slots, accepted = indices(device, 1), {name: indices(device, 2)}
        windows = torch.zeros(2, 2, 2, WIDTH - 1, device=device)
        out = sglang.causal_conv1d_update(
            x, pool, weight, None, True, None, slots, intermediate_conv_window=windows, **accepted
        )
        assert torch.equal(out[0].T, results(device, weight, "hstx", "hstxy"))
        assert torch.equal(pool[1], letters(device, "stxy")) and not windows[0].any()
        assert torch.equal(windows[1], torch.stack([letters(device, "stx"), letters(device, "txy")]))


@EACH_DEVICE
@pytest.mark.parametrize("engine", BUFFERED)
def test_a_tree_s_tokens_follow_their_parents(engine: str, device: str) -> None:
    """Tree 0 → 1, 2 and 1 → 3: token 3 sees the last letter of the window, then tokens 0, 1 and itself."""
    pool, weight = pool_of(device, "zzz", "pqr"), normal(device, 2, WIDTH)
    children, siblings = indices(device, [1, 3, -1, -1]), indices(device, [-1, 2, -1, -1])
    parents = indices(device, [9, 9, 9, 9])
    windows = torch.zeros(3, 4, 2, WIDTH - 1, device=device)
    out = BUFFERED[engine](
        *(letters(device, "abcd")[None], pool, weight, None, "silu", None, indices(device, 1)),
        intermediate_conv_window=windows, intermediate_state_indices=indices(device, 2),
        retrieve_next_token=children, retrieve_next_sibling=siblings, retrieve_parent_token=parents,
    )  # fmt: skip
    assert parents.tolist() == [[0, 0, 0, 1]]
    assert torch.equal(out[0].T, results(device, weight, "pqra", "qrab", "qrac", "rabd"))
    assert torch.equal(windows[2], pool_of(device, "qra", "rab", "rac", "abd"))


@EACH_DEVICE
@pytest.mark.parametrize("engine", [sgl_kernel, tensorrt_llm])
def test_cuda_engines_use_the_last_columns_or_a_ring_and_write_over_x(engine: Any, device: str) -> None:
    weight = normal(device, 2, WIDTH)
    pool, x = pool_of(device, "zabc", "zefg"), letters(device, "uv").T.contiguous()
    out = engine.causal_conv1d_update(x, pool, weight, None, "silu", None, indices(device, 1, -1))
    assert out is x and torch.equal(x[1], letters(device, "v")[:, 0])
    assert torch.equal(x[:1], results(device, weight, "efgu"))
    assert torch.equal(pool, pool_of(device, "zabc", "efgu"))
    ring = pool_of(device, "cdzab")
    x = letters(device, "e").T.contiguous()
    engine.causal_conv1d_update(x, ring, weight, None, True, indices(device, 7))
    assert torch.equal(x, results(device, weight, "bcde")) and torch.equal(ring, pool_of(device, "cdeab"))


@EACH_DEVICE
@pytest.mark.parametrize("state_len", [WIDTH - 1, WIDTH, 6])
@pytest.mark.parametrize("is_checked", [False, True])
def test_megatron_keeps_whole_states_by_slot_and_advances(
    is_checked: bool, state_len: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any negative slot is padding, where contents are checked, too."""
    if is_checked:
        monkeypatch.setenv("CUCONV_CHECK", "1")
    pool, weight = pool_of(device, "zyxabc"[-state_len:], "zyxefg"[-state_len:]), normal(device, 2, WIDTH)
    states = torch.zeros(2, 2, 2, state_len, device=device)
    x = torch.stack([letters(device, "uv").T, letters(device, "mn").T])
    out = megatron.causal_conv1d_update(x, pool, weight, None, "silu", indices(device, 1, -3), states)
    assert torch.equal(out[0], results(device, weight, "efgu", "efguv")) and not out[1].any()
    assert torch.equal(pool, pool_of(device, "zyxabc"[-state_len:], "zyxefguv"[-state_len:]))
    assert torch.equal(states[1], pool_of(device, "zyxefgu"[-state_len:], "zyxefguv"[-state_len:]))
    assert not states[0].any()


@EACH_DEVICE
def test_megatron_s_activation_is_the_string(device: str) -> None:
    weight, x = normal(device, 2, WIDTH), letters(device, "d").T.contiguous()
    for given, wanted in (("silu", "silu"), (True, None), (None, None), (False, None)):
        pool = pool_of(device, "abc")
        out = megatron.causal_conv1d_update(x, pool, weight, None, given, None)
        assert torch.equal(out[0], whole(letters(device, "abcd"), weight, None, wanted)[:, -1])


@EACH_DEVICE
def test_tokenspeed_moves_by_one_column_without_speculation(device: str) -> None:
    pool, weight = pool_of(device, "abczz", "efgzz"), normal(device, 2, WIDTH)
    x = torch.stack([letters(device, "uvw"), letters(device, "xyz")])
    out = tokenspeed.causal_conv1d_update(x, pool, weight, None, True)
    assert out is x and torch.equal(x[0].T, results(device, weight, "abcu", "abcuv", "abcuvw"))
    assert torch.equal(pool, pool_of(device, "bcuvw", "fgxyz"))
    one = letters(device, "k").T.contiguous()
    tokenspeed.causal_conv1d_update(one, pool, weight, None, True, conv_state_indices=indices(device, 1))
    assert torch.equal(one, results(device, weight, "fgxk")) and torch.equal(pool[1], letters(device, "gxkyz"))


@EACH_DEVICE
@pytest.mark.parametrize("accepted", [False, True])
def test_tokenspeed_s_windows_are_in_the_order_of_the_batch_and_live_slots_stay(accepted: bool, device: str) -> None:
    pool, weight = pool_of(device, "abcdz", "efghz", "ijklz"), normal(device, 2, WIDTH)
    before = pool.clone()
    windows = torch.zeros(3, 2, 2, WIDTH - 1, device=device)
    x = torch.stack([letters(device, "uv"), letters(device, "mn"), letters(device, "xy")])
    given = x.clone()
    out = tokenspeed.causal_conv1d_update(
        *(x, pool, weight, None, "silu", None, indices(device, 2, -1, 0)),
        num_accepted_tokens=indices(device, 2, 1, 2) if accepted else None, intermediate_conv_window=windows,
    )  # fmt: skip
    first, last = ("jkl", "bcd") if accepted else ("ijk", "abc")
    assert out is x and torch.equal(pool, before) and torch.equal(x[1], given[1])
    assert torch.equal(x[0].T, results(device, weight, first + "u", first + "uv"))
    assert torch.equal(windows[0], pool_of(device, first[1:] + "u", first[2:] + "uv"))
    assert torch.equal(windows[2], pool_of(device, last[1:] + "x", last[2:] + "xy")) and not windows[1].any()


@EACH_DEVICE
def test_tokenspeed_s_output_states_are_slots_of_the_pool(device: str) -> None:
    pool, weight = pool_of(device, "abc", "efg", "ijk", "zzz", "zzz"), normal(device, 2, WIDTH)
    x = torch.stack([letters(device, "uv"), letters(device, "mn")])
    tokenspeed.causal_conv1d_update(
        *(x, pool, weight, None, "silu", None, indices(device, 2, 0)),
        output_state_indices=indices(device, [3, 1], [-1, 4]),
    )  # fmt: skip
    assert torch.equal(x[1].T, results(device, weight, "abcm", "abcmn"))
    assert torch.equal(pool, pool_of(device, "abc", "kuv", "ijk", "jku", "cmn"))


@EACH_DEVICE
def test_sglang_s_split_step_has_results_by_range(device: str) -> None:
    weight = normal(device, 6, WIDTH)
    pools, x = [normal(device, 4, 6, WIDTH - 1) for _ in range(2)], normal(device, 2, 6, 3)
    slots = indices(device, 3, 1)
    q, k, v = sglang.causal_conv1d_update_split_qkv(x, pools[0], weight, 1, 4, conv_state_indices=slots)
    out = sglang.causal_conv1d_update(x, pools[1], weight, None, "silu", None, slots)
    assert torch.equal(torch.cat((q, k, v), 1), out) and torch.equal(*pools)


def test_a_tree_needs_both_arrays() -> None:
    pool, weight, children = pool_of("cpu", "abc"), normal("cpu", 2, WIDTH), indices("cpu", [1, -1])
    with pytest.raises(ValueError, match="retrieve_next_sibling: got None"):
        sglang.causal_conv1d_update(letters("cpu", "de")[None], pool, weight, retrieve_next_token=children)
