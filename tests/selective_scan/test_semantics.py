"""A scan of several launches on a GPU: memory between the launches.

What it has in common with other calls is in tests/families/test_fixed_calls.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cuconv.selective_scan import dense
from cuconv.selective_scan.plan_dense import plan
from tests.selective_scan import cases_dense as table
from tests.support.fixed_calls import Fixed

pytestmark = pytest.mark.gpu

CASE = table.Case(1, 24, 4352, dtype="float32", without="chunk_states_out")
SIMILAR: list[Any] = [replace(CASE, loud=loud) for loud in (1.0, 2.0, 4.0)]


def scratch_bytes(case: table.Case) -> int:
    """Bytes of memory between the launches of a call."""
    layouts = {name: lies.layout for name, lies in case.placements().items()}
    names = (*dense._scan.inputs, *dense._scan.outputs)
    checked = dense._check({name: layouts.get(name) for name in names}, case.softplus, True, False)
    return plan(checked.operands).scratch


def test_it_has_several_launches() -> None:
    assert len(CASE.launches()) == 3


def test_a_cupy_graph_keeps_the_memory_between_launches() -> None:
    cupy = pytest.importorskip("cupy")
    fixed = Fixed("cupy", SIMILAR[0])
    size = scratch_bytes(SIMILAR[0])
    assert size > 0
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream, cupy.cuda.using_allocator(cupy.cuda.MemoryPool().malloc):
        # So that the pool has memory to give while a graph is captured.
        fixed()
        stream.synchronize()
        stream.begin_capture()
        fixed()
        graph = stream.end_capture()
        others = [cupy.full(size // 4, 7.0, cupy.float32) for _ in range(4)]
        for case in (*SIMILAR, SIMILAR[0]):
            fixed.take(Fixed("cupy", case))
            graph.launch(stream)
            stream.synchronize()
            fixed.check()
        assert all(bool((other == 7.0).all()) for other in others)


@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_calls_in_a_row_do_not_disturb_each_other(library: str) -> None:
    """The next call's memory between launches may be that of the one before."""
    calls = [Fixed(library, case) for case in SIMILAR]
    for fixed in calls * 3:
        fixed()
    for fixed in calls:
        fixed.check()
