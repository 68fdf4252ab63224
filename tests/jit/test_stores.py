"""Stores of vectors, without a GPU: what the compiler makes of them shows in the code that it makes for no certain GPU.

It splits some stores of 16 bytes into four, among shuffles most of all. Then four times as many instructions store, and
each brings a fourth of every sector to the L2 cache: on an H200 rows with gates took 184 us so, and 154 with whole
stores. `Keep::kWhole` in cuda_src/common/vec.cuh keeps a store whole.
"""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from cuconv.jit import nvrtc, source
from cuconv.runtime.dtypes import BFLOAT16
from cuconv.runtime.kernel import Kernel
from tests.support.discovery import all_kernels

STORE = re.compile(r"st\.global\.[bu]32\s+\[(%rd\d+)(?:\+(\d+))?\]")

SPLIT = {
    "CausalConv1dUpdate": 4,
    "CausalConv1dVarlenOvershortFwd": 4,
    "SelectiveStateUpdateCommit": 1,
    "SelectiveStateUpdateReplay": 1,
    "SelectiveStateUpdateReplayFew": 2,
}
"""Runs of four stores that kernels may have. Those of replay are the four numbers of a cursor. Columns of states in
decode steps are stored by what snapshots have, too, which take 3.5 to 4 % longer with whole stores. Results over x keep
for a neighbour, now and then, what it has not read yet.
"""


def common(kernel: Kernel) -> tuple[int, int, bool]:
    """How near a variant is to what models run: the widest vectors, bfloat16 and 4 taps."""
    values = [getattr(kernel, field.name) for field in fields(kernel)]
    return getattr(kernel, "vec", 0), sum(value is BFLOAT16 for value in values), getattr(kernel, "width", 4) == 4


def split_stores(ptx: str) -> int:
    """Runs of four stores of words side by side."""
    places = [(base, int(offset or 0)) for base, offset in STORE.findall(ptx)]
    runs, i = 0, 0
    while i + 3 < len(places):
        base, first = places[i]
        is_run = all(places[i + j] == (base, first + 4 * j) for j in range(4))
        runs += is_run
        i += 4 if is_run else 1
    return runs


@pytest.mark.parametrize("cls", all_kernels())
def test_a_vector_is_stored_by_one_instruction(cls: type[Kernel]) -> None:
    kernel = max(cls.variants(), key=common)
    image = nvrtc.compile(source.load(), cls.file, (kernel.expression,), "compute_90").image
    assert split_stores(image.decode()) <= SPLIT.get(cls.__name__, 0), kernel


def test_four_stores_of_words_side_by_side_are_found() -> None:
    words = [f"st.global.u32 \t[%rd5+{4 * i}], %r{i};" for i in range(4)]
    words[0] = words[0].replace("+0", "")
    assert split_stores("\n".join(words)) == 1
    assert split_stores("\n".join(words[1:])) == 0
    assert split_stores("\n".join([*words[:3], words[3].replace("%rd5", "%rd6")])) == 0
    assert split_stores("st.global.v4.u32 \t[%rd5+512], {%r1, %r2, %r3, %r4};") == 0
