"""How a call hands out its channels: as one result, or split into ranges with a result each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cuconv.causal_conv1d import reference
from cuconv.causal_conv1d.ranges import MAX_RANGES
from cuconv.runtime import checks
from cuconv.runtime.errors import message
from cuconv.runtime.layout import Layout, dense, order_like
from cuconv.runtime.memo import remembered_by_type
from cuconv.runtime.plan import Arrays, Layouts
from cuconv.runtime.tracing import is_traced


# Compared by identity, which is quicker than by fields: the functions below return the same object for equal arguments.
@dataclass(frozen=True, eq=False)
class Split:
    """The ranges that the channels of a call fall into, and what the result of each range looks like."""

    argument: str = ""
    """The arguments that the ranges come from, as an error names them."""
    ranges: tuple[tuple[int, int], ...] | None = None
    """(heads, head_dim) of every range of channels; None for one result of all channels."""
    has_heads: bool = False
    """Whether results end in the axes heads and head_dim; else they have one axis of channels, where x has it."""
    normalized: int = 0
    """Number of leading ranges that are L2-normalised head by head."""
    eps: float = 0.0
    """Number added to the sum of squares of a head that is normalised."""

    names: tuple[str, ...] = ("out",)
    """The results as arguments of the call: "out", or "out[0]", "out[1]", …"""

    def given_outs(self, out: Sequence[Any] | None) -> tuple[Any, ...]:
        """The caller's array for each result, None for each when `out` is None; raises when their number differs."""
        if out is None:
            return (None,) * len(self.names)
        checks.sequence("out", out)
        if len(out) != len(self.names):
            raise ValueError(message("out", f"{len(out)} arrays", len(self.names)))
        return tuple(out)

    def heads(self, dim: int) -> tuple[tuple[int, int], ...]:
        """(heads, head_dim) of every range of `dim` channels; ValueError when they do not add up to `dim`."""
        if self.ranges is None:
            return ((1, dim),)
        checks.total(self.argument, [heads * head_dim for heads, head_dim in self.ranges], dim, "dim of x")
        return self.ranges

    def results(
        self, given: Layouts, x: Layout, batch: tuple[int, ...], tokens: tuple[int, ...], axes: str
    ) -> dict[str, Layout]:
        """The layouts of the results beside x of (*batch, dim, *tokens), given or to be made.

        Raises for a given one that does not fit; `axes` names the axes of a result in the error.
        """
        shapes = [
            (*(batch or (1,)), *tokens, heads, head_dim) if self.has_heads else (*batch, heads * head_dim, *tokens)
            for heads, head_dim in self.heads(x.shape[len(batch)])
        ]
        order = order_like(x) if tokens and not self.has_heads else tuple(range(len(shapes[0])))
        results = {}
        for argument, shape in zip(self.names, shapes, strict=True):
            if (out := given[argument]) is not None:
                checks.dtype(argument, out.dtype, (x.dtype,))
                checks.shape(argument, out.shape, shape, axes)
            results[argument] = out or dense(shape, order, x)
        return results

    def by_head(self, out: Layout, batch: tuple[int, ...], tokens: tuple[int, ...]) -> Layout:
        """A result beside x of (*batch, dim, *tokens) as kernels take it: (*batch, seqlen, heads, head_dim)."""
        if self.has_heads:
            by_token = out if tokens else out.with_axis(1)
            rank = len(batch) + 3
            return by_token._replace(shape=by_token.shape[-rank:], strides=by_token.strides[-rank:])
        by_token = out if tokens else out.with_axis(2)
        *outer, channels, length = by_token.shape
        *outer_strides, channel_stride, token_stride = by_token.strides
        return by_token._replace(
            shape=(*outer, length, 1, channels), strides=(*outer_strides, token_stride, 0, channel_stride)
        )

    def write(self, result: reference.Array, arrays: Arrays, where: reference.Array | None = None) -> None:
        """Write the reference's result of all channels, (…, dim, seqlen), to the result arrays of the call.

        `where` says which batch entries are written or, when the result has no batch axis, which tokens.
        """
        begin = 0
        for number, (name, (heads, head_dim)) in enumerate(zip(self.names, self.heads(result.shape[-2]), strict=True)):
            out = arrays[name]
            values = result[..., begin : begin + heads * head_dim, :]
            begin += heads * head_dim
            is_written: Any = True
            if where is not None:
                outer = where[:, None, None] if values.ndim == 3 else where
                is_written = self._arranged(np.broadcast_to(outer, values.shape), out.shape)
            values = self._arranged(values, out.shape)
            if number < self.normalized:
                values = reference.l2norm(values, self.eps)
            np.copyto(out, values.astype(out.dtype), where=is_written)

    def _arranged(self, values: reference.Array, shape: tuple[int, ...]) -> reference.Array:
        """Values (…, channels, seqlen) in the shape of a result."""
        return (values.swapaxes(-1, -2) if self.has_heads else values).reshape(shape)


WHOLE = Split()
"""One result of all channels."""


def split_of(
    argument: str, ranges: tuple[tuple[int, int], ...], has_heads: bool = False, normalized: int = 0, eps: float = 0.0
) -> Split:
    """A new split into these ranges, which come from this argument."""
    return Split(argument, ranges, has_heads, normalized, eps, tuple(f"out[{i}]" for i in range(len(ranges))))


def by_sizes(sizes: Sequence[int]) -> Split:
    """A result for each of several ranges of channels; raises when `sizes` are not their numbers of channels."""
    checks.sequence("sizes", sizes)
    if is_traced():
        return _by_sizes.__wrapped__(*sizes)
    try:
        return _by_sizes(*sizes)
    except TypeError:
        # A size that has no hash is not a number, either; the checks raise the error.
        return _by_sizes.__wrapped__(*sizes)


@remembered_by_type
def _by_sizes(*sizes: int) -> Split:
    checks.between("length of sizes", len(sizes), 1, MAX_RANGES)
    return split_of("sizes", tuple((1, checks.natural(f"sizes[{i}]", size)) for i, size in enumerate(sizes)))


def by_heads(*heads: int, qk_l2norm: bool = False, l2norm_eps: float = 0.0) -> Split:
    """Results for q, k and v; `heads` are their numbers of heads, then their channels per head.

    Raises when these are not valid numbers.
    """
    numbers = (*heads, checks.flag("qk_l2norm", qk_l2norm), l2norm_eps)
    if is_traced():
        return _by_heads.__wrapped__(*numbers)
    try:
        return _by_heads(*numbers)
    except TypeError:
        # An argument that has no hash is not a number, either; the checks raise the error.
        return _by_heads.__wrapped__(*numbers)


@remembered_by_type
def _by_heads(
    num_q_heads: int, num_k_heads: int, num_v_heads: int, head_q: int, head_k: int, head_v: int, norm: bool, eps: float
) -> Split:
    counts, widths = (num_q_heads, num_k_heads, num_v_heads), (head_q, head_k, head_v)
    ranges = tuple(
        (checks.natural(f"num_{name}_heads", count), checks.natural(f"head_{name}", width))
        for name, count, width in zip("qkv", counts, widths, strict=True)
    )
    eps = checks.not_negative("l2norm_eps", eps)
    sizes = "num_q_heads * head_q, num_k_heads * head_k, num_v_heads * head_v"
    return split_of(sizes, ranges, has_heads=True, normalized=2 * norm, eps=eps)
