"""The decode step of selective state space models."""

from __future__ import annotations

from typing import Any

import numpy as np

from cuconv import checks
from cuconv.ops.selective_state_update_call import MAX_ROUNDS, run


def selective_state_update(
    state: Any,
    x: Any,
    dt: Any,
    A: Any,
    B: Any,
    C: Any,
    D: Any = None,
    z: Any = None,
    dt_bias: Any = None,
    dt_softplus: bool = False,
    state_batch_indices: Any = None,
    *,
    dst_state_batch_indices: Any = None,
    intermediate_states_buffer: Any = None,
    intermediate_state_indices: Any = None,
    num_accepted_tokens: Any = None,
    cu_seqlens: Any = None,
    disable_state_update: bool = False,
    pad_slot_id: int = -1,
    rand_seed: Any = None,
    philox_rounds: int = 10,
    out: Any = None,
) -> Any:
    """The recurrence of Mamba and Mamba-2 for the next tokens of sequences, with the meaning it has in mamba_ssm.

    With the sequence's state S of (headdim, d_state) in every head h, for one token after the other:

        dt' = softplus(dt + dt_bias), or without dt_softplus dt + dt_bias
        S = S * exp(dt' * A) + dt' * B * x
        y = sum over d_state of S * C, + D * x
        out = y * z * sigmoid(z)

    in float32 (Gu and Dao, "Mamba", 2023, and Dao and Gu, "Transformers are SSMs", 2024). Where A, dt and dt_bias are
    the same for all rows of a head, by strides of 0 as Mamba-2 passes them, the exponential is computed once a head.

    x may hold several tokens a sequence, or with cu_seqlens packed sequences of any lengths. Arrays are NumPy, CuPy,
    torch CUDA or DLPack ones, all of one kind and on one device, of any strides. The kernel runs on the caller's
    current stream; nothing is awaited but under CUCONV_CHECK=1, which reads index arrays back and checks them.

    Args:
        state: (slots, dim, d_state) or (slots, nheads, headdim, d_state), float32, float16 or bfloat16, d_state 1 to
            512; updated in place.
        x: (batch, dim) or (batch, nheads, headdim); also, with heads, (batch, tokens, nheads, headdim), or (tokens,
            nheads, headdim) packed. Any of these dtypes.
        dt: shape of x; x's dtype or float32.
        A: (dim, d_state) or (nheads, headdim, d_state); x's dtype or float32.
        B, C: (batch, d_state), with heads (batch, [tokens,] ngroups, d_state) or (tokens, ngroups, d_state) packed;
            x's dtype. nheads is a multiple of ngroups.
        D, dt_bias: (dim,) or (nheads, headdim); x's dtype or float32. Zeros when None.
        z: shape and dtype of x; no gate when None.
        dt_softplus: apply softplus, linear above 20.
        state_batch_indices: (batch,), int32 or int64: the slots that sequences start from, their numbers when None. A
            sequence whose slot is negative, pad_slot_id or outside the pool gives 0, and nothing of it is read or
            written. (batch, columns) with num_accepted_tokens.
        dst_state_batch_indices: (batch,), int32 or int64: the slots for the states after the last token, where they
            came from when None. (batch, columns): for the state after each token a slot; tokens beyond leave none. A
            slot that is no slot is not written.
        intermediate_states_buffer: (rows, steps, ...) and as state behind its slots, state's dtype: receives the state
            after each token, too. steps is at least tokens; of packed sequences later tokens leave none.
        intermediate_state_indices: (batch,), int32 or int64: the sequences' rows there, the slots that they start from
            when None. A row outside is not written. Two sequences must not have one row.
        num_accepted_tokens: (batch,), int32 or int64, of speculative decoding: sequence i starts from slot
            state_batch_indices[i, num_accepted_tokens[i] - 1] (0 counts as 1), and the states after each of its tokens
            go to the slots in dst_state_batch_indices[i], or else state_batch_indices[i].
        cu_seqlens: (sequences + 1,), int32 or int64, from 0 up to at most tokens, never falling. Tokens of no sequence
            give 0.
        disable_state_update: leave state as it is.
        pad_slot_id: the slot of sequences that are only there to fill a batch.
        rand_seed: round states of bfloat16 or float16 up or down at random, so that their expected value is right: a
            seed of 64 bits, or an int64 array of one element. Random numbers are Philox-4x32's (Salmon et
            al., "Parallel random numbers: as easy as 1, 2, 3", 2011) for the element's number in its slot, the
            sequence's in the batch and the token's in the sequence: the same on every GPU.
        philox_rounds: 1 to 20.
        out: shape and dtype of x: where to write the result. It may be x itself, but must not overlap any other
            argument.

    Returns:
        out, contiguous: of the caller's kind and on the caller's device.

    Raises:
        TypeError: a dtype that is not supported, or arrays of different kinds.
        ValueError: any other argument that does not fit, or that has no meaning beside another one. Nothing has been
            launched or written then.
    """
    checks.integer("pad_slot_id", pad_slot_id)
    checks.integer("philox_rounds", philox_rounds)
    checks.between("philox_rounds", philox_rounds, 1, MAX_ROUNDS)
    seed = None
    if rand_seed is not None and isinstance(rand_seed, int | np.integer):
        if isinstance(rand_seed, bool):
            checks.integer("rand_seed", rand_seed)
        checks.between("rand_seed", int(rand_seed), 0, 2**64 - 1)
        seed, rand_seed = int(rand_seed), None
    given = (
        *(state, x, dt, A, B, C, D, z, dt_bias, state_batch_indices, dst_state_batch_indices),
        *(intermediate_states_buffer, intermediate_state_indices, num_accepted_tokens, cu_seqlens, rand_seed, out),
    )
    return run(given, dt_softplus, disable_state_update, pad_slot_id, seed, philox_rounds)
