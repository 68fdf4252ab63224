"""A copy of rows with contiguous channels that has contiguous tokens, for functions composed of the public ones."""

from __future__ import annotations

from typing import Any, NamedTuple

from cuconv.runtime import checks
from cuconv.runtime.dtypes import FLOATS
from cuconv.runtime.entry import quick
from cuconv.runtime.errors import message
from cuconv.runtime.layout import Layout, dense
from cuconv.runtime.operation import Operation
from cuconv.runtime.plan import Arrays, Checked, Layouts, Plan
from cuconv.selective_scan.kernels import MAX_TOKENS
from cuconv.selective_scan.plan import CHANNELS, TOKENS
from cuconv.selective_scan.plan_turned import copying


@quick
def with_contiguous_tokens(x: Any, *, out: Any = None) -> Any:
    """A copy of rows that has contiguous tokens where they have contiguous channels.

    Args:
        x: (batch, dim, seqlen), float32, float16 or bfloat16, channels contiguous; dim and seqlen up to 2**30.
        out: shape and dtype of x, tokens contiguous: where to write the copy. It must not overlap x.

    Returns:
        out; a new one is laid out as (dim, batch, seqlen), as products of a weight with all tokens are.

    Raises:
        TypeError, ValueError: arguments that do not fit. Nothing has been launched or written then.
    """
    (result,) = operation((x, out))
    return result


class Operands(NamedTuple):
    """The layouts of one valid call."""

    x: Layout
    out: Layout


def _check(given: Layouts) -> Checked[Operands]:
    x = given["x"]
    assert x is not None
    checks.rank("x", x.shape, "batch, dim, seqlen")
    checks.dtype("x", x.dtype, FLOATS)
    for name, axis in (("dim", CHANNELS), ("seqlen", TOKENS)):
        checks.between(f"{name} of x", x.shape[axis], 0, MAX_TOKENS)
    out = given["out"] or dense(x.shape, (1, 0, 2), x)
    checks.dtype("out", out.dtype, (x.dtype,))
    checks.shape("out", out.shape, x.shape, "the shape of x")
    for argument, layout, axis, wanted in (("x", x, CHANNELS, "channels"), ("out", out, TOKENS, "tokens")):
        if layout.active(axis) not in ([], [1]):
            raise ValueError(message(argument, f"strides {layout.strides}", f"contiguous {wanted}"))
    return Checked(Operands(x, out), {"out": out})


def plan(o: Operands) -> Plan:
    """The launch that copies."""
    return Plan((copying(o.x, o.out, TOKENS, {"rows": "x", "turned": "out"}),) if o.x.size else ())


def _reference(o: Operands, arrays: Arrays) -> None:
    arrays["out"][...] = arrays["x"]


operation = Operation(("x",), ("out",), name="with_contiguous_tokens", check=_check, plan=plan, reference=_reference)
