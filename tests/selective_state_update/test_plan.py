"""Plans of selective state updates: accesses are aligned, and one lane computes each row and element."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuconv.runtime.abstract import launches_of
from cuconv.runtime.dtypes import BFLOAT16, CODES, FLOAT32, FLOATS, INT32, DType
from cuconv.runtime.launch import MAX_DIVIDEND, WARP_SIZE, ceil_div
from cuconv.runtime.machine import assuming
from cuconv.runtime.plan import Launch
from cuconv.runtime.workload import Array, Workload
from cuconv.selective_state_update import workloads
from cuconv.selective_state_update.kernels import (
    BYTES,
    CAPACITIES,
    SelectiveStateUpdate,
    SelectiveStateUpdateDecays,
    SelectiveStateUpdateQuantised,
    SelectiveStateUpdateQuantisedHeads,
    SelectiveStateUpdateQuantisedSingle,
    SelectiveStateUpdateSingle,
)
from cuconv.selective_state_update.kernels_replay import (
    SelectiveStateUpdateFoldSingle,
    SelectiveStateUpdateQuantisedFoldSingle,
)
from cuconv.selective_state_update.plan import Operands, plan
from cuconv.selective_state_update.replay import selective_state_update_replay
from cuconv.selective_state_update.update import _check, _update, selective_state_update
from tests.cases import numbers_of
from tests.selective_state_update.cases import Case
from tests.selective_state_update.strategies import FLOATS as DTYPES
from tests.selective_state_update.strategies import STATES, UpdateCall, update_calls
from tests.support.placement import Placement, place
from tests.support.plans import ANY, FEW, MANY, assert_launchable, assert_vectors

SINGLE = (SelectiveStateUpdateSingle, SelectiveStateUpdateQuantisedSingle)
"""The kernels of one token."""

SIZES = st.tuples(st.integers(1, 5), st.integers(0, 6), st.sampled_from([1, 2, 3, 8, 37, 64, 100]))
KINDS = st.fixed_dictionaries(
    {
        "d_state": st.one_of(st.sampled_from(CAPACITIES), st.integers(1, 512)),
        "dtype": DTYPES,
        "state_dtype": STATES,
        "A_dtype": st.sampled_from(["", "float32"]),
    }
)


@given(update_calls(KINDS, SIZES))
@settings(max_examples=400)
def test_every_row_and_element_is_one_lanes(call: UpdateCall) -> None:
    o, launches = planned(call.placements, call.case)
    assert len(launches) == (0 not in o.x.shape)
    if not launches:
        return
    (launch,) = launches
    assert_launchable(launch)
    if isinstance(launch.kernel, SelectiveStateUpdateDecays):
        assert_decays(o, launch)
        return
    assert_aligned(o, launch)
    assert_covered(o, launch)
    assert_numbers(o, launch)


def planned(placements: dict[str, Placement], case: Case | None = None) -> tuple[Operands, tuple[Launch, ...]]:
    """A valid call as it has been checked, and what it launches."""
    case = case or Case(1, 1, 1, 1)
    has_seed = case.seed is not None and not isinstance(case.seed, str)
    given = {name: placements[name].layout if name in placements else None for name in ARGUMENTS}
    o = _check(given, case.softplus, case.frozen, case.pad_slot_id, has_seed, case.rounds, case.keep).operands
    return o, plan(o).launches


def assert_aligned(o: Operands, launch: Launch) -> None:
    """Every address that the vector width makes a lane access is a multiple of it."""
    kernel: Any = launch.kernel
    vec: int = kernel.vec
    assert vec * o.state.itemsize <= 16
    for layout in (o.state, o.intermediate_states_buffer):
        if layout is not None:
            assert_vectors(layout, vec, -1)
    for layout in (o.B, o.C, *([] if kernel.shared_decay else [o.A])):
        # Read by as few accesses of at most 16 bytes as there can be.
        assert_vectors(layout, min(vec, 16 // layout.itemsize), -1)


def assert_covered(o: Operands, launch: Launch) -> None:
    """Every row has one warp, and every element one lane, by the arithmetic of the kernel's first lines."""
    kernel, n = launch.kernel, numbers_of(launch)
    floats = (SelectiveStateUpdate, SelectiveStateUpdateSingle)
    of_codes = (SelectiveStateUpdateQuantised, SelectiveStateUpdateQuantisedSingle)
    assert isinstance(kernel, of_codes if o.state.dtype in CODES else floats)
    _, nheads, headdim, d_state = o.state.shape
    rows = np.zeros((max(1, o.sequences), nheads, headdim), int)
    for warp in range(launch.config.grid[0] * launch.config.block[0] // WARP_SIZE):
        head_tile, tile = divmod(warp, int(n["row_tiles"][0]))
        sequence, head = divmod(head_tile, int(n["nheads"][0]))
        if sequence < len(rows):
            rows[sequence, head, tile * kernel.tile : (tile + 1) * kernel.tile] += 1
    assert (rows == 1).all()
    sharing = kernel.lanes
    groups = WARP_SIZE // sharing
    in_tile = [lane // sharing + r * groups for lane in range(0, WARP_SIZE, sharing) for r in range(kernel.rows)]
    assert sorted(in_tile) == list(range(kernel.tile)) and kernel.tile <= WARP_SIZE
    chunks = ceil_div(kernel.d_state, kernel.vec * sharing)
    begins = [(i * sharing + lane) * kernel.vec for i in range(chunks) for lane in range(sharing)]
    elements = [begin + j for begin in begins if begin < d_state for j in range(kernel.vec)]
    assert sorted(elements) == list(range(d_state))
    assert kernel.masked == (d_state < kernel.d_state)


def assert_numbers(o: Operands, launch: Launch) -> None:
    """The kernel finds everything where the layouts say it is."""
    n = numbers_of(launch)
    assert (n["batch"], n["headdim"], n["d_state"]) == (o.sequences, o.state.shape[2], o.state.shape[3])
    assert n["slots"] == o.state.shape[0]
    assert o.x.shape[1] == (1 if isinstance(launch.kernel, SINGLE) else n["tokens"])
    assert n["group_heads"][0] * o.B.shape[2] == o.state.shape[1]
    names = ("state", "x", "dt", "out", "B", "C", "A", "D", "dt_bias", "z", "intermediate_states_buffer")
    for name in (*names, "state_scale", "intermediate_state_scales"):
        if (layout := getattr(o, name)) is not None:
            assert tuple(n[f"{name}_stride"]) == layout.strides
    for name in ("state_batch_indices", "dst_state_batch_indices"):
        if (layout := getattr(o, name)) is not None:
            assert tuple(n[f"{name}_stride"])[: len(layout.strides)] == layout.strides
    kernel: Any = launch.kernel
    by_row = [(o.A, (1, 2)), (o.dt, (3,)), (o.dt_bias, (1,))]
    has_shared_decay = all(
        not layout.active(*axes) or not any(layout.active(*axes)) for layout, axes in by_row if layout
    )
    assert kernel.shared_decay == has_shared_decay


def assert_decays(o: Operands, launch: Launch) -> None:
    """Every row of every sequence is a group's, and the kernel finds everything where the layouts say it is."""
    kernel, n = launch.kernel, numbers_of(launch)
    assert isinstance(kernel, SelectiveStateUpdateDecays) and kernel in set(kernel.variants())
    _, nheads, headdim, d_state = o.state.shape
    assert nheads == 1 and d_state == kernel.d_state and kernel.tile * (d_state // kernel.vec) == kernel.threads
    blocks, groups, _ = launch.config.grid
    assert (groups - 1) * kernel.sequences < o.sequences <= groups * kernel.sequences
    assert (blocks - 1) * kernel.tile < headdim <= blocks * kernel.tile
    assert (n["batch"], n["headdim"], n["slots"]) == (o.sequences, headdim, o.state.shape[0])
    for layout in (o.state, o.A, o.B, o.C):
        assert_vectors(layout, min(kernel.vec, 16 // layout.itemsize), -1)
    for name in ("state", "x", "dt", "B", "C", "z", "out"):
        assert n[f"{name}_stride"] == getattr(o, name).strides[0]
    if headdim > 1:
        assert o.state.strides[2] == o.A.strides[1] == d_state
        by_row = ((o.x, 3), (o.dt, 3), (o.z, 3), (o.out, 3), (o.D, 1), (o.dt_bias, 1))
        assert all(layout is not None and layout.strides[axis] == 1 for layout, axis in by_row)


def mamba(dtype: DType, batch: int, headdim: int, d_state: int = 16) -> dict[str, Placement]:
    """The arrays of a call as Mamba has it."""
    rows = (batch, headdim)
    shapes: dict[str, tuple[int, ...]] = {**dict.fromkeys(("x", "dt", "z", "out"), rows)}
    shapes |= dict.fromkeys("BC", (batch, d_state)) | dict.fromkeys(("D", "dt_bias"), (headdim,))
    shapes |= {"state": (batch, headdim, d_state), "A": (headdim, d_state)}
    return {name: place(FLOAT32 if name == "A" else dtype, shape) for name, shape in shapes.items()}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("batch", "headdim"), [(1, 1536), (3, 1), (16, 8192), (64, 8192), (65, 8200)])
def test_rows_with_decays_of_their_own_have_a_kernel(dtype: DType, batch: int, headdim: int) -> None:
    o, (launch,) = planned(mamba(dtype, batch, headdim))
    assert_launchable(launch)
    assert_decays(o, launch)


def test_what_that_kernel_does_not_do_others_do() -> None:
    given = mamba(BFLOAT16, 2, 100)
    others: dict[str, tuple[dict[str, Any], Case]] = {
        name: ({key: each for key, each in given.items() if key != name}, Case(1, 1, 1, 1))
        for name in ("D", "z", "dt_bias")
    }
    changes = {
        "state": place(BFLOAT16, (2, 100, 16), pad=(0, 0, 8)),
        "A": place(FLOAT32, (100, 16), pad=(0, 16)),
        "x": place(BFLOAT16, (2, 100), spacing=2),
        "B": place(BFLOAT16, (2, 16), shift=1),
    }
    others |= {f"{name} apart": ({**given, name: each}, Case(1, 1, 1, 1)) for name, each in changes.items()}
    others["sequences"] = mamba(BFLOAT16, 2**17, 2), Case(1, 1, 1, 1)
    others["states"] = mamba(BFLOAT16, 2, 100, 8), Case(1, 1, 1, 1)
    others["bytes"] = mamba(BFLOAT16, 2**10, 8192), Case(1, 1, 1, 1)
    others["softplus"] = given, Case(1, 1, 1, 1, softplus=False)
    others["read only"] = given, Case(1, 1, 1, 1, frozen=True)
    for what, (placements, case) in others.items():
        _, (launch,) = planned(placements, case)
        assert isinstance(launch.kernel, SelectiveStateUpdateSingle), what


def large(
    dtype: DType, batch: int, nheads: int, headdim: int, d_state: int, sequences: int | None = None
) -> dict[str, Placement]:
    """The arrays of a dense call without options; of packed tokens where sequences are counted."""
    rows, inner = (batch, nheads, headdim), (nheads, headdim, d_state)
    count = batch if sequences is None else sequences
    shapes: dict[str, tuple[int, ...]] = {**dict.fromkeys(("x", "dt", "out"), rows)}
    shapes |= dict.fromkeys("BC", (batch, 1, d_state))
    shapes |= {"state": (count, *inner), "A": inner}
    found = {name: place(dtype, shape) for name, shape in shapes.items()}
    if sequences is not None:
        found["cu_seqlens"] = place(INT32, (sequences + 1,))
    return found


ARGUMENTS = (*_update.inputs, *_update.outputs)


@given(st.sampled_from(FLOATS), ANY, ANY, ANY, st.integers(1, 512), st.one_of(st.none(), FEW, MANY))
@settings(max_examples=600)
def test_indices_fit_at_any_size(
    dtype: DType, batch: int, nheads: int, headdim: int, d_state: int, sequences: int | None
) -> None:
    try:
        o, (launch,) = planned(large(dtype, batch, nheads, headdim, d_state, sequences))
    except ValueError:
        # Too large for one launch: said so, and before anything ran.
        return
    assert_aligned(o, launch)
    kernel: Any = launch.kernel
    warps = o.sequences * nheads * ceil_div(headdim, kernel.tile)
    assert warps <= launch.config.grid[0] * launch.config.block[0] // WARP_SIZE <= MAX_DIVIDEND + WARP_SIZE
    assert_launchable(launch)
    within_a_slot = [o.state._replace(shape=(1, *o.state.shape[1:])), o.x, o.A, o.B]
    if has_index32(launch):
        assert all(-(2**31) <= edge < 2**31 for layout in within_a_slot for edge in layout.span)


def has_index32(launch: Launch) -> bool:
    """Whether all offsets of a kernel have 32 bits."""
    return isinstance(launch.kernel, SelectiveStateUpdateSingle) or bool(launch.kernel.index32)  # type: ignore[attr-defined]


def test_offsets_of_32_bits_are_common_and_others_possible() -> None:
    # x has 2**13 floats per sequence.
    for batch, fits in ((2**16 - 1, True), (2**16 + 1, False)):
        _, (launch,) = planned(large(FLOATS[0], batch, 128, 64, 4))
        assert has_index32(launch) == fits


def test_strides_of_64_bits_are_possible() -> None:
    """Slots further from each other than 32 bits reach, and a slot number for padding that no int32 is."""
    near = large(FLOATS[0], 2, 3, 4, 16)
    far = {**near, "state": place(FLOATS[0], (2, 3, 4, 16), pad=(0, 2**26, 0, 0))}
    _, (single,) = planned(near)
    _, (general,) = planned(far)
    assert isinstance(single.kernel, SelectiveStateUpdateSingle) and isinstance(general.kernel, SelectiveStateUpdate)
    _, (general,) = planned(near, Case(1, 1, 1, 1, pad_slot_id=2**40))
    assert isinstance(general.kernel, SelectiveStateUpdate)


def codes(dtype: DType, batch: int, nheads: int, headdim: int, d_state: int, ngroups: int) -> dict[str, Placement]:
    """The arrays of a dense call with quantised states and one decay a head."""
    given = large(BFLOAT16, batch, nheads, headdim, d_state)
    given |= {name: place(BFLOAT16, (batch, ngroups, d_state)) for name in "BC"}
    given["dt"] = place(BFLOAT16, (batch, nheads, headdim), repeated=(2,))
    given["A"] = place(FLOAT32, (nheads, headdim, d_state), repeated=(1, 2))
    given["state"] = place(dtype, (batch, nheads, headdim, d_state))
    given["state_scale"] = place(FLOAT32, (batch, nheads, headdim))
    return given


@pytest.mark.parametrize("dtype", BYTES, ids=str)
@pytest.mark.parametrize("sizes", [(64, 128, 64, 128, 8), (65, 96, 96, 64, 32), (40, 80, 32, 256, 2)], ids=str)
def test_every_head_is_one_walking_warps(dtype: DType, sizes: tuple[int, ...]) -> None:
    """All heads of a warp share B and C, and tiles are whole, by the arithmetic of the kernel's first lines."""
    batch, nheads, headdim, d_state, ngroups = sizes
    o, (launch,) = planned(codes(dtype, *sizes))
    kernel, n = launch.kernel, numbers_of(launch)
    assert isinstance(kernel, SelectiveStateUpdateQuantisedHeads) and kernel in set(kernel.variants())
    assert_launchable(launch)
    heads = int(n["heads"])
    first = np.arange(launch.config.grid[0] * kernel.warps) * heads
    first = first[first // int(n["nheads"][0]) < batch]
    walked = (first[:, None] + np.arange(heads)).reshape(-1)
    assert sorted(walked) == list(range(batch * nheads)) and (nheads // ngroups) % heads == 0 and heads <= WARP_SIZE
    assert int(n["row_tiles"][0]) * kernel.tile == headdim and kernel.tile <= WARP_SIZE
    assert tuple(n["state_scale_stride"]) == o.state_scale.strides  # type: ignore[union-attr]
    # A tile is in shared memory, for which there are 48 KiB without asking for more.
    assert kernel.warps * kernel.tile * d_state * dtype.itemsize <= 48 * 1024


def test_heads_are_walked_over_where_rows_are_whole_tiles_one_behind_the_other() -> None:
    sizes, dtype = (64, 128, 64, 128, 8), BYTES[0]
    others = {
        "words": codes(CODES[0], *sizes),
        "few": codes(dtype, 2, *sizes[1:]),
        "rows": codes(dtype, 64, 128, 60, 128, 8),
        "apart": {**codes(dtype, *sizes), "state": place(dtype, (64, 128, 64, 128), pad=(0, 0, 0, 16))},
        "decays": {**codes(dtype, *sizes), "A": place(FLOAT32, (128, 64, 128))},
        "scales": {**codes(dtype, *sizes), "state_scale": place(FLOAT32, (64, 128, 64), pad=(0, 2**26, 0))},
        "shifted": {**codes(dtype, *sizes), "state": place(dtype, (64, 128, 64, 128), shift=1)},
    }
    for what, placements in others.items():
        _, (launch,) = planned(placements)
        wide = what == "scales"
        kind = SelectiveStateUpdateQuantised if wide else SelectiveStateUpdateQuantisedSingle
        assert isinstance(launch.kernel, kind), what


def kernel_of(function: Any, workload: Workload, **options: Any) -> Any:
    """The one kernel that a call launches."""
    (launch,) = launches_of(function, **workload.abstract(), **options)
    return launch.kernel


@pytest.mark.parametrize(
    ("batch", "sizes", "rows", "stream", "whole"),
    [
        (2, {}, 4, True, True),
        (3, {}, 2, True, False),
        (64, {}, 2, True, False),
        (128, {}, 16, False, False),
        (8, {"d_state": 256}, 4, True, False),
        (8, {"dtype": "float32"}, 4, True, True),
        (8, {"state_dtype": "bfloat16"}, 4, True, True),
    ],
)
def test_rows_of_float32_states_are_taken_in_pairs(
    batch: int, sizes: dict[str, Any], rows: int, stream: bool, whole: bool
) -> None:
    workload = workloads.selective_state_update(batch, **{"state_dtype": "float32", **sizes})
    kernel = kernel_of(selective_state_update, workload)
    assert (kernel.rows, kernel.stream, kernel.whole) == (rows, stream, whole)


@pytest.mark.parametrize(
    ("batch", "multiprocessors", "crowded"), [(3, 132, False), (4, 132, True), (5, 132, False), (4, 120, False)]
)
def test_a_fold_takes_fewer_registers_where_all_blocks_run_at_once_then(
    batch: int, multiprocessors: int, crowded: bool
) -> None:
    sizes = {"dtype": "float32", "state_dtype": "bfloat16", "fold": True}
    with assuming(multiprocessors):
        kernel = kernel_of(selective_state_update_replay, workloads.selective_state_update_replay(batch, **sizes))
    assert isinstance(kernel, SelectiveStateUpdateFoldSingle) and kernel.crowded is crowded


@pytest.mark.parametrize(
    ("batch", "state_dtype", "d_state", "rows", "crowded"),
    [
        (1, "", 128, 4, False),
        (8, "", 128, 4, False),
        (32, "", 128, 4, True),
        (32, "", 64, 4, True),
        (1, "", 256, 4, True),
        (32, "", 32, 4, False),
        (4, "float32", 128, 4, True),
        (8, "float32", 128, 8, True),
        (128, "float32", 128, 8, True),
    ],
)
def test_several_tokens_have_the_rows_and_registers_that_were_quickest(
    batch: int, state_dtype: str, d_state: int, rows: int, crowded: bool
) -> None:
    workload = workloads.selective_state_update(batch, d_state=d_state, tokens=4, state_dtype=state_dtype)
    kernel = kernel_of(selective_state_update, workload)
    assert (kernel.rows, kernel.crowded) == (rows, crowded)


@pytest.mark.parametrize(
    ("batch", "dtype", "state_dtype", "rows"),
    [(128, "float32", "int16", 4), (128, "bfloat16", "int16", 8), (128, "float16", "int16", 8)],
)
def test_rows_of_int16_beside_float32_leave_registers_for_four_blocks(
    batch: int, dtype: str, state_dtype: str, rows: int
) -> None:
    workload = workloads.selective_state_update(batch, dtype=dtype, state_dtype=state_dtype)
    assert kernel_of(selective_state_update, workload).rows == rows


@pytest.mark.parametrize(
    ("batch", "dtype", "state_dtype", "rows"),
    [
        (96, "bfloat16", "bfloat16", 4),
        (96, "float16", "bfloat16", 8),
        (16, "bfloat16", "int16", 4),
        (8, "bfloat16", "int16", 8),
        (128, "bfloat16", "int16", 8),
    ],
)
def test_a_fold_has_the_rows_that_were_quickest(batch: int, dtype: str, state_dtype: str, rows: int) -> None:
    workload = workloads.selective_state_update_replay(batch, dtype=dtype, state_dtype=state_dtype, fold=True)
    with assuming(132):
        assert kernel_of(selective_state_update_replay, workload).rows == rows


@pytest.mark.parametrize(
    ("batch", "multiprocessors", "dtype", "state_dtype", "rows"),
    [
        *((batch, 132, "bfloat16", state, rows) for batch, rows in ((1, 2), (2, 2), (3, 4), (5, 4), (6, 8))
          for state in ("int16", "int8")),
        (5, 120, "bfloat16", "int16", 8),
        (4, 132, "float16", "int8", 4),
        (5, 132, "float16", "int8", 8),
        (2, 132, "float32", "int16", 4),
    ],
)  # fmt: skip
def test_codes_have_few_rows_where_all_blocks_run_at_once(
    batch: int, multiprocessors: int, dtype: str, state_dtype: str, rows: int
) -> None:
    sizes = {"dtype": dtype, "state_dtype": state_dtype}
    with assuming(multiprocessors):
        plain = kernel_of(selective_state_update, workloads.selective_state_update(batch, **sizes))
        fold = kernel_of(
            selective_state_update_replay, workloads.selective_state_update_replay(batch, fold=True, **sizes)
        )
    assert isinstance(plain, SelectiveStateUpdateQuantisedSingle) and plain.rows == rows
    is_single = isinstance(fold, SelectiveStateUpdateQuantisedFoldSingle)
    assert is_single is (rows < 8 and dtype != "float32") and (fold.rows == rows or not is_single)


@pytest.mark.parametrize(
    ("batch", "d_state", "state_dtype", "rows"),
    [
        *((batch, 64, "int16", rows) for batch, rows in ((1, 2), (5, 2), (6, 4), (12, 4))),
        *((batch, 64, "int8", rows) for batch, rows in ((1, 2), (5, 2), (6, 4), (9, 4))),
        (8, 128, "int16", 8),
        *((batch, 256, "int16", rows) for batch, rows in ((1, 2), (2, 4), (3, 8), (4, 8), (5, 4), (64, 4))),
        *((batch, 256, "int8", rows) for batch, rows in ((1, 2), (2, 4), (3, 8))),
    ],
)
def test_codes_have_the_rows_that_were_quickest(batch: int, d_state: int, state_dtype: str, rows: int) -> None:
    sizes = {"d_state": d_state, "state_dtype": state_dtype}
    with assuming(132):
        plain = kernel_of(selective_state_update, workloads.selective_state_update(batch, **sizes))
        fold = kernel_of(
            selective_state_update_replay, workloads.selective_state_update_replay(batch, fold=True, **sizes)
        )
    assert isinstance(plain, SelectiveStateUpdateQuantisedSingle)
    assert (plain.rows, fold.rows) == (rows, rows)
    assert isinstance(fold, SelectiveStateUpdateQuantisedFoldSingle) is (rows < 8)


@pytest.mark.parametrize(
    ("batch", "sizes", "rows", "in_place"),
    [
        *((batch, {}, 2, True) for batch in (9, 32, 64, 95)),
        *((batch, {}, 8, False) for batch in (8, 96)),
        (32, {"dtype": "float16"}, 4, False),
        (32, {"d_state": 256}, 4, False),
    ],
)
def test_int16_states_stay_in_their_slot_where_blocks_wait_for_others(
    batch: int, sizes: dict[str, Any], rows: int, in_place: bool
) -> None:
    workload = workloads.selective_state_update(batch, state_dtype="int16", **sizes)
    with assuming(132):
        kernel = kernel_of(selective_state_update, workload)
    assert isinstance(kernel, SelectiveStateUpdateQuantisedSingle)
    assert (kernel.rows, kernel.in_place) == (rows, in_place)


def test_states_that_go_elsewhere_or_nowhere_do_not_stay() -> None:
    workload, slots = workloads.selective_state_update(32, state_dtype="int16"), Array((32,), INT32)
    moved = replace(workload, arrays={**workload.arrays, "dst_state_batch_indices": slots})
    frozen = replace(workload, options={**workload.options, "disable_state_update": True})
    with assuming(132):
        assert not any(kernel_of(selective_state_update, call).in_place for call in (moved, frozen))


@pytest.mark.parametrize(("d_state", "rows"), [(120, 4), (96, 4), (200, 8)])
def test_codes_of_other_d_states_keep_their_rows(d_state: int, rows: int) -> None:
    workload = workloads.selective_state_update(2, 128, 64, d_state, state_dtype="int16")
    assert kernel_of(selective_state_update, workload).rows == rows


@pytest.mark.parametrize(
    ("batch", "d_state", "dtype", "walks"),
    [
        *((batch, 128, "bfloat16", walks) for batch, walks in ((6, False), (7, True))),
        *((batch, 128, "float32", walks) for batch, walks in ((3, False), (4, True))),
        (6, 128, "float16", False),
        *((batch, 64, "bfloat16", walks) for batch, walks in ((9, False), (10, True))),
        *((batch, 256, "bfloat16", walks) for batch, walks in ((3, False), (4, True))),
        *((batch, 256, "float32", walks) for batch, walks in ((1, False), (2, True))),
    ],
)
def test_warps_walk_over_heads_from_where_that_is_quicker(batch: int, d_state: int, dtype: str, walks: bool) -> None:
    workload = workloads.selective_state_update(batch, d_state=d_state, dtype=dtype, state_dtype="int8")
    kernel = kernel_of(selective_state_update, workload)
    assert isinstance(kernel, SelectiveStateUpdateQuantisedHeads) is walks


@pytest.mark.parametrize(
    ("batch", "d_state", "headdim", "warps"),
    [(8, 128, 64, 8 * 128), (8, 256, 64, 2 * 8 * 128), (9, 256, 64, 9 * 128), (8, 256, 48, 8 * 128)],
)
def test_two_warps_share_a_head_where_that_is_quicker(batch: int, d_state: int, headdim: int, warps: int) -> None:
    sizes = {"headdim": headdim, "d_state": d_state, "state_dtype": "int8"}
    for function, workload in (
        (selective_state_update, workloads.selective_state_update(batch, **sizes)),
        (selective_state_update_replay, workloads.selective_state_update_replay(batch, fold=True, **sizes)),
    ):
        (launch,) = launches_of(function, **workload.abstract())
        assert launch.config.grid[0] * launch.kernel.warps == warps


@pytest.mark.parametrize("dtype", FLOATS + CODES, ids=str)
@pytest.mark.parametrize("shared_decay", [False, True], ids=["decay_per_element", "shared_decay"])
def test_every_way_to_be_unaligned(dtype: DType, shared_decay: bool) -> None:
    """All small offsets of the pool, B and A from an aligned address, and of their rows from each other."""
    vectors = set()
    stored, dtype = dtype, BFLOAT16 if dtype in CODES else dtype
    most = 16 // stored.itemsize
    for shift, gap in np.ndindex(max(most, 8), max(most, 8)):
        for other_shift, other_gap in {(0, 0), (shift, gap), (shift ^ 4, gap), (0, gap ^ 2), (shift, 0)}:
            given = large(dtype, 3, 2, 5, 16)
            given["state"] = place(stored, (3, 2, 5, 16), shift=shift, pad=(0, 0, 0, gap))
            if stored in CODES:
                given["state_scale"] = place(FLOAT32, (3, 2, 5))
            given["B"] = place(dtype, (3, 1, 16), shift=int(other_shift), pad=(0, 0, int(other_gap)))
            A = place(dtype, (2, 5, 16), shift=int(other_shift), pad=(0, 0, int(other_gap)))
            given["A"] = place(dtype, (2, 5, 16), repeated=(1, 2)) if shared_decay else A
            if shared_decay:
                given["dt"] = place(dtype, (3, 2, 5), repeated=(2,))
            o, (launch,) = planned(given)
            assert launch.kernel.shared_decay == shared_decay  # type: ignore[attr-defined]
            assert_aligned(o, launch)
            vectors.add(launch.kernel.vec)  # type: ignore[attr-defined]
    assert vectors == {vec for vec in (1, 2, 4, 8, 16) if vec <= most}
