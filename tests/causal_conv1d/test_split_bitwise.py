"""Ranges and heads of channels in arrays of their own have the bits of the convolution of all channels."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from tests.causal_conv1d import (
    cases_qkv_split,
    cases_split,
    cases_update,
    cases_update_qkv_split,
    cases_update_split,
    cases_varlen,
)
from tests.causal_conv1d.test_varlen_bitwise import BOTH, WIDTHS
from tests.support.compare import assert_same_bits
from tests.support.runners import Runner

PACKED = (cases_varlen, cases_split, cases_qkv_split)
STEP = (cases_update, cases_update_split, cases_update_qkv_split)
CALLS: list[tuple[tuple[ModuleType, ...], dict[str, Any]]] = [
    *((PACKED, {"batch": "9+0+13+off2", "layout": layout}) for layout in BOTH),
    *(
        (STEP, {"batch": 3, "seqlen": seqlen, "pool": pool})
        for seqlen in (None, 3)
        for pool in ("channels", "columns_and_one")
    ),
]


PARTS = [(1, (61, 3, 1, 1, 6, 64)), (2, (2, 1, 1, 20, 20, 76)), (2, (1, 1, 2, 3, 5, 64))]
"""Sizes of ranges (1), and heads (2)."""


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(("form", "channels"), PARTS, ids=str)
@pytest.mark.parametrize(("modules", "call"), CALLS, ids=str)
def test_parts_have_the_bits_of_the_whole(
    modules: tuple[Any, ...], call: dict[str, Any], form: int, channels: tuple[int, ...], width: int, run: Runner
) -> None:
    parts = modules[form].Case(channels, **call, width=width, slots="odd")
    whole = modules[0].Case(parts.dim, **call, width=width, slots="odd")
    values = whole.inputs()
    wanted, got = run(whole, values), run(parts, values)
    out = wanted["out"] if call.get("seqlen", 1) else wanted["out"][..., None]
    for name, expected in parts.divide(out).items():
        assert_same_bits(got[name], expected, name)
    (state,) = (name for name in whole.UPDATED if name in values)
    assert_same_bits(got[state], wanted[state], "states")
    if modules[form] is cases_qkv_split:
        normalised = run(replace(parts, l2norm=True), values)
        for name in ("out[2]", state):
            assert_same_bits(normalised[name], got[name], f"{name} beside normalised q and k")
