"""Selective state updates on the caller's arrays: parameters with one value per head, slices, new and given results.

Graphs, streams, allocations and DLPack are tested in tests/families/test_fixed_calls.py, also for these updates.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cuconv
from tests.support.bad_input import KINDS, module_of
from tests.support.gpu import byte_strides

EACH_KIND = pytest.mark.parametrize("kind", KINDS)
BATCH, TOKENS, HEADS, DIM, N, GROUPS, SLOTS = 3, 4, 4, 6, 16, 2, 7


def inputs(xp: Any, *lead: int, heads: bool = True, seed: int = 0) -> dict[str, Any]:
    """A call with these axes before the heads, a slot of its own for every sequence, and every parameter."""
    rows = (HEADS, DIM) if heads else (DIM,)
    grouped = (*lead, GROUPS, N) if heads else (*lead, N)
    shapes = dict.fromkeys(("x", "dt", "z"), (*lead, *rows)) | dict.fromkeys("BC", grouped)
    shapes |= {"state": (SLOTS, *rows, N), "A": (*rows, N), "D": rows, "dt_bias": rows}
    uniform = np.random.default_rng(seed).uniform
    return {name: xp.asarray(uniform(-1, 1, shape), np.float32) for name, shape in shapes.items()}


def copies(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: given.copy() if hasattr(given, "copy") else given for name, given in arguments.items()}


def close(xp: Any, got: Any, wanted: Any) -> bool:
    return bool(xp.allclose(got, wanted, rtol=1e-5, atol=1e-6))


@EACH_KIND
@pytest.mark.parametrize(
    ("lead", "heads"),
    [((BATCH,), False), ((BATCH,), True), ((BATCH, TOKENS), True)],
    ids=["no-heads", "heads", "tokens"],
)
def test_a_new_result_has_no_gaps(lead: tuple[int, ...], heads: bool, kind: str) -> None:
    xp = module_of(kind)
    arguments = inputs(xp, *lead, heads=heads)
    shape = arguments["x"].shape
    wide = xp.zeros((*shape[:-1], shape[-1] + 3), np.float32)[..., :-3]
    wide[...] = arguments["x"]
    out = cuconv.selective_state_update(**{**arguments, "x": wide})
    assert out.shape == shape and out.dtype == np.float32 and type(out) is type(wide)
    strides = np.cumprod([4, *shape[:0:-1]])[::-1]
    assert byte_strides(out) == tuple(strides.tolist())


@EACH_KIND
def test_parameters_with_one_value_per_head_are_as_repeated_ones(kind: str) -> None:
    """One value a head, broadcast over its rows and states as Mamba-2 does it, and the same values apart."""
    xp = module_of(kind)
    arguments = inputs(xp, BATCH)
    per_head = {
        "A": xp.broadcast_to(arguments["A"][:, :1, :1], (HEADS, DIM, N)),
        "dt": xp.broadcast_to(arguments["dt"][:, :, :1], (BATCH, HEADS, DIM)),
        "dt_bias": xp.broadcast_to(arguments["dt_bias"][:, :1], (HEADS, DIM)),
        "D": xp.broadcast_to(arguments["D"][:, :1], (HEADS, DIM)),
    }
    assert all(0 in array.strides for array in per_head.values())
    apart = {**copies(arguments), **{name: xp.array(array, order="C", copy=True) for name, array in per_head.items()}}
    assert not any(0 in array.strides for array in apart.values())
    for some in (["A"], ["A", "dt"], ["dt", "dt_bias", "D"], [*per_head]):
        call, apart_call = ({**copies(arguments), **apart, "state": arguments["state"].copy()}, copies(apart))
        call |= {name: per_head[name] for name in some}
        outs = [cuconv.selective_state_update(**each, dt_softplus=True) for each in (call, apart_call)]
        assert close(xp, outs[0], outs[1]) and close(xp, call["state"], apart_call["state"])


@pytest.mark.gpu
def test_torch_parameters_are_expanded_as_in_mamba() -> None:
    torch = pytest.importorskip("torch")
    arguments = inputs(np, BATCH)
    tensors = {name: torch.from_numpy(array).cuda() for name, array in arguments.items()}
    heads = {name: torch.randn(HEADS, device="cuda") for name in ("A", "dt_bias", "D")}
    by_head = torch.randn(BATCH, HEADS, device="cuda")
    expanded = {
        "A": -torch.exp(heads["A"])[:, None, None].expand(HEADS, DIM, N),
        "dt": by_head[:, :, None].expand(-1, -1, DIM),
        "dt_bias": heads["dt_bias"][:, None].expand(-1, DIM),
        "D": heads["D"][:, None].expand(-1, DIM),
    }
    expanded["A"] = (-torch.exp(heads["A"]))[:, None, None].expand(HEADS, DIM, N)
    host = {name: tensor.cpu().numpy().copy() for name, tensor in {**tensors, **expanded}.items()}
    seen = dict.fromkeys(expanded, 0) | {name: tensor.stride().count(0) for name, tensor in expanded.items()}
    assert seen == {"A": 2, "dt": 1, "dt_bias": 1, "D": 1}
    out = cuconv.selective_state_update(**{**tensors, **expanded}, dt_softplus=True)
    assert type(out) is torch.Tensor and out.device == tensors["x"].device
    wanted = cuconv.selective_state_update(**host, dt_softplus=True)
    assert close(np, out.cpu().numpy(), wanted) and close(np, tensors["state"].cpu().numpy(), host["state"])


@EACH_KIND
def test_x_B_C_and_z_may_be_slices_of_one_projection(kind: str) -> None:
    xp = module_of(kind)
    arguments = inputs(xp, BATCH)
    whole = copies(arguments)
    names, begin = ("z", "x", "B", "C"), 0
    sizes = [int(np.prod(arguments[name].shape[1:])) for name in names]
    projection = xp.full((BATCH, sum(sizes) + 5), np.nan, np.float32)
    for name, size in zip(names, sizes, strict=True):
        part = projection[:, begin : begin + size]
        part[...] = arguments[name].reshape(BATCH, size)
        arguments[name] = part.reshape(arguments[name].shape)
        begin += size
        if kind == "NumPy":
            assert np.shares_memory(arguments[name], projection)
    out = cuconv.selective_state_update(**{**arguments, "out": arguments["x"]})
    assert out is arguments["x"]
    assert close(xp, out, cuconv.selective_state_update(**whole))
    assert bool(xp.isnan(projection[:, begin:]).all())


@EACH_KIND
def test_a_pool_is_updated_where_it_lies(kind: str) -> None:
    """A layer's part of a buffer for all layers, call after call, as one long sequence of each."""
    xp = module_of(kind)
    steps = [inputs(xp, BATCH, seed=seed) for seed in range(4)]
    fixed = {name: steps[0][name] for name in ("A", "D", "dt_bias")}
    slots = xp.asarray([6, 0, 2], np.int32)
    buffer = xp.full((2, SLOTS, HEADS, DIM, N), np.nan, np.float32)
    buffer[1, slots] = steps[0]["state"][:BATCH]
    outs = [
        cuconv.selective_state_update(
            **{**step, **fixed, "state": buffer[1]}, dt_softplus=True, state_batch_indices=slots
        )
        for step in steps
    ]
    at_once = {name: xp.stack([step[name] for step in steps], axis=1) for name in ("x", "dt", "z", "B", "C")}
    state = steps[0]["state"].copy()
    whole = cuconv.selective_state_update(**{**at_once, **fixed, "state": state}, dt_softplus=True)
    assert close(xp, xp.stack(outs, axis=1), whole) and close(xp, buffer[1, slots], state[:BATCH])
    untouched = [slot for slot in range(SLOTS) if slot not in (6, 0, 2)]
    assert bool(xp.isnan(buffer[1, untouched]).all()) and bool(xp.isnan(buffer[0]).all())


@EACH_KIND
def test_a_state_that_is_only_read_stays(kind: str) -> None:
    arguments = inputs(module_of(kind), BATCH, TOKENS)
    before = arguments["state"].tobytes()
    first = cuconv.selective_state_update(**arguments, disable_state_update=True)
    assert arguments["state"].tobytes() == before
    again = cuconv.selective_state_update(**arguments)
    assert first.tobytes() == again.tobytes() and arguments["state"].tobytes() != before


@EACH_KIND
@pytest.mark.parametrize("name", ["x", "dt", "B", "C", "z", "state"])
def test_nan_stays_in_its_sequence(name: str, kind: str) -> None:
    xp = module_of(kind)
    arguments = inputs(xp, BATCH, TOKENS)
    wanted = cuconv.selective_state_update(**copies(arguments))
    arguments[name][1] = np.nan
    got = cuconv.selective_state_update(**arguments)
    assert bool(xp.isnan(got[1]).all())
    assert got[0].tobytes() == wanted[0].tobytes() and got[2].tobytes() == wanted[2].tobytes()
    assert bool(xp.isfinite(arguments["state"][2]).all())


@EACH_KIND
def test_without_any_option_it_is_the_bare_recurrence(kind: str) -> None:
    xp = module_of(kind)
    arguments = inputs(xp, BATCH, heads=False)
    state, x, dt, A, B, C = (arguments[name] for name in ("state", "x", "dt", "A", "B", "C"))
    after = state[:BATCH] * xp.exp(dt[..., None] * A) + (dt * x)[..., None] * B[:, None]
    out = cuconv.selective_state_update(state, x, dt, A, B, C)
    assert close(xp, out, (after * C[:, None]).sum(-1)) and close(xp, state[:BATCH], after)


@EACH_KIND
@pytest.mark.parametrize(("lead", "dim"), [((0,), 4), ((3,), 0), ((3, 0), 4), ((0, 2), 4), ((0, 0), 0)], ids=str)
def test_nothing_is_done_where_there_is_nothing_to_do(lead: tuple[int, ...], dim: int, kind: str) -> None:
    xp = module_of(kind)
    state = xp.ones((5, 2, dim, N), np.float32)
    buffer = xp.full((5, 2, 2, dim, N), np.nan, np.float32)
    x, B, A = (
        xp.ones((*lead, 2, dim), np.float32),
        xp.ones((*lead, 1, N), np.float32),
        xp.ones((2, dim, N), np.float32),
    )
    out = cuconv.selective_state_update(state, x, x, A, B, B, intermediate_states_buffer=buffer)
    assert out.shape == x.shape and out.dtype == x.dtype
    assert bool((state == 1).all()) and bool(xp.isnan(buffer).all())
