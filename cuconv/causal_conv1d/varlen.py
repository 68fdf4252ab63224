"""The convolution of packed sequences with their states in a pool, with one result or one per range of channels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cuconv.causal_conv1d import reference
from cuconv.causal_conv1d.kernels import MAX_TOKENS, WIDTHS
from cuconv.causal_conv1d.plan_varlen import Operands, plan
from cuconv.causal_conv1d.split import WHOLE, Split, by_heads, by_sizes
from cuconv.causal_conv1d.states import window
from cuconv.runtime import checks
from cuconv.runtime.call import Arrays, Checked, Layouts, Operation
from cuconv.runtime.dtypes import FLOATS
from cuconv.runtime.errors import message
from cuconv.runtime.launch import MAX_DIVIDEND


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
    first_column: int | None = None,
    out: Any = None,
) -> Any:
    """Depthwise causal convolution of packed sequences, as serving engines prefill: vLLM's causal_conv1d_fn.

    Within sequence i, the tokens query_start_loc[i] to query_start_loc[i + 1] - 1,

        out[d, t] = act(bias[d] + sum over w of weight[d, w] * x[d, t - (width - 1) + w]),

    summed in float32 (Gu and Dao, "Mamba", 2023, section 3.4). The inputs before the first token are the last width - 1
    columns of the sequence's slot of conv_states where has_initial_state[i] is true, else zeros. Then these columns are
    overwritten by the last width - 1 inputs of the sequence, so that it can go on in another call; columns before them,
    and the slot of an empty sequence, stay as they are.

    Padding, the tokens of no sequence, gives 0, and so do the tokens of a sequence with a slot that is pad_slot_id or
    outside the pool: its state is neither read nor written. Two sequences must not share a slot. With CUCONV_CHECK=1 in
    the environment the index arrays are read back and checked, which waits for the GPU; without it the call waits for
    nothing, and a captured CUDA graph may be replayed with other sequences of the same total.

    Arrays are NumPy, CuPy, torch or DLPack ones, all of one kind and on one device, of any strides; x and out with
    contiguous channels (engines' layout) or contiguous tokens have vector kernels.

    Args:
        x: (dim, total), float32, float16 or bfloat16.
        weight: (dim, width), any of these dtypes, width 1 to 16.
        bias: (dim,), weight's dtype or float32.
        conv_states: (slots, dim, state_len), state_len at least width - 1, any of these dtypes; updated in place. None:
            sequences start from zeros and leave nothing.
        query_start_loc: (sequences + 1,), int32 or int64, from 0 up to at most total, never falling. None: a single
            sequence.
        cache_indices: (sequences,), int32 or int64: the slot of each sequence; its own number when None.
        has_initial_state: (sequences,), bool; false when None.
        activation: None, "silu" or "swish" (the same).
        pad_slot_id: the slot number of sequences that only fill a batch. Only given slot numbers are compared with it.
        first_column: which columns of longer states hold the inputs: -1 the last ones, 0 the first width - 1, where
            engines keep them and `causal_conv1d_update` looks for them with num_accepted_tokens. None: the last ones.
        out: shape and dtype of x: where to write the result. It must not overlap any other argument.

    Returns:
        out, laid out in memory like x: of the caller's kind and on the caller's device.

    Raises:
        TypeError: a dtype that is not supported, or arrays of different kinds.
        ValueError: any other argument that does not fit. Nothing has been launched or written then.
    """
    inputs = (x, weight, bias, conv_states, query_start_loc, cache_indices, has_initial_state)
    return _run(WHOLE, inputs, None if out is None else (out,), activation, pad_slot_id, first_column)[0]


def causal_conv1d_split(
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
    sizes: Sequence[int],
    first_column: int | None = None,
    out: Sequence[Any] | None = None,
) -> tuple[Any, ...]:
    """`causal_conv1d_varlen_fn` with a result for each of several ranges of channels, such as x, B and C of Mamba-2.

    One kernel writes them all; there is no intermediate result. Arguments and errors are those of
    `causal_conv1d_varlen_fn`, and:

    Args:
        sizes: the number of channels of every range, in the order of x: 1 to 16 numbers of at least 1 that add up to
            dim.
        out: for every range an array (size, total) of x's dtype and any strides, or None.

    Returns:
        For every range (size, total), laid out in memory like x.
    """
    inputs = (x, weight, bias, conv_states, query_start_loc, cache_indices, has_initial_state)
    return _run(by_sizes(sizes), inputs, out, activation, pad_slot_id, first_column)


def causal_conv1d_qkv_split(
    x: Any,
    weight: Any,
    bias: Any = None,
    conv_states: Any = None,
    query_start_loc: Any = None,
    *,
    num_q_heads: int,
    num_k_heads: int,
    num_v_heads: int,
    head_q: int,
    head_k: int,
    head_v: int,
    cache_indices: Any = None,
    has_initial_state: Any = None,
    activation: str | None = "silu",
    pad_slot_id: int = -1,
    qk_l2norm: bool = False,
    l2norm_eps: float = 1e-6,
    first_column: int | None = None,
    out: Sequence[Any] | None = None,
) -> tuple[Any, Any, Any]:
    """`causal_conv1d_varlen_fn` on the channels q | k | v of linear attention, as Gated DeltaNet and Kimi have it.

    One kernel convolves and writes all three; there is no intermediate result. Arguments and errors are those of
    `causal_conv1d_varlen_fn`, and:

    Args:
        num_q_heads, num_k_heads, num_v_heads: numbers of heads, each at least 1.
        head_q, head_k, head_v: channels per head; dim is num_q_heads * head_q + num_k_heads * head_k + num_v_heads *
            head_v.
        qk_l2norm: divide every head y of q and k, after the activation, by sqrt(sum of y * y + l2norm_eps), computed in
            float32 (Yang et al., "Gated Delta Networks", 2024).
        l2norm_eps: at least 0; without meaning unless qk_l2norm.
        out: (q, k, v), each (1, total, heads, head_dim) of x's dtype and any strides, or None.

    Returns:
        q, k and v, each (1, total, heads, head_dim), contiguous.
    """
    inputs = (x, weight, bias, conv_states, query_start_loc, cache_indices, has_initial_state)
    heads = (num_q_heads, num_k_heads, num_v_heads, head_q, head_k, head_v)
    split = by_heads(*heads, qk_l2norm=qk_l2norm, l2norm_eps=l2norm_eps)
    q, k, v = _run(split, inputs, out, activation, pad_slot_id, first_column)
    return q, k, v


def _run(
    split: Split,
    inputs: tuple[Any, ...],
    out: Sequence[Any] | None,
    activation: str | None,
    pad_slot_id: int,
    first_column: int | None,
) -> tuple[Any, ...]:
    checks.activation(activation)
    options = (split, activation is not None, checks.integer("pad_slot_id", pad_slot_id), checks.column(first_column))
    return tuple(_packed(inputs + split.given_outs(out), options, split.names))


def _check(
    given: Layouts, split: Split, silu: bool, pad_slot_id: int, first_column: int | None = None
) -> Checked[Operands]:
    x, weight, bias, conv_states, query_start_loc, cache_indices, has_initial_state, *_ = given.values()
    assert x is not None
    checks.rank("x", x.shape, "dim, total")
    checks.dtype("x", x.dtype, FLOATS)
    dim, total = x.shape
    checks.between("dim of x", dim, 0, MAX_DIVIDEND)
    checks.between("total of x", total, 0, MAX_TOKENS)
    checks.taps(weight, bias, dim, WIDTHS)
    assert weight is not None
    width = weight.shape[1]
    count = checks.starts("query_start_loc", query_start_loc, MAX_TOKENS)
    checks.slots_of_sequences(given, "conv_states", count)
    if conv_states is not None:
        slots = count if cache_indices is None else 0, "cache_indices"
        checks.pool("conv_states", conv_states, dim, (width - 1, "width - 1"), slots)
        conv_states = window(conv_states, width - 1, first_column)
    elif first_column is not None:
        raise ValueError(message("first_column", first_column, "None unless conv_states is given"))
    axes = "1, total of x, heads, head_dim" if split.has_heads else "channels, total of x"
    results = split.results(given, x, (), (total,), axes)
    outs = tuple(split.by_head(out, (), (total,)) for out in results.values())
    pool = (conv_states, query_start_loc, cache_indices, has_initial_state)
    operands = Operands(x, weight, bias, *pool, outs, split, silu, pad_slot_id)
    return Checked(operands, results, updated=("conv_states",))


def _check_contents(o: Operands, read: Callable[[str], Any]) -> None:
    """Raise ValueError for contents of index arrays that cannot be right."""
    checks.packed_contents(read, o.x.shape[1], o.conv_states.shape[0] if o.conv_states else None, o.pad_slot_id)


def _reference(o: Operands, arrays: Arrays) -> None:
    inputs = {name: array for name, array in arrays.items() if name not in o.split.names}
    if o.conv_states is not None:
        inputs["conv_states"] = inputs["conv_states"][:, :, : o.conv_states.shape[2]]
    activation = "silu" if o.silu else None
    result = reference.convolve_packed(**inputs, activation=activation, pad_slot_id=o.pad_slot_id)
    o.split.write(result, arrays)


_packed = Operation(
    ("x", "weight", "bias", "conv_states", "query_start_loc", "cache_indices", "has_initial_state"),
    name="causal_conv1d_varlen_fn",
    check=_check,
    plan=plan,
    reference=_reference,
    contents=_check_contents,
)
