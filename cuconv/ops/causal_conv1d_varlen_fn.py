"""The causal convolution of packed sequences with their states in a pool."""

from __future__ import annotations

from typing import Any

from cuconv.form import WHOLE
from cuconv.ops.causal_conv1d_varlen_call import run


def causal_conv1d_varlen_fn(
    x: Any,
    weight: Any,
    bias: Any = None,
    conv_states: Any = None,
    query_start_loc: Any = None,
    cache_indices: Any = None,
    has_initial_state: Any = None,
    activation: str | None = "silu",
    pad_slot_id: int = -1,
    *,
    out: Any = None,
) -> Any:
    """Depthwise causal convolution of packed sequences, as serving engines prefill: vLLM's causal_conv1d_fn.

    Within sequence i, the tokens query_start_loc[i] to query_start_loc[i + 1] - 1,

        out[d, t] = act(bias[d] + sum over w of weight[d, w] * x[d, t - (width - 1) + w]),

    summed in float32 (Gu and Dao, "Mamba", 2023, section 3.4). Its inputs before the first token are the last width - 1
    columns of its slot of conv_states where has_initial_state[i] is true, else zeros. Then these columns are
    overwritten by the last width - 1 of all its inputs, so that the sequence can go on in another call; columns before
    them, and the slot of an empty sequence, stay as they are.

    Tokens of no sequence give 0, and so do those of a sequence whose slot is pad_slot_id or outside the pool: its state
    is neither read nor written. Two sequences must not have one slot. With CUCONV_CHECK=1 in the environment
    what the index arrays hold is read back and checked, which waits for the GPU; without it nothing is awaited, and a
    captured CUDA graph may be replayed with other sequences of the same total.

    Arrays are NumPy, CuPy, torch CUDA or DLPack ones, all of one kind and on one device, of any strides; x and out with
    contiguous channels (engines' layout) or contiguous tokens have vector kernels.

    Args:
        x: (dim, total), float32, float16 or bfloat16.
        weight: (dim, width), any of these dtypes, width 1 to 16.
        bias: (dim,), weight's dtype or float32.
        conv_states: (slots, dim, state_len), state_len at least width - 1, any of these dtypes; updated in place. None:
            sequences start from zeros and leave nothing.
        query_start_loc: (sequences + 1,), int32 or int64, from 0 up to at most total, never falling. None: a single
            sequence.
        cache_indices: (sequences,), int32 or int64, the sequences' slots; their numbers when None.
        has_initial_state: (sequences,), bool; false when None.
        activation: None, "silu" or "swish" (the same).
        pad_slot_id: the slot of sequences that are only there to fill a batch.
        out: shape and dtype of x: where to write the result. It must not overlap any other argument.

    Returns:
        out, laid out in memory like x: of the caller's kind and on the caller's device.

    Raises:
        TypeError: a dtype that is not supported, or arrays of different kinds.
        ValueError: any other argument that does not fit. Nothing has been launched or written then.
    """
    inputs = (x, weight, bias, conv_states, query_start_loc, cache_indices, has_initial_state)
    return run(WHOLE, inputs, None if out is None else (out,), activation, pad_slot_id)[0]
