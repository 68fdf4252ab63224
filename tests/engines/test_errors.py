"""Errors of adapters name the engine's arguments, and say what an adapter needs before it looks at shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from cuconv.engines import megatron, sgl_kernel, sglang, tensorrt_llm, tokenspeed, vllm  # noqa: E402
from tests.engines.tensors import indices, normal  # noqa: E402

DIM, WIDTH, SLOTS = 6, 4, 5


def x(*sizes: int) -> Any:
    return normal("cpu", *sizes)


WEIGHT, POOL, LONGER = x(DIM, WIDTH), x(SLOTS, DIM, WIDTH - 1), x(SLOTS, DIM, WIDTH + 2)
BORDERS, SLOT = indices("cpu", 0, 4, 7), indices("cpu", 1, 3)
STATE, ROWS = x(SLOTS, 2, 3, 4), [x(2, 2, 3), x(2, 2, 3), -x(2, 3, 4).abs(), x(2, 1, 4), x(2, 1, 4), x(2, 3)]
HEADS = (1, 1, 1, 2, 2, 2)


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
    "vLLM, rounding": (
        lambda: states(vllm, enable_stochastic_rounding=True),
        "enable_stochastic_rounding: got a seed; wanted None for a float32 state",
    ),
    "SGLang, rounding": (
        lambda: states(sglang, enable_stochastic_rounding=True),
        "enable_stochastic_rounding: got a seed; wanted None for a float32 state",
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
    "tokenspeed, replay": (
        lambda: tokenspeed.fused_qkv_split_gdn_prefill(x(7, DIM), *HEADS, replay=(x(7, 6), x(7, 1))),  # type: ignore[arg-type]
        "replay: got 2 arrays; wanted 3",
    ),
}
"""Calls that do not fit, and how their errors begin."""


@pytest.mark.parametrize("call", CALLS)
def test_an_error_names_the_engine_s_argument(call: str) -> None:
    function, error = CALLS[call]
    with pytest.raises((TypeError, ValueError), match=f"^{error}"):
        function()
