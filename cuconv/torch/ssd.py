"""The chunked scan of Mamba-2 by torch's matrix products, and the block's inner part around cuconv's convolution.

Dao and Gu, "Transformers are SSMs", 2024, section 6: within a chunk of tokens the scan is a product with a matrix of
tokens by tokens; between chunks states are handed on. All of it is computed in float32.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from cuconv.causal_conv1d.dense import causal_conv1d_fn
from cuconv.runtime import checks
from cuconv.runtime.errors import message
from cuconv.torch.blocks import rmsnorm_fn

MAX_CHUNK = 128
"""Most tokens of a chunk. Longer chunks have larger matrices, and shorter ones more states. Both are kept for the
gradients, and at this length they take equal memory for states of 64 by 128."""


def mamba_chunk_scan_combined(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    seq_idx: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, math.inf),
    return_final_states: bool = False,
    return_varlen_states: bool = False,
    state_dtype: torch.dtype | None = None,
) -> Any:
    """The scan of heads with one decay each: state = exp(dt * A) * state + dt * x * B; y = state @ C + D * x.

    Args:
        x: (batch, seqlen, nheads, headdim).
        dt: (batch, seqlen, nheads): the steps, before bias, softplus and limits.
        A: (nheads,), negative.
        B, C: (batch, seqlen, ngroups, d_state).
        chunk_size: most tokens of a chunk; it changes the result only by rounding.
        D: (nheads,) or (nheads, headdim).
        z: x's shape: the gate; y * silu(z) is returned.
        dt_bias: (nheads,).
        initial_states: (batch, nheads, headdim, d_state): the states before the first tokens.
        seq_idx: (batch, seqlen): the number of each token's sequence; states do not pass from one to another.
        cu_seqlens: (sequences + 1,): the borders of the sequences in a batch of one, for return_varlen_states. Returned
            states are those of separate sequences even without seq_idx.
        dt_softplus: whether the step is the softplus of dt + dt_bias.
        dt_limit: the range that steps are clamped to.
        return_final_states: also return the states after the last tokens.
        return_varlen_states: also return the states after the last tokens of the sequences of cu_seqlens.
        state_dtype: the dtype of returned states; float32 when None.

    Returns:
        y, shape and dtype of x; then, if wanted, final states (batch, nheads, headdim, d_state), and states of
        sequences (sequences, nheads, headdim, d_state).

    Raises:
        ValueError: a shape that does not fit.
    """
    device = x.device.type
    _check(x, dt, A, B, C, D, z, dt_bias, initial_states, seq_idx)
    if return_varlen_states:
        if cu_seqlens is None or x.shape[0] != 1:
            got = "None" if cu_seqlens is None else f"a batch of {x.shape[0]}"
            raise ValueError(message("cu_seqlens", got, "the borders of sequences in a batch of one"))
        checks.rank("cu_seqlens", cu_seqlens.shape, "sequences + 1")
        if seq_idx is None:
            seq_idx = torch.searchsorted(cu_seqlens[1:], torch.arange(x.shape[1], device=x.device), right=True)[None]
    with torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext():
        steps = dt_bias, dt_softplus, dt_limit
        y, last, chunks = _scan(x, dt, A, B, C, chunk_size, D, z, initial_states, seq_idx, *steps)
        states = [last] if return_final_states else []
        if return_varlen_states and cu_seqlens is not None:
            nothing = last.new_zeros(cu_seqlens.shape[0] - 1, *last.shape[1:])
            states.append(nothing if chunks is None else chunks.states_behind(cu_seqlens))
    return (y, *(each.to(state_dtype or each.dtype) for each in states)) if states else y


def _check(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    dt_bias: Tensor | None,
    initial_states: Tensor | None,
    seq_idx: Tensor | None,
) -> None:
    """Raise for a shape that does not fit. torch would repeat a single row, head or group, or return another shape."""
    checks.rank("x", x.shape, "batch, seqlen, nheads, headdim")
    checks.rank("B", B.shape, "batch, seqlen, ngroups, d_state")
    (batch, seqlen, nheads, headdim), (ngroups, d_state) = x.shape, B.shape[2:]
    if ngroups == 0 or nheads % ngroups:
        raise ValueError(message("ngroups of B", ngroups, f"a divisor of nheads of x, {nheads}"))
    for argument, each, shape, axes in (
        ("dt", dt, (batch, seqlen, nheads), "batch, seqlen, nheads of x"),
        ("A", A, (nheads,), "nheads of x"),
        ("B", B, (batch, seqlen, ngroups, d_state), "batch, seqlen of x, ngroups, d_state"),
        ("C", C, tuple(B.shape), "the shape of B"),
        ("z", z, tuple(x.shape), "the shape of x"),
        ("dt_bias", dt_bias, (nheads,), "nheads of x"),
        ("initial_states", initial_states, (batch, nheads, headdim, d_state), "batch, nheads, headdim of x, d_state"),
        ("seq_idx", seq_idx, (batch, seqlen), "batch, seqlen of x"),
    ):
        if each is not None:
            checks.shape(argument, tuple(each.shape), shape, axes)
    if D is not None and tuple(D.shape) not in ((nheads,), (nheads, headdim)):
        raise ValueError(message("D", f"shape {tuple(D.shape)}", f"({nheads},) or ({nheads}, {headdim})"))


def _scan(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int,
    D: Tensor | None,
    z: Tensor | None,
    initial_states: Tensor | None,
    seq_idx: Tensor | None,
    dt_bias: Tensor | None,
    dt_softplus: bool,
    dt_limit: tuple[float, float],
) -> tuple[Tensor, Tensor, _Chunks | None]:
    """y, the states after the last tokens in float32, and the chunks, None where there is no token."""
    batch, seqlen, nheads, headdim = x.shape
    ngroups, d_state = B.shape[2:]
    heads = ngroups, nheads // ngroups
    wide = torch.promote_types(x.dtype, torch.float32)
    steps = dt.to(wide) if dt_bias is None else dt.to(wide) + dt_bias.to(wide)
    steps = F.softplus(steps) if dt_softplus else steps
    steps = steps if dt_limit == (0.0, math.inf) else steps.clamp(*dt_limit)
    # A compiled graph serves prompts of all lengths only if none of its branches depends on the length.
    is_graph = torch.compiler.is_compiling()
    tokens = max(1, min(chunk_size, MAX_CHUNK) if is_graph else min(chunk_size, MAX_CHUNK, seqlen))
    rest = (seqlen + tokens - 1) // tokens * tokens - seqlen

    def chunks(each: Tensor) -> Tensor:
        """(batch, chunks, tokens, ...) of (batch, seqlen, ...); padding after the last token has steps of zero."""
        padded = F.pad(each.to(wide), (0, 0) * (each.dim() - 2) + (0, rest)) if is_graph or rest else each.to(wide)
        return padded.unflatten(1, (-1, tokens))

    into, out_of, steps = chunks(B), chunks(C), chunks(steps)
    inputs = (chunks(x) * steps[..., None]).unflatten(3, heads)
    decays = (steps * A.to(wide)).cumsum(2)
    same, goes_on, begins = _bounds(seq_idx, tokens, rest, x.device)
    # Where neighbouring numbers are read by neighbouring threads the differences take half the time.
    by_head = decays.mT.contiguous()
    since = (by_head[..., :, None] - by_head[..., None, :]).masked_fill(~same, -math.inf).exp()
    scores = torch.einsum("bclgn,bcsgn->bcgls", out_of, into)
    matrix = since.unflatten(2, heads) * scores[:, :, :, None]
    y = torch.einsum("bcgkls,bcsgkp->bclgkp", matrix, inputs)
    left = ((decays[:, :, -1:] - decays).exp() * same[:, :, 0, -1, :, None]).unflatten(3, heads)
    added = torch.einsum("bclgkp,bclgn->bcgkpn", inputs * left[..., None], into)
    state = inputs.new_zeros(batch, *heads, headdim, d_state)
    if initial_states is not None:
        state = initial_states.to(wide).unflatten(1, heads)
    found = None
    if is_graph or added.shape[1]:
        hand_over = _hand_over_at_once if is_graph else _hand_over
        before, state = hand_over(state, added, decays[:, :, -1], goes_on)
        since_begin = (decays.exp() * begins).unflatten(3, heads)[..., None]
        found = _Chunks(inputs, into, since, since_begin, before)
        y = torch.addcmul(y, torch.einsum("bclgn,bcgkpn->bclgkp", out_of, found.before), since_begin)
    else:
        # Without a token these are the initial states, which must not change when the caller updates the result.
        state = state.clone()
    y = y.flatten(1, 2)[:, :seqlen].flatten(2, 3)
    if D is not None:
        y = torch.addcmul(y, x.to(wide), D.to(wide) if D.dim() == 2 else D.to(wide)[:, None])
    y = y if z is None else y * F.silu(z.to(wide))
    # Models look at it as (batch, seqlen, channels).
    return y.to(x.dtype).contiguous(), state.flatten(1, 2), found


def _hand_over(state: Tensor, added: Tensor, totals: Tensor, goes_on: Any) -> tuple[Tensor, Tensor]:
    """The states before chunks, (batch, chunks, ngroups, heads of a group, headdim, d_state), and after the last.

    Args:
        state: (batch, ngroups, heads of a group, headdim, d_state): the states before the first chunk.
        added: (batch, chunks, ngroups, heads of a group, headdim, d_state): what chunks add to states.
        totals: (batch, chunks, nheads): the logarithm of what is left of a state after each chunk.
        goes_on: (batch, chunks, 1): whether states pass through a chunk; 1.0 where all do.
    """
    kept = (totals.exp() * goes_on).unflatten(2, added.shape[2:4])[..., None, None]
    before = []
    for own, factor in zip(added.unbind(1), kept.unbind(1), strict=True):
        before.append(state)
        state = torch.addcmul(own, factor, state)
    return torch.stack(before, dim=1), state


def _hand_over_at_once(state: Tensor, added: Tensor, totals: Tensor, goes_on: Any) -> tuple[Tensor, Tensor]:
    """What `_hand_over` returns, by one product instead of a loop: a compiled graph would unroll the loop, and so serve
    one number of chunks only.

    Sums over many chunks are large beside their differences, so they are taken in float64.
    """
    after = F.pad(totals.double().cumsum(1), (0, 0, 1, 0)).mT
    count = after.shape[2]
    passes = torch.ones(count, count, dtype=torch.bool, device=added.device).tril()
    if isinstance(goes_on, Tensor):
        ends = F.pad((~goes_on).cumsum(1), (0, 0, 1, 0)).mT
        passes = passes & (ends[..., :, None] == ends[..., None, :])
    decays = (after[..., :, None] - after[..., None, :]).masked_fill(~passes, -math.inf).exp().to(added.dtype)
    sources = torch.cat((state[:, None], added), dim=1)
    states = torch.einsum("bgkcs,bsgkpn->bcgkpn", decays.unflatten(1, added.shape[2:4]), sources)
    return states[:, :-1], states[:, -1]


def _bounds(seq_idx: Tensor | None, tokens: int, rest: int, device: torch.device) -> tuple[Tensor, Any, Any]:
    """Which states pass: (batch, chunks, 1, tokens, tokens) from token to token of a chunk; (batch, chunks, 1) from the
    state before a chunk to the one after it; and (batch, chunks, tokens, 1) from the state before a chunk to its
    tokens.
    """
    earlier = torch.ones(1, 1, 1, tokens, tokens, dtype=torch.bool, device=device).tril()
    if seq_idx is None:
        return earlier, 1.0, 1.0
    numbers = torch.cat((seq_idx, seq_idx[:, -1:].expand(-1, rest)), dim=1).unflatten(1, (-1, tokens))
    before = torch.cat((numbers[:, :1, :1], numbers[:, :-1, -1:]), dim=1)
    begins = (numbers == before)[..., None]
    same = numbers[:, :, None, :, None] == numbers[:, :, None, None, :]
    return same & earlier, begins[:, :, -1], begins


class _Chunks(NamedTuple):
    """The quantities of chunks of tokens that a scan has computed."""

    inputs: Tensor
    """(batch, chunks, tokens, ngroups, heads of a group, headdim): x by the steps."""
    into: Tensor
    """B: (batch, chunks, tokens, ngroups, d_state)."""
    since: Tensor
    """(batch, chunks, nheads, tokens, tokens): the decay from each token to each later one of its sequence."""
    since_begin: Tensor
    """(batch, chunks, tokens, ngroups, heads of a group, 1): the decay, up to each token, of the state before the
    chunk."""
    before: Tensor
    """(batch, chunks, ngroups, heads of a group, headdim, d_state): the states before the chunks."""

    def states_behind(self, cu_seqlens: Tensor) -> Tensor:
        """The states after the last tokens of sequences, zeros behind empty ones. The host reads no borders."""
        begins, ends = cu_seqlens[:-1].long(), cu_seqlens[1:].long()
        tokens, heads = self.inputs.shape[2], self.inputs.shape[3:5]
        chunk, token = (ends - 1).clamp(min=0) // tokens, (ends - 1).clamp(min=0) % tokens
        decays = self.since[0, chunk, :, token].mT.unflatten(2, heads)
        inputs = self.inputs[0, chunk] * decays[..., None]
        states = torch.einsum("slgkp,slgn->sgkpn", inputs, self.into[0, chunk])
        states = torch.addcmul(states, self.before[0, chunk], self.since_begin[0, chunk, token][..., None])
        is_empty = (begins == ends)[:, None, None, None, None]
        return states.masked_fill(is_empty, 0).flatten(1, 2)


def mamba_split_conv1d_scan_combined(
    zxbcdt: Tensor,
    conv1d_weight: Tensor,
    conv1d_bias: Tensor | None,
    dt_bias: Tensor,
    A: Tensor,
    D: Tensor,
    chunk_size: int,
    initial_states: Tensor | None = None,
    seq_idx: Tensor | None = None,
    dt_limit: tuple[float, float] = (0.0, math.inf),
    return_final_states: bool = False,
    activation: str | None = "silu",
    rmsnorm_weight: Tensor | None = None,
    rmsnorm_eps: float = 1e-6,
    outproj_weight: Tensor | None = None,
    outproj_bias: Tensor | None = None,
    headdim: int | None = None,
    ngroups: int = 1,
    norm_before_gate: bool = True,
    state_dtype: torch.dtype | None = None,
) -> Any:
    """The block of Mamba-2 between its input projection and its result.

    Args:
        zxbcdt: (batch, seqlen, 2 * others + 2 * dim + 2 * ngroups * d_state + nheads), with dim = nheads * headdim: the
            gates and inputs of other channels, which no scan is for, then the gate z, x, B, C and dt.
        conv1d_weight: (dim + 2 * ngroups * d_state, width).
        conv1d_bias: (dim + 2 * ngroups * d_state,).
        dt_bias, A: (nheads,).
        D: (nheads, headdim), or (nheads,) with headdim.
        chunk_size, initial_states, seq_idx, dt_limit, return_final_states, state_dtype: as
            `mamba_chunk_scan_combined` takes them.
        activation: None, "silu" or "swish", of the convolution.
        rmsnorm_weight: (dim,): weights of a root mean square norm of each group's channels, which is computed together
            with the gate. Without it the scan applies the gate.
        rmsnorm_eps: added to the mean squares.
        outproj_weight, outproj_bias: (out_dim, others + dim) and (out_dim,): the output projection.
        headdim: channels of a head, where D does not say it.
        ngroups: groups of heads that share B and C.
        norm_before_gate: norm(y) * silu(z) instead of norm(y * silu(z)).

    Returns:
        (batch, seqlen, out_dim or others + dim); with return_final_states also the states after the last tokens.
    """
    nheads, size = (D.shape[0], headdim) if D.dim() == 1 else D.shape
    if size is None:
        raise ValueError(message("headdim", "None", "the channels of a head, where D is of heads"))
    dim, channels = nheads * size, conv1d_weight.shape[0]
    others, odd = divmod(zxbcdt.shape[-1] - dim - channels - nheads, 2)
    if others < 0 or odd:
        wanted = f"{dim + channels + nheads} or an even number more: dim, channels of conv1d_weight, and nheads"
        raise ValueError(message("the last axis of zxbcdt", zxbcdt.shape[-1], wanted))
    z0, x0, z, xBC, dt = zxbcdt.split([others, others, dim, channels, nheads], dim=-1)
    xBC = causal_conv1d_fn(xBC.mT, conv1d_weight, conv1d_bias, seq_idx, activation=activation).mT
    x, B, C = xBC.split([dim, (channels - dim) // 2, (channels - dim) // 2], dim=-1)
    gate = z.unflatten(-1, (nheads, -1)) if rmsnorm_weight is None else None
    y, final_states = mamba_chunk_scan_combined(
        *(x.unflatten(-1, (nheads, -1)), dt, A, B.unflatten(-1, (ngroups, -1)), C.unflatten(-1, (ngroups, -1))),
        chunk_size=chunk_size,
        D=D,
        z=gate,
        dt_bias=dt_bias,
        initial_states=initial_states,
        seq_idx=seq_idx,
        dt_softplus=True,
        dt_limit=dt_limit,
        return_final_states=True,
        state_dtype=state_dtype,
    )
    out = y.flatten(2)
    if rmsnorm_weight is not None:
        out = rmsnorm_fn(out, rmsnorm_weight, None, z, rmsnorm_eps, dim // ngroups, norm_before_gate)
    if others:
        out = torch.cat((F.silu(z0) * x0, out), dim=-1)
    if outproj_weight is not None:
        out = F.linear(out.to(outproj_weight.dtype), outproj_weight, outproj_bias)
    return (out, final_states) if return_final_states else out
