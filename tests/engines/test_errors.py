"""Errors of adapters name the engine's arguments, and say what an adapter needs before it looks at shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from cuconv.engines import flashinfer, megatron, sgl_kernel, sglang, tensorrt_llm, tokenspeed, vllm  # noqa: E402
from tests.engines.tensors import indices, normal  # noqa: E402

DIM, WIDTH, SLOTS = 6, 4, 5


def x(*sizes: int) -> Any:
    return normal("cpu", *sizes)


WEIGHT, POOL, LONGER = x(DIM, WIDTH), x(SLOTS, DIM, WIDTH - 1), x(SLOTS, DIM, WIDTH + 2)
BORDERS, SLOT = indices("cpu", 0, 4, 7), indices("cpu", 1, 3)
STATE, ROWS = x(SLOTS, 2, 3, 4), [x(2, 2, 3), x(2, 2, 3), -x(2, 3, 4).abs(), x(2, 1, 4), x(2, 1, 4), x(2, 3)]
HEADS = (1, 1, 1, 2, 2, 2)
GATES = [normal("cpu", 7, 1, dtype=torch.float16) for _ in range(2)]


def states(engine: Any, **named: Any) -> Any:
    """A state update without stochastic rounding, unless the arguments say so."""
    bias = {"dt_bias": None} if engine is vllm else {}
    return engine.selective_state_update(STATE.clone(), *ROWS, **bias, **{"out": torch.empty_like(ROWS[0]), **named})


CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "vLLM, prefill": (
        lambda: vllm.causal_conv1d_fn(x(DIM, 7), WEIGHT, None, POOL, BORDERS, SLOT, null_block_id="none"),  # type: ignore[arg-type]
        "null_block_id: got 'none'; wanted an int",
    ),
    "vLLM, blocks": (
        lambda: vllm.causal_conv1d_fn(
            *(x(DIM, 7), WEIGHT, None, POOL, BORDERS, SLOT[:, None]),
            block_idx_last_scheduled_token=SLOT,
            num_computed_tokens=SLOT,
            block_size_to_align=4,
        ),
        "initial_state_idx: got None",
    ),
    "vLLM, update without x": (
        lambda: vllm.causal_conv1d_update(None, POOL, WEIGHT),
        "x: got a NoneType; wanted a torch tensor",
    ),
    "vLLM, update of one axis": (
        lambda: vllm.causal_conv1d_update(x(DIM), POOL, WEIGHT),
        r"x: got shape \(6,\); wanted 2 or 3 axes",
    ),
    "vLLM, packed update of a slot without axes": (
        lambda: vllm.causal_conv1d_update(x(7, DIM), POOL, WEIGHT, conv_state_indices=SLOT[0], query_start_loc=BORDERS),
        r"conv_state_indices: got shape \(\); wanted 1 or 2 axes",
    ),
    "vLLM, packed update of a list of starts": (
        lambda: vllm.causal_conv1d_update(x(7, DIM), POOL, WEIGHT, conv_state_indices=SLOT, query_start_loc=[0, 4, 7]),
        "query_start_loc: got a list; wanted a torch tensor",
    ),
    "vLLM, targets without columns": (
        lambda: states(vllm, state_batch_indices=SLOT, dst_state_batch_indices=SLOT[:, None][:, :0]),
        "columns of dst_state_batch_indices: got 0; wanted at least 1",
    ),
    "vLLM, rounding": (
        lambda: states(vllm, enable_stochastic_rounding=True),
        "enable_stochastic_rounding: got a seed; wanted None for a float32 state",
    ),
    "SGLang, rounding": (
        lambda: states(sglang, enable_stochastic_rounding=True),
        "enable_stochastic_rounding: got a seed; wanted None for a float32 state",
    ),
    "SGLang, buffer of two axes fewer": (
        lambda: states(sglang, state_batch_indices=SLOT, intermediate_states_buffer=STATE[:, 0, 0, 0], cache_steps=1),
        r"intermediate_states_buffer: got shape \(5,\); wanted 4 or 5 axes",
    ),
    "SGLang, accepted": (
        lambda: sglang.causal_conv1d_update(x(2, DIM, 2), LONGER, WEIGHT, num_accept_tokens=SLOT.float()),
        "num_accept_tokens: got dtype float32",
    ),
    "SGLang, split": (
        lambda: sglang.causal_conv1d_update_split_qkv(x(2, DIM), POOL, WEIGHT, 2, 3, conv_state_indices=SLOT),
        r"\(key_dim, key_dim, value_dim\): got",
    ),
    "SGLang, gates": (
        lambda: sglang.fused_lfm_short_conv_decode(x(2, DIM), x(3, DIM), x(2, DIM), WEIGHT, POOL, SLOT),
        r"c: got shape \(3, 6\)",
    ),
    "SGLang, operator": (
        lambda: sgl_kernel.causal_conv1d_fwd(x(DIM, 7), WEIGHT, x(5), POOL, BORDERS, SLOT, None, True, -1),
        r"bias_: got shape \(5,\)",
    ),
    "SGLang, operator of a step": (
        lambda: sgl_kernel.causal_conv1d_update_operator(
            x=x(2, DIM, 1),
            conv_state=POOL,
            weight=WEIGHT,
            bias_=x(5),
            silu_activation=True,
            cache_seqlens=None,
            conv_state_indices=SLOT,
            pad_slot_id=-1,
        ),
        r"bias_: got shape \(5,\)",
    ),
    "TensorRT-LLM, buffer without axes": (
        lambda: states(tensorrt_llm, state_batch_indices=SLOT, intermediate_states_buffer=[STATE], cache_steps=1),
        "intermediate_states_buffer: got a list; wanted a torch tensor",
    ),
    "TensorRT-LLM, accepted": (
        lambda: tensorrt_llm.causal_conv1d_update_triton(
            x(2, DIM, 2), LONGER, WEIGHT, num_accepted_tokens=SLOT.float()
        ),
        "num_accepted_tokens: got dtype float32",
    ),
    "TensorRT-LLM, prefill without x": (
        lambda: tensorrt_llm.causal_conv1d_fn(None, WEIGHT),
        "x: got a NoneType; wanted a torch tensor",
    ),
    "Megatron-LM, prefill": (
        lambda: megatron.causal_conv1d_varlen_fn(x(7, DIM), WEIGHT, None, BORDERS.float()),
        "cu_seqlens: got dtype float32",
    ),
    "Megatron-LM, states": (
        lambda: megatron.causal_conv1d_varlen_carry_states(x(7, DIM), BORDERS, None),
        "previous_states: got a NoneType; wanted a torch tensor",
    ),
    "Megatron-LM, fewer states than sequences": (
        lambda: megatron.causal_conv1d_varlen_fn(x(7, DIM), WEIGHT, None, BORDERS, x(1, DIM, WIDTH - 1)),
        "slots of initial_states: got 1; wanted at least 2, one a sequence, or fewer sequences$",
    ),
    "Megatron-LM, buffer": (
        lambda: megatron.selective_state_update(STATE, *ROWS, intermediate_ssm_states=STATE),
        "intermediate_ssm_states: got shape",
    ),
    "tokenspeed, update": (
        lambda: tokenspeed.causal_conv1d_update(x(2, DIM), POOL, WEIGHT, output_state_indices=SLOT.float()),
        "output_state_indices: got dtype float32",
    ),
    "tokenspeed, split": (
        lambda: tokenspeed.fused_qkv_split_gdn_prefill(x(7, DIM + 1), *HEADS),
        r"num_q_heads \* head_q.*dim of mixed_qkv",
    ),
    "tokenspeed, fewer windows than sequences": (
        lambda: tokenspeed.causal_conv1d_update(
            x(2, DIM, 2), POOL, WEIGHT, conv_state_indices=SLOT, intermediate_conv_window=x(1, 2, DIM, WIDTH - 1)
        ),
        "rows of intermediate_conv_window: got 1; wanted at least 2, one a sequence",
    ),
    "tokenspeed, windows without axes": (
        lambda: tokenspeed.causal_conv1d_update(x(2, DIM, 2), POOL, WEIGHT, intermediate_conv_window=x(2)[0]),
        r"intermediate_conv_window: got shape \(\); wanted 4 axes",
    ),
    "tokenspeed, replay": (
        lambda: tokenspeed.fused_qkv_split_gdn_prefill(x(7, DIM), *HEADS, replay=(x(7, 6), x(7, 1))),  # type: ignore[arg-type]
        "replay: got 2 arrays; wanted 3",
    ),
    "tokenspeed, replay of one number": (
        lambda: tokenspeed.fused_qkv_split_gdn_prefill(x(7, DIM), *HEADS, replay=3),  # type: ignore[arg-type]
        "replay: got a int; wanted 3 arrays: payload, a and b",
    ),
    "tokenspeed, replay of other gates": (
        lambda: tokenspeed.fused_qkv_split_gdn_prefill(x(7, DIM), *HEADS, replay=(x(7, 6), *GATES)),
        r"replay\[1\]: got dtype float16; wanted float32",
    ),
    "tokenspeed, norms": (
        lambda: tokenspeed.fused_qkv_split_gdn_prefill(x(7, DIM), *HEADS, fuse_l2norm=None),  # type: ignore[arg-type]
        "fuse_l2norm: got None; wanted True or False",
    ),
    "FlashInfer, an array of NumPy": (
        lambda: flashinfer.selective_state_update(
            STATE[:, 0],
            *(each[:, 0] for each in ROWS[:2]),
            ROWS[2][0],
            *(each[:, 0] for each in ROWS[3:5]),
            ROWS[5][0].numpy(),
        ),
        "D: got a ndarray; wanted a torch tensor",
    ),
}
"""Calls that do not fit, and how their errors begin."""


@pytest.mark.parametrize("call", CALLS)
def test_an_error_names_the_engine_s_argument(call: str) -> None:
    function, error = CALLS[call]
    with pytest.raises((TypeError, ValueError), match=f"^{error}"):
        function()


SAME = torch.ones(7).expand(DIM, 7), torch.ones(DIM).expand(2, DIM)
"""x of a prefill, and of a step, with rows that lie over each other."""
SCAN = (x(DIM, 7), x(SLOTS, DIM, 3), x(DIM, 7), -x(DIM, 3).abs(), x(1, 3, 7), x(1, 3, 7))
OVER: dict[str, tuple[Callable[[], Any], str]] = {
    "SGLang, prefill": (lambda: sgl_kernel.causal_conv1d_fn(SAME[0], WEIGHT, None, BORDERS), "x"),
    "SGLang, operator": (
        lambda: sgl_kernel.causal_conv1d_fwd(SAME[0], WEIGHT, None, None, BORDERS, None, None, True, -1),
        "x",
    ),
    "SGLang, step": (lambda: sgl_kernel.causal_conv1d_update(SAME[1], POOL.clone(), WEIGHT), "x"),
    "TensorRT-LLM, operator": (
        lambda: tensorrt_llm.causal_conv1d_fwd(SAME[0], WEIGHT, None, None, BORDERS, None, None, True, -1),
        "x",
    ),
    "TensorRT-LLM, step": (lambda: tensorrt_llm.causal_conv1d_update(SAME[1], POOL.clone(), WEIGHT), "x"),
    "tokenspeed, step": (lambda: tokenspeed.causal_conv1d_update(SAME[1], POOL.clone(), WEIGHT), "x"),
    "vLLM, step": (lambda: vllm.causal_conv1d_update(SAME[1], POOL.clone(), WEIGHT), "x"),
    "vLLM, step with out": (lambda: vllm.causal_conv1d_update(x(2, DIM), POOL.clone(), WEIGHT, out=SAME[1]), "out"),
    "vLLM, scan": (lambda: vllm.selective_scan_fn(*SCAN[:2], SAME[0], *SCAN[3:], query_start_loc=BORDERS), "delta"),
    "vLLM, gated scan": (lambda: vllm.selective_scan_fn(*SCAN, z=SAME[0], query_start_loc=BORDERS), "z"),
}
"""Calls that overwrite an argument, the elements of which share addresses, and how the engine calls it."""


@pytest.mark.parametrize("call", OVER)
def test_a_result_over_an_argument_has_its_name_in_errors(call: str) -> None:
    function, argument = OVER[call]
    with pytest.raises(ValueError, match=f"^{argument}: got strides .* an address of its own for every element$"):
        function()


CODES = STATE.to(torch.int16)
STEP: dict[str, Callable[[], Any]] = {
    "vLLM": lambda: vllm.selective_state_update(CODES, *ROWS, dt_bias=None, out=torch.empty_like(ROWS[0])),
    "SGLang": lambda: sglang.selective_state_update(CODES, *ROWS),
    "TensorRT-LLM": lambda: tensorrt_llm.selective_state_update(CODES, *ROWS),
    "Megatron-LM": lambda: megatron.selective_state_update(CODES, *ROWS),
    "vLLM, scan": lambda: vllm.selective_scan_fn(SCAN[0], SCAN[1].to(torch.int16), *SCAN[2:], query_start_loc=BORDERS),
}
"""Calls with states of codes, for which these engines have no scales."""


@pytest.mark.parametrize("call", STEP)
def test_states_of_codes_are_refused_where_an_engine_has_no_scales(call: str) -> None:
    argument = "ssm_states" if "scan" in call else "state"
    with pytest.raises(TypeError, match=f"^{argument}: got dtype int16; wanted one of float32, float16, bfloat16$"):
        STEP[call]()


@pytest.mark.parametrize("call", [sgl_kernel.causal_conv1d_fn, sgl_kernel.causal_conv1d_fwd])
def test_what_is_no_bool_is_refused_in_sglang_s_words_too(call: Callable[..., Any]) -> None:
    """SGLang's operator, and its test of it, know the error by these words."""
    inputs, pool = x(1, DIM, 4), POOL[:1].clone()
    before = inputs.clone(), pool.clone()
    named = {"has_initial_state": indices("cpu", 1), "conv_states": pool, "query_start_loc": None}
    if call is sgl_kernel.causal_conv1d_fwd:
        named |= {"bias_": None, "cache_indices": None, "silu_activation": True, "pad_slot_id": -1}
    error = r"^has_initial_state: got dtype int32; wanted bool \(has_initial_state must be a bool tensor\)$"
    with pytest.raises(TypeError, match=error):
        call(inputs, WEIGHT, **named)
    assert torch.equal(inputs, before[0]) and torch.equal(pool, before[1])


@pytest.mark.parametrize("kind", [TypeError, RuntimeError])
@pytest.mark.parametrize("call", ["fn", "fwd", "update", "update_operator"])
def test_a_dtype_of_x_is_refused_as_sglang_does(call: str, kind: type[Exception]) -> None:
    inputs, weight = torch.ones(1, 8, 4, dtype=torch.int32), torch.ones(8, 4, dtype=torch.int32)
    pool = torch.ones(1, 8, 3, dtype=torch.int32)
    calls: dict[str, Callable[[], Any]] = {
        "fn": lambda: sgl_kernel.causal_conv1d_fn(inputs, weight),
        "fwd": lambda: sgl_kernel.causal_conv1d_fwd(inputs, weight, None, None, None, None, None, True, -1),
        "update": lambda: sgl_kernel.causal_conv1d_update(inputs, pool, weight),
        "update_operator": lambda: sgl_kernel.causal_conv1d_update_operator(
            inputs, pool, weight, None, True, None, None, -1
        ),
    }
    error = r"^x: got dtype int32; wanted one of float32, float16, bfloat16 \(Unsupported dtype\)$"
    with pytest.raises(kind, match=error):
        calls[call]()
