"""The gradients of the causal convolutions in NumPy and float64, and how far float32 kernels may be off."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from cuconv.causal_conv1d.sequences import sequence_starts
from cuconv.runtime.activation import HALF_ULP, sigmoid

Array = np.ndarray[Any, Any]


TANH_ERROR = 1.1e-5
"""The error of the hardware's approximate tanh(h) times |h|, for 16-bit inputs (common/activation.cuh)."""

TANH_RELATIVE_ERROR = 2.0**-10.9
"""The relative error of the hardware's approximate tanh (PTX ISA, tanh.approx.f32)."""


class Gradients(NamedTuple):
    """Gradients, or bounds of their errors, in float64."""

    dx: Array
    dweight: Array
    dbias: Array
    dinitial_states: Array


def causal_conv1d_bwd(
    x: Array,
    weight: Array,
    bias: Array | None,
    dout: Array,
    seq_idx: Array | None = None,
    initial_states: Array | None = None,
    dfinal_states: Array | None = None,
    activation: str | None = None,
) -> Gradients:
    """The gradients of `causal_conv1d_fn`.

    With xe = [initial state | x], the sum before the activation pre[t] = bias + sum_w weight[w] * xe[t + w], and g[t] =
    dout[t] * act'(pre[t]): dxe[p] = sum_w weight[w] * g[p - w], of which the first width - 1 columns are the initial
    state's;
    dweight[w] = sum over batch and t of g[t] * xe[t + w]; dbias = sum of g; the final state's gradient is added to the
    last width - 1 columns of dxe. Terms that cross from one sequence number to another are left out, and g is 0 where
    the number is negative.
    """
    return _dense(x, weight, bias, dout, seq_idx, initial_states, dfinal_states, activation, error_of=None)


def causal_conv1d_bwd_error(
    x: Array,
    weight: Array,
    bias: Array | None,
    dout: Array,
    seq_idx: Array | None = None,
    initial_states: Array | None = None,
    dfinal_states: Array | None = None,
    activation: str | None = None,
) -> Gradients:
    """By how much each gradient may be off when it is computed in float32, before it is stored.

    A sum of n products, in any order, rounds no term more often than n + 1 times. The derivative of silu feels an
    error of its argument by at most 1/2, and has one of its own: by CUDA's programming guide exp is off by 2 + 1.173
    |v| ulp and the division by 2; for 16-bit inputs the hardware's tanh by TANH_RELATIVE_ERROR.
    """
    return _dense(x, weight, bias, dout, seq_idx, initial_states, dfinal_states, activation, error_of=x.dtype)


def causal_conv1d_varlen_bwd(
    x: Array,
    weight: Array,
    bias: Array | None,
    dout: Array,
    query_start_loc: Array | None = None,
    initial_states: Array | None = None,
    cache_indices: Array | None = None,
    has_initial_state: Array | None = None,
    dfinal_states: Array | None = None,
    activation: str | None = "silu",
    pad_slot_id: int = -1,
) -> Gradients:
    """The gradients of `causal_conv1d_varlen_fn`, sequence by sequence those of `causal_conv1d_bwd`.

    dinitial_states is (sequences, dim, width - 1), zero for a sequence that starts from zeros or whose slot is padding.
    """
    arrays = (x, weight, bias, dout, query_start_loc, initial_states, cache_indices, has_initial_state, dfinal_states)
    return _varlen(*arrays, activation, pad_slot_id, error_of=None)


def causal_conv1d_varlen_bwd_error(
    x: Array,
    weight: Array,
    bias: Array | None,
    dout: Array,
    query_start_loc: Array | None = None,
    initial_states: Array | None = None,
    cache_indices: Array | None = None,
    has_initial_state: Array | None = None,
    dfinal_states: Array | None = None,
    activation: str | None = "silu",
    pad_slot_id: int = -1,
) -> Gradients:
    """By how much each gradient may be off, as `causal_conv1d_bwd_error` says."""
    arrays = (x, weight, bias, dout, query_start_loc, initial_states, cache_indices, has_initial_state, dfinal_states)
    return _varlen(*arrays, activation, pad_slot_id, error_of=x.dtype)


def _dense(
    x: Array,
    weight: Array,
    bias: Array | None,
    dout: Array,
    seq_idx: Array | None,
    initial_states: Array | None,
    dfinal_states: Array | None,
    activation: str | None,
    error_of: np.dtype[Any] | None,
    tokens: int = 0,
) -> Gradients:
    """Gradients or their errors; parameters' gradients are sums over `tokens` tokens, those of x when 0."""
    batch, dim, seqlen = x.shape
    halo = weight.shape[1] - 1
    tokens = tokens or batch * seqlen
    past = np.zeros((batch, dim, halo)) if initial_states is None else initial_states.astype(np.float64)
    inputs = np.concatenate([past, x.astype(np.float64)], axis=2)
    taps = weight.astype(np.float64)[:, :, None]
    meets = _meets(seq_idx, batch, seqlen, halo)

    def terms(w: int, values: Array) -> Array:
        return np.where(meets[w][:, None], values, 0.0)

    pre = np.zeros((batch, dim, seqlen))
    if bias is not None:
        pre += bias.astype(np.float64)[:, None]
    size = np.abs(pre)
    for w in range(halo + 1):
        product = terms(w, taps[:, w] * inputs[:, :, w : w + seqlen])
        pre, size = pre + product, size + np.abs(product)
    incoming = np.where(meets[halo][:, None], dout.astype(np.float64), 0.0)
    slope = np.ones_like(pre) if activation is None else _silu_slope(pre)
    g = incoming * slope
    wrong = np.zeros_like(g)
    if error_of is not None:
        if activation is not None:
            wrong = np.abs(incoming) * (0.5 * (halo + 3) * HALF_ULP * size + _slope_error(pre, error_of))
        wrong += 2.0 * HALF_ULP * np.abs(g)

    dxe, dxe_wrong = np.zeros_like(inputs), np.zeros_like(inputs)
    dweight, dweight_wrong = np.zeros(weight.shape), np.zeros(weight.shape)
    for w in range(halo + 1):
        dxe[:, :, w : w + seqlen] += terms(w, taps[:, w] * g)
        products = terms(w, g * inputs[:, :, w : w + seqlen])
        dweight[:, w] = products.sum(axis=(0, 2))
        if error_of is not None:
            roundings = (halo + 3) * HALF_ULP
            dxe_wrong[:, :, w : w + seqlen] += terms(w, np.abs(taps[:, w]) * (wrong + roundings * np.abs(g)))
            of_sums = terms(w, np.abs(inputs[:, :, w : w + seqlen]) * wrong)
            of_sums += _roundings(tokens) * HALF_ULP * np.abs(products)
            dweight_wrong[:, w] = of_sums.sum(axis=(0, 2))
    if dfinal_states is not None:
        dxe[:, :, seqlen:] += dfinal_states.astype(np.float64)
        dxe_wrong[:, :, seqlen:] += HALF_ULP * np.abs(dxe[:, :, seqlen:])
    if error_of is None:
        return Gradients(dxe[:, :, halo:], dweight, g.sum(axis=(0, 2)), dxe[:, :, :halo])
    dbias_wrong = (wrong + _roundings(tokens) * HALF_ULP * np.abs(g)).sum(axis=(0, 2))
    # Kernels flush small numbers to zero, and the bounds leave out products of errors.
    all_wrong = (dxe_wrong[:, :, halo:], dweight_wrong, dbias_wrong, dxe_wrong[:, :, :halo])
    return Gradients(*(1.01 * each + 2.0**-118 for each in all_wrong))


def _roundings(tokens: int) -> float:
    """The rounding error of a sum over tokens, in units of the error of one term: at most the number of terms, and
    because errors have either sign, hardly ever more than a few times its square root (Higham and Mary, "A new approach
    to probabilistic rounding error analysis", 2019, theorem 2.4 with lambda = 8). Kernels add in parts, where a term
    meets far fewer additions.
    """
    return min(tokens + 1.0, 8.0 * float(np.sqrt(tokens + 1)))


def _meets(seq_idx: Array | None, batch: int, seqlen: int, halo: int) -> list[Array]:
    """For each tap, whether each token sees its input: (batch, seqlen) of bool."""
    if seq_idx is None or not seqlen:
        return [np.ones((batch, seqlen), bool)] * (halo + 1)
    numbers = np.concatenate([np.repeat(seq_idx[:, :1], halo, axis=1), seq_idx], axis=1)
    return [(numbers[:, w : w + seqlen] == seq_idx) & (seq_idx >= 0) for w in range(halo + 1)]


def _silu_slope(v: Array) -> Array:
    s = sigmoid(v)
    slope: Array = s * (1.0 + v * sigmoid(-v))
    return slope


def _slope_error(v: Array, dtype: np.dtype[Any]) -> Array:
    """The error of the derivative of silu at an exact argument."""
    size = np.abs(_silu_slope(v))
    if dtype == np.float32:
        s, rest = sigmoid(v), sigmoid(-v)
        # s feels the exponential by the rest, and the derivative s by 1 + v * (1 - 2 s).
        of_s = s * (rest * 2.0 * HALF_ULP * (2.0 + 1.173 * np.abs(v)) + 5.0 * HALF_ULP)
        error: Array = np.abs(1.0 + v * (rest - s)) * of_s + HALF_ULP * (s * np.abs(v) * rest + size)
        return error
    half = 0.5 * v
    t = np.tanh(half)
    with np.errstate(divide="ignore"):
        of_t = np.minimum(TANH_RELATIVE_ERROR * np.abs(t), TANH_ERROR / np.abs(half))
    error = np.abs(0.5 - half * t) * of_t + 4.0 * HALF_ULP * (size + np.abs(half))
    return error


def _varlen(
    x: Array,
    weight: Array,
    bias: Array | None,
    dout: Array,
    query_start_loc: Array | None,
    initial_states: Array | None,
    cache_indices: Array | None,
    has_initial_state: Array | None,
    dfinal_states: Array | None,
    activation: str | None,
    pad_slot_id: int,
    error_of: np.dtype[Any] | None,
) -> Gradients:
    dim, total = x.shape
    halo = weight.shape[1] - 1
    starts = sequence_starts(query_start_loc, total)
    count = len(starts) - 1
    sums = Gradients(np.zeros(x.shape), np.zeros(weight.shape), np.zeros(dim), np.zeros((count, dim, halo)))
    slots = range(count) if cache_indices is None else cache_indices.tolist()
    for i, slot in enumerate(slots):
        begin, end = starts[i], max(starts[i], starts[i + 1])
        past, follows = None, False
        if initial_states is not None:
            is_padding = cache_indices is not None and slot == pad_slot_id
            if is_padding or not 0 <= slot < len(initial_states):
                continue
            follows = has_initial_state is None or bool(has_initial_state[i])
            if follows:
                past = initial_states[None, slot, :, initial_states.shape[2] - halo :]
        final = None if dfinal_states is None else dfinal_states[i : i + 1]
        own = np.s_[None, :, begin:end]
        one = _dense(x[own], weight, bias, dout[own], None, past, final, activation, error_of, total)
        sums.dx[:, begin:end] = one.dx[0]
        np.add(sums.dweight, one.dweight, out=sums.dweight)
        np.add(sums.dbias, one.dbias, out=sums.dbias)
        if follows:
            sums.dinitial_states[i] = one.dinitial_states[0]
    return sums


def _errors(error: Gradients, arguments: Mapping[str, Any]) -> dict[str, Array]:
    """The errors of the gradients that a call with these arguments computes."""
    given = {"dbias": arguments.get("bias"), "dinitial_states": arguments.get("initial_states")}
    return {name: each for name, each in error._asdict().items() if name not in given or given[name] is not None}


def _dense_errors(*, float32_gradients: bool = False, **arguments: Any) -> dict[str, Array]:
    return _errors(causal_conv1d_bwd_error(**arguments), arguments)


def _varlen_errors(*, float32_gradients: bool = False, **arguments: Any) -> dict[str, Array]:
    return _errors(causal_conv1d_varlen_bwd_error(**arguments), arguments)


ERRORS: Mapping[str, Callable[..., dict[str, Array]]] = {
    "causal_conv1d_bwd": _dense_errors,
    "causal_conv1d_varlen_bwd": _varlen_errors,
}
"""By public function, a function of its arguments except outputs that returns the errors by result."""
