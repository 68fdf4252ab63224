"""The decode step of the causal convolution."""

from __future__ import annotations

from typing import Any

from cuconv.form import WHOLE
from cuconv.ops.causal_conv1d_update_call import run


def causal_conv1d_update(
    x: Any,
    conv_state: Any,
    weight: Any,
    bias: Any = None,
    activation: str | None = None,
    cache_seqlens: Any = None,
    conv_state_indices: Any = None,
    *,
    num_accepted_tokens: Any = None,
    intermediate_conv_window: Any = None,
    intermediate_state_indices: Any = None,
    disable_state_update: bool = False,
    pad_slot_id: int = -1,
    out: Any = None,
) -> Any:
    """Depthwise causal convolution of the next tokens of sequences, as in Dao-AILab's causal-conv1d.

    With the last inputs of a sequence in its slot of conv_state and the new ones in x, for its t-th new token

        out[d, t] = act(bias[d] + sum over w of weight[d, w] * input[d, t - (width - 1) + w]),

    summed in float32 (Gu and Dao, "Mamba", 2023, section 3.4). What came before the first new token is
    found, and what comes with x is kept, in one of three ways:

    - By default a state is a row: its last width - 1 columns are the inputs before. It moves left by seqlen, and the
      new inputs follow.
    - With cache_seqlens it is a ring: token t goes to column (cache_seqlens + t) % state_len, and the inputs before are
      in the width - 1 columns before that of the first token.
    - With num_accepted_tokens it is the window of speculative decoding. The last call left width - 2 inputs and then
      those of its tokens; of these, so many were accepted (0 counts as 1). The inputs before are those up to the last
      accepted one: columns num_accepted_tokens - 1 and following. This call leaves its own in the same way, in the
      first width - 1 + seqlen - 1 columns, and the columns behind them as they are.

    Many tokens in one call, or as many calls of one token, or the prefill of `causal_conv1d_varlen_fn` give the same
    bits as long as the states hold x's values exactly. Arrays are NumPy, CuPy, torch CUDA or DLPack ones, all of one
    kind and on one device, of any strides. The kernel runs on the caller's current stream; nothing is awaited but under
    CUCONV_CHECK=1, which reads index arrays back and checks them.

    Args:
        x: (batch, dim) or (batch, dim, seqlen), float32, float16 or bfloat16.
        conv_state: (slots, dim, state_len), state_len at least width - 1, any of these dtypes; updated in place.
        weight: (dim, width), any of these dtypes, width 1 to 16.
        bias: (dim,), weight's dtype or float32.
        activation: None, "silu" or "swish" (the same).
        cache_seqlens: (batch,), int32 or int64: how many tokens the sequences had before.
        conv_state_indices: (batch,), int32 or int64: the sequences' slots, their numbers when None. A sequence whose
            slot is negative, pad_slot_id or outside the pool gives 0, and nothing of it is read or written. Two
            sequences must not have one slot.
        num_accepted_tokens: (batch,), int32 or int64. A sequence of which more are accepted than the state can hold
            gives 0, and nothing of it is read or written. state_len must be at least width - 1 + seqlen - 1.
        intermediate_conv_window: (rows, steps, dim, width - 1), conv_state's dtype, steps at least seqlen: receives
            the width - 1 inputs that end with each token.
        intermediate_state_indices: (batch,), int32 or int64: the sequences' rows there, their slots when None. Of a
            sequence whose row is outside nothing is written there. Two sequences must not have one row.
        disable_state_update: leave conv_state as it is.
        pad_slot_id: the slot of sequences that are only there to fill a batch.
        out: shape and dtype of x: where to write the result. It may be x itself, but must not overlap any other
            argument.

    Returns:
        out, its channels contiguous in memory where x's are, of the caller's kind and on the caller's device.

    Raises:
        TypeError: a dtype that is not supported, or arrays of different kinds.
        ValueError: any other argument that does not fit, or that has no meaning beside another one. Nothing has been
            launched or written then.
    """
    inputs = (
        *(x, conv_state, weight, bias, cache_seqlens, conv_state_indices, num_accepted_tokens),
        *(intermediate_conv_window, intermediate_state_indices),
    )
    return run(WHOLE, inputs, None if out is None else (out,), activation, disable_state_update, pad_slot_id)[0]
