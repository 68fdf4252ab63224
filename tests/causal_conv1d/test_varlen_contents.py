"""What index arrays hold, checked with CUCONV_CHECK=1 and only then; and that the calls of these tests are good."""

from __future__ import annotations

import numpy as np
import pytest

import cuconv
from tests.causal_conv1d.test_dense_bad_input import KINDS, module_of
from tests.causal_conv1d.varlen_calls import GOOD, Row, assert_good, good_whole, ints, refuse

ALL_THREE = ("causal_conv1d_varlen_fn", "causal_conv1d_split", "causal_conv1d_qkv_split")
STARTS: dict[str, tuple[list[int], str]] = {
    "late": ([1, 4, 4, 9], "{name}[0]: got 1; wanted 0"),
    "negative": ([-1, 4, 4, 9], "{name}[0]: got -1; wanted 0"),
    "falling": ([0, 4, 3, 9], "{name}[2]: got 3; wanted at least 4, where the sequence begins"),
    "beyond": ([0, 4, 4, 10], "{name}[3]: got 10; wanted at most 9, the number of tokens"),
}
POOL: dict[str, tuple[list[int], str]] = {
    "large": ([3, 0, 5], "cache_indices: got slot 5; wanted 0 to 4, or pad_slot_id"),
    "negative": ([3, 0, -2], "cache_indices: got slot -2; wanted 0 to 4, or pad_slot_id"),
    "twice": ([3, 0, 3], "cache_indices: got slot 3 for several sequences; wanted a slot of its own for each"),
}
CONTENTS = {
    **{
        f"{name}-{key}": (name, (ints("query_start_loc", starts), ValueError, wanted.format(name="query_start_loc")))
        for name in ALL_THREE
        for key, (starts, wanted) in STARTS.items()
    },
    **{
        f"causal_conv1d_varlen_states-{key}": (
            "causal_conv1d_varlen_states",
            (ints("cu_seqlens", starts), ValueError, wanted.format(name="cu_seqlens")),
        )
        for key, (starts, wanted) in STARTS.items()
    },
    **{
        f"{name}-{key}": (name, (ints("cache_indices", slots), ValueError, wanted))
        for name in ALL_THREE
        for key, (slots, wanted) in POOL.items()
    },
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "row"), CONTENTS.values(), ids=CONTENTS)
def test_contents_are_checked_when_asked_for(name: str, row: Row, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUCONV_CHECK", "1")
    refuse(name, row, kind)
    monkeypatch.delenv("CUCONV_CHECK")
    xp = module_of(kind)
    arguments = GOOD[name](xp)
    getattr(cuconv, name)(**{**arguments, **row[0](xp, arguments)})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("slots", "pad_slot_id"),
    [([-1, 2, -1], -1), ([3, 3, 1], -1), ([0, 2, 0], 0), ([9, 2, 9], 9)],
    ids=["padded", "empty-one-twice", "pad-in-the-pool", "pad-behind-the-pool"],
)
def test_checked_contents_may_be_padded_and_empty(
    slots: list[int], pad_slot_id: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUCONV_CHECK", "1")
    xp = module_of(kind)
    arguments = {**good_whole(xp), "cache_indices": xp.asarray(slots, np.int64), "pad_slot_id": pad_slot_id}
    cuconv.causal_conv1d_varlen_fn(**arguments)
    assert bool((arguments["out"][:, 4:] == 0).all()) == (slots[2] == pad_slot_id)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("checked", ["", "0", "1"])
@pytest.mark.parametrize("name", GOOD)
def test_the_good_call_is_good(name: str, checked: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUCONV_CHECK", checked)
    arguments = GOOD[name](module_of(kind))
    assert_good(name, arguments)
