"""What is planned for decode steps: accesses are aligned, and every sequence's every channel is one thread's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cuconv.causal_conv1d import update
from cuconv.causal_conv1d.kernels_update import (
    CausalConv1dUpdate,
    CausalConv1dUpdateFew,
    CausalConv1dUpdateRows,
    CausalConv1dUpdateSeveral,
    CausalConv1dUpdateTree,
)
from cuconv.causal_conv1d.plan_update import Operands
from cuconv.causal_conv1d.split import WHOLE, Split, by_heads, by_sizes
from cuconv.runtime.dtypes import BFLOAT16, BOOL, FLOAT32, FLOATS, INT32, DType
from cuconv.runtime.launch import MAX_DIVIDEND, widest_vector
from cuconv.runtime.plan import Launch
from tests.cases import numbers_of
from tests.causal_conv1d.cases_update import ROWS, Case
from tests.causal_conv1d.strategies import UpdateCall, update_calls
from tests.support.placement import Placement, place
from tests.support.plans import (
    ANY,
    addresses,
    assert_packed_ranges_are_aligned,
    assert_ranges_have_their_places,
    assert_vectors,
    planned,
)
from tests.support.strategies import lain_out

DIMS = st.sampled_from([1, 2, 3, 5, 8, 12, 32, 36, 100, 132, 264, 1032])
SHAPES = st.tuples(st.sampled_from([1, 2, 3, 7, 40, 300]), DIMS, st.sampled_from([1, 1, 2, 5]))

ORDERS = st.sampled_from([(0, 1, 2), (0, 2, 1)])


class Problem(NamedTuple):
    """A planned call."""

    o: Operands
    launch: Launch


@st.composite
def splits(draw: st.DrawFn, dim: int) -> Split:
    """All of the channels as one output, or in parts."""
    kind = draw(st.sampled_from(["whole", "sizes", "heads"] if dim >= 3 else ["whole", "sizes"]))
    if kind == "whole":
        return WHOLE
    count = 2 if kind == "heads" else draw(st.sampled_from([0, 1, 2, 15]))
    cuts = st.sets(st.integers(1, max(1, dim - 1)), min_size=count * (kind == "heads"), max_size=count)
    edges = sorted({0, dim, *draw(cuts)})
    if draw(st.booleans()) and kind == "sizes":
        edges = sorted({min(dim, -(-edge // 4) * 4) for edge in edges})
    sizes = np.diff(edges).tolist()
    if kind == "sizes":
        return by_sizes(sizes)
    heads: Any = [draw(st.sampled_from([n for n in (1, 2, 3, size) if size % n == 0])) for size in sizes]
    return by_heads(*heads, *(size // n for size, n in zip(sizes, heads, strict=True)))


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Small ones, of every kernel."""
    call: UpdateCall = draw(update_calls(SHAPES))
    x = call.placements["x"]
    batch, dim, *tokens = x.shape
    split = draw(splits(dim))
    outs = {}
    for name, (heads, head_dim) in zip(split.names, split.heads(dim), strict=True):
        shape = (batch, *tokens, heads, head_dim) if split.has_heads else (batch, heads * head_dim, *tokens)
        usual = place(x.dtype, shape, order=(0, 2, 1) if tokens and not split.has_heads else ())
        outs[name] = usual if draw(st.booleans()) else draw(lain_out(x.dtype, shape, is_written=True))
    inputs = {name: lies for name, lies in call.placements.items() if name != "out"}
    is_frozen = call.options.get("disable_state_update", False)
    return plan_of(inputs | outs, split, call.options["pad_slot_id"], is_frozen)


def plan_of(
    given: dict[str, Placement], split: Split = WHOLE, pad_slot_id: int = -1, is_frozen: bool = False
) -> Problem:
    return Problem(*planned(update._step, given, split, True, is_frozen, pad_slot_id))


def shares(launch: Launch) -> tuple[Any, Any, Any]:
    """First channel and sequence of every thread, and whether it has any, as conv_update.cuh shares them out."""
    n, kernel = numbers_of(launch), launch.kernel
    if isinstance(kernel, CausalConv1dUpdateFew | CausalConv1dUpdateSeveral):
        first, block, thread = np.indices((*launch.config.grid[:2], launch.config.block[0])).astype(np.int64)
        if isinstance(kernel, CausalConv1dUpdateSeveral) and kernel.rows:
            first, block = block, first
        channel = (block * launch.config.block[0] + thread) * kernel.vec
        return channel, first, channel < n["dim"]
    assert launch.config.grid[1] == 1
    block, thread = np.indices((launch.config.grid[0], launch.config.block[0])).astype(np.int64)
    block_vecs, dim_blocks, rows = int(n["block_vecs"][0]), int(n["dim_blocks"][0]), int(n["rows"])
    channel = (block % dim_blocks * block_vecs + thread % block_vecs) * kernel.vec  # type: ignore[attr-defined]
    first = block // dim_blocks * sequences_of(launch) * rows + thread // block_vecs
    is_live = (thread // block_vecs < rows) & (first < n["batch"]) & (channel < n["dim"])
    return channel, first, is_live


def sequences_of(launch: Launch) -> int:
    """How many sequences a thread takes."""
    return max(1, getattr(launch.kernel, "sequences", 1))


@given(problems())
@settings(max_examples=200)
def test_every_channel_of_every_sequence_is_one_threads(p: Problem) -> None:
    o, launch = p
    assert_aligned(o, launch)
    if not isinstance(launch.kernel, CausalConv1dUpdateFew | CausalConv1dUpdateSeveral):
        assert_ranges_have_their_places(o.outs, launch)
    batch, dim, _ = o.x.shape
    vec: int = launch.kernel.vec  # type: ignore[attr-defined]
    taken = np.zeros((batch, dim), np.int32)
    channel, first, is_live = shares(launch)
    assert channel[is_live].max() + vec <= dim
    for turn in range(sequences_of(launch)):
        number = first + (turn * int(numbers_of(launch)["rows"]) if turn else 0)
        has_more = is_live & (number < batch)
        for c in range(vec):
            np.add.at(taken, (number[has_more], channel[has_more] + c), 1)
    assert (taken == 1).all()


def assert_aligned(o: Operands, launch: Launch) -> None:
    """Every address that the vector width makes a thread access is a multiple of it."""
    kernel: Any = launch.kernel
    n, vec = numbers_of(launch), kernel.vec
    _, dim, _ = o.x.shape
    assert vec * o.x.itemsize <= 16
    for beside in (o.x, *o.beside_x):
        assert_vectors(beside, vec, 1)
    state = o.conv_state
    if isinstance(kernel, CausalConv1dUpdateFew | CausalConv1dUpdateSeveral):
        assert_few_is_aligned(o, kernel)
        return
    assert_packed_ranges_are_aligned(o.outs, launch)
    if isinstance(kernel, CausalConv1dUpdateRows):
        assert state.shape[2] == kernel.state_len and (state.strides[2] == 1 or kernel.state_len == 1)
        assert state.strides[1] == kernel.state_len or dim == 1
        access = widest_vector(state.itemsize, vec * kernel.state_len)
        assert all(at % access == 0 for at in addresses(state, 0))
    elif vec > 1 and n["states_are_packed"]:
        assert vec * state.itemsize <= 16
        assert_vectors(state, vec, 1)
    if n["windows_are_packed"]:
        windows = o.intermediate_conv_window
        assert windows is not None
        columns = windows.shape[3]
        assert (columns == 1 or windows.strides[3] == 1) and (dim == 1 or windows.strides[2] == columns)
        access = widest_vector(windows.itemsize, vec * columns)
        assert all(at % access == 0 for at in addresses(windows, 0, 1))


def assert_few_is_aligned(o: Operands, kernel: CausalConv1dUpdateFew | CausalConv1dUpdateSeveral) -> None:
    """The kernels that do few things have no path for what is not contiguous and aligned."""
    state, vec = o.conv_state, kernel.vec
    for out in o.outs:
        assert_vectors(out, vec, 3)
        if getattr(kernel, "split", False):
            heads, head_dim = out.shape[2:]
            assert heads * head_dim % vec == 0 and (heads == 1 or out.strides[2] == head_dim)
    assert state.shape[2] == kernel.state_len and (o.seqlen == 1) is isinstance(kernel, CausalConv1dUpdateFew)
    windows = o.intermediate_conv_window if getattr(kernel, "windows", False) else None
    if getattr(kernel, "rows", False):
        for rows in (state,) if windows is None else (state, windows):
            *outer, dim, columns = rows.shape
            assert columns == kernel.state_len and (rows.strides[-1] == 1 or columns == 1)
            assert rows.strides[-2] == columns or dim == 1
            access = widest_vector(rows.itemsize, vec * columns)
            assert all(at % access == 0 for at in addresses(rows, *range(len(outer))))
    else:
        assert_vectors(state, vec, 1)
        if windows is not None:
            assert_vectors(windows, vec, 2)
    access = widest_vector(o.weight.itemsize, vec * kernel.width)
    assert o.weight.strides[0] == kernel.width or o.weight.shape[0] == 1
    assert o.weight.strides[1] == 1 or kernel.width == 1
    assert o.weight.first % access == 0
    assert o.bias is None or ((o.bias.strides[0] == 1 or o.bias.shape[0] == 1) and o.bias.first % vec == 0)


@given(st.tuples(ANY, ANY), st.sampled_from(FLOATS), st.integers(1, 16), ORDERS)
@example((MAX_DIVIDEND, 1), FLOAT32, 1, (0, 1, 2))
@example((MAX_DIVIDEND, 3), FLOAT32, 4, (0, 2, 1))
@settings(max_examples=600)
def test_indices_fit_at_any_size(shape: tuple[int, int], dtype: DType, width: int, order: tuple[int, ...]) -> None:
    batch, dim = shape
    x, state = place(dtype, shape), place(dtype, (2, dim, width), order=order)
    given = {"x": x, "conv_state": state, "weight": place(dtype, (dim, width)), "out": x}
    try:
        o, launch = plan_of({**given, "conv_state_indices": place(INT32, (batch,))})
    except ValueError:
        # Too large for one launch: said so, and before anything ran.
        return
    assert_aligned(o, launch)
    n = numbers_of(launch)
    if isinstance(launch.kernel, CausalConv1dUpdateFew | CausalConv1dUpdateSeveral):
        sequences, blocks, _ = launch.config.grid
        threads = blocks * launch.config.block[0]
        assert sequences == batch and dim <= threads * launch.kernel.vec <= MAX_DIVIDEND
        return
    # What the kernels count in 32 bits: sequences, those of a block that goes beyond the last one, too.
    blocks, rest = divmod(launch.config.grid[0], int(n["dim_blocks"][0]))
    assert rest == 0 and batch <= blocks * sequences_of(launch) * int(n["rows"]) <= MAX_DIVIDEND
    assert int(n["dim_blocks"][0]) * int(n["block_vecs"][0]) * launch.kernel.vec >= dim  # type: ignore[attr-defined]


def kernel_of(case: Case) -> Any:
    (launch,) = case.launches()
    return launch.kernel


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("seqlen", [None, 1, 5])
def test_short_states_of_contiguous_columns_are_rows(seqlen: int | None, dtype: DType) -> None:
    for width in range(2, 17):
        for pool in ("columns", "columns_and_one"):
            assert isinstance(kernel_of(Case(40, 3, seqlen, width, dtype.name, pool=pool)), CausalConv1dUpdateRows)
    assert kernel_of(Case(40, 3, seqlen, 4, dtype.name, pool="columns_and_one")).vec == 8 // dtype.itemsize


@pytest.mark.parametrize(
    "changes",
    [
        {"pool": "channels"},
        {"pool": "columns_longer"},
        {"pool": "slots"},
        {"mode": "circular"},
        {"mode": "accepted", "pool": "columns"},
        {"tree": True},
        {"width": 1, "pool": "columns"},
    ],
    ids=str,
)
def test_all_others_are_channels_first(changes: dict[str, Any]) -> None:
    case: dict[str, Any] = {"pool": "columns_and_one", **changes}
    others = CausalConv1dUpdate | CausalConv1dUpdateTree | CausalConv1dUpdateSeveral
    assert isinstance(kernel_of(Case(64, 3, 2, **case)), others)


@pytest.mark.parametrize("window", ["columns", "channels", "overlaid"])
@pytest.mark.parametrize("pool", ["columns", "columns_and_one"])
def test_windows_are_written_out_of_the_registers_of_rows(pool: str, window: str) -> None:
    kernel = kernel_of(Case(64, 3, 2, state_dtype="float32", pool=pool, window=window))
    assert isinstance(kernel, CausalConv1dUpdateRows) and kernel.token_states and kernel.sequences == 0


def test_only_what_is_known_to_be_one_token_takes_several_sequences() -> None:
    many = Case(131, 1023, lengths=(1,), layout="last_offset_by_1")
    assert kernel_of(many).sequences == 0
    for most, sequences in ((1, 2), (2, 0)):
        case = replace(many, most=most)
        assert (kernel_of(case).sequences, kernel_of(replace(case, pool="columns")).sequences) == (sequences,) * 2
    assert kernel_of(replace(many, most=1, moved=True)).sequences == 1


@pytest.mark.parametrize(
    ("layout", "vec"),
    [
        ("channel_last", 4),
        ("last_sliced_dim", 4),
        ("token_major", 4),
        ("last_sliced_dim_by_2", 2),
        ("last_offset_by_1", 1),
        ("channel_first", 1),
        ("transposed_last", 1),
    ],
)
def test_vectors_are_as_wide_as_x_lets_them(layout: str, vec: int) -> None:
    assert kernel_of(Case(64, 3, 3, layout=layout)).vec == vec


@pytest.mark.parametrize(("width", "vec"), [(1, 8), (4, 8), (5, 4), (8, 4), (9, 2), (16, 2)])
def test_vectors_are_as_wide_as_taps_fit_registers(width: int, vec: int) -> None:
    assert kernel_of(Case(64, 3, 1, width)).vec == vec
    assert kernel_of(Case(64, 3, 1, width, state_dtype="float32")).vec == min(vec, 4)
    assert kernel_of(Case(64, 3, 3, width)).vec == min(vec, 4)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_every_way_to_be_unaligned(dtype: DType) -> None:
    """All small offsets of x, the pool and the output from an aligned address, and of their tokens from each other."""
    vectors = set()
    for shift, gap, other in np.ndindex(8, 8, 8):
        x = place(dtype, (2, 16, 3), order=(0, 2, 1), shift=shift, pad=(0, gap, 0))
        out = place(dtype, (2, 16, 3), order=(0, 2, 1), shift=other, pad=(0, gap, 0))
        ways: Any = ({"order": (0, 2, 1), "pad": (0, gap, 0)}, {})
        for lies in ways:
            state = place(dtype, (2, 16, 4), shift=other, **lies)
            o, launch = plan_of({"x": x, "conv_state": state, "weight": place(dtype, (16, 4)), "out": out})
            assert_aligned(o, launch)
            vectors.add(launch.kernel.vec)  # type: ignore[attr-defined]
    assert vectors == {1, 2, 4}


SMALL = {"x": place(BFLOAT16, (8, 6144)), "weight": place(BFLOAT16, (6144, 4)), "out": place(BFLOAT16, (8, 6144))}


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1)])
def test_steps_of_one_token_have_a_lean_kernel(order: tuple[int, ...]) -> None:
    def kernel_for(**changed: Placement) -> Any:
        state = place(BFLOAT16, (8, 6144, 4), order=order)
        return plan_of({"conv_state": state, **SMALL, **changed}).launch.kernel

    kernel = kernel_for()
    assert isinstance(kernel, CausalConv1dUpdateFew) and kernel.rows is (order == (0, 1, 2)) and not kernel.indexed
    assert kernel_for(conv_state_indices=place(INT32, (8,))).indexed
    assert kernel_for(has_initial_state=place(BOOL, (8,))).addressed
    slots = {name: place(INT32, (8,)) for name in ("conv_state_indices", "dst_state_indices")}
    assert kernel_for(**slots).moved and not kernel_for(**slots).addressed
    assert not kernel_for(**slots, has_initial_state=place(BOOL, (8,))).moved
    many: Any = {name: place(BFLOAT16, (64, 6144)) for name in ("x", "out")}
    many["conv_state"] = place(BFLOAT16, (64, 6144, 4), order=order)
    assert (kernel.vec, kernel_for(**many).vec) == (1 if kernel.rows else 2, 4)
    others = {
        "unaligned channels of many sequences": {
            "x": place(BFLOAT16, (64, 6144), shift=1),
            "out": place(BFLOAT16, (64, 6144)),
            "conv_state": place(BFLOAT16, (64, 6144, 4), order=order),
        },
        "blocks with few channels": {
            "x": place(BFLOAT16, (2000, 136)),
            "out": place(BFLOAT16, (2000, 136)),
            "conv_state": place(BFLOAT16, (2000, 136, 4), order=order),
            "weight": place(BFLOAT16, (136, 4)),
        },
        "offsets beyond 32 bits": {"x": place(BFLOAT16, (8, 6144), pad=(0, 2**29))},
        "slots beyond 32 bits": {"conv_state": place(BFLOAT16, (8, 6144, 4), order=order, pad=(0, *[2**18] * 2))},
        "a longer state": {"conv_state": place(BFLOAT16, (8, 6144, 5), order=order)},
        "taps apart": {"weight": place(BFLOAT16, (6144, 4), order=(1, 0))},
        "a ring": {"cache_seqlens": place(INT32, (8,))},
    }
    for name, changed in others.items():
        assert not isinstance(kernel_for(**changed), CausalConv1dUpdateFew), name


def test_steps_of_several_tokens_have_a_lean_kernel() -> None:
    case = Case(136, 5, 3)
    kernel = kernel_of(case)
    assert isinstance(kernel, CausalConv1dUpdateSeveral) and kernel.vec == 4 and not kernel.packed and kernel.many
    assert kernel_of(replace(case, channels=134)).vec == 2
    assert kernel_of(replace(case, window="channels")).windows
    assert kernel_of(replace(case, window="columns", whole=True, **ROWS)).rows
    assert kernel_of(replace(case, seqlen=None, lengths=(3, 0, 1))).packed
    assert [kernel_of(Case(1032, 64, tokens)).many for tokens in (2, 4, 5)] == [False, False, True]
    assert [kernel_of(replace(case, seqlen=tokens, tree=True)).many for tokens in (2, 4, 5, 16)] == [0, 0, 1, 1]
    others: dict[str, dict[str, Any]] = {
        "a ring": {"mode": "circular"},
        "other slots": {"moved": True},
        "other states": {"state_dtype": "float32"},
        "wide filters": {"width": 5},
        "longer states": {"pool": "channels_longer"},
        "windows apart": {"window": "columns"},
        "one channel at a time": {"channels": 135},
        "a gate": {"gates": "post_gate"},
        "large trees": {"seqlen": 17, "tree": True},
    }
    for name, changes in others.items():
        assert not isinstance(kernel_of(replace(case, **changes)), CausalConv1dUpdateSeveral), name


def test_few_results_have_the_lean_kernel() -> None:
    def launch_for(*parts: int, out: Mapping[str, Any] = {}, **changed: Placement) -> Launch:
        outs = {f"out[{i}]": place(BFLOAT16, (8, part), **out) for i, part in enumerate(parts)}
        given = {"x": SMALL["x"], "conv_state": place(BFLOAT16, (8, 6144, 3), order=(0, 2, 1)), **outs}
        return plan_of({**given, "weight": SMALL["weight"], **changed}, by_sizes(parts)).launch

    launch = launch_for(4096, 1024, 1024, out={"pad": (0, 8)})
    assert isinstance(launch.kernel, CausalConv1dUpdateFew) and launch.kernel.split
    n = numbers_of(launch)
    assert list(n["range_begin"]) == [0, 4096, 5120] and list(n["range_stride"]) == [4104, 1032, 1032]
    assert list(numbers_of(launch_for(6000, 144))["range_begin"]) == [0, 6000, MAX_DIVIDEND]
    others = {
        "four results": launch_for(4096, 1024, 512, 512),
        "channels apart": launch_for(4096, 1024, 1024, out={"spacing": 2}),
        "another slot": launch_for(4096, 1024, 1024, dst_state_indices=place(INT32, (8,))),
    }
    for name, other in others.items():
        assert not isinstance(other.kernel, CausalConv1dUpdateFew), name
