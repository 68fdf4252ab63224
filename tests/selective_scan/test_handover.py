"""Prefill hands states over to decode in slots of codes: the same rounding on both sides, and nothing in between."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import cuconv
from cuconv.runtime import rounding
from cuconv.runtime.dtypes import CODES, DType
from cuconv.runtime.rounding import LARGEST
from tests.emulator.family import EmulatedArray
from tests.selective_scan.cases_varlen import Case
from tests.selective_state_update.cases import Case as Step
from tests.support.compare import assert_same_bits
from tests.support.placement import Array
from tests.support.runners import Runner, Values, emulated, on_gpu, prebuild

RUNS = [emulated, pytest.param(on_gpu, marks=pytest.mark.gpu)]
EACH_RUN = pytest.mark.parametrize("run", RUNS)
EACH_CODE = pytest.mark.parametrize("dtype", CODES, ids=str)


def codes(dtype: DType, shape: tuple[int, ...], random: np.random.Generator) -> tuple[Array, Array]:
    """Codes and scales of rows with all kinds of magnitudes; most have no code near the largest."""
    values = random.uniform(-0.6, 0.6, shape) * LARGEST[dtype.numpy]
    scales = 2.0 ** random.uniform(-30, 30, shape[:-1])
    scales[:, :4] = 0.0, 2.0**-140, 2.0**-118, 2.0**124
    return values.astype(dtype.numpy), scales.astype(np.float32)


def prefill_and_step(kind: str, seed: int | None, dtype: DType) -> tuple[Case, Step]:
    dim, batch, d_state = {"few": (35, "9x1", 12), "lanes": (9, "9x1", 40), "tiles": (35, "9x200", 16)}[kind]
    layout: Any = {"layout": "channels"} if kind == "lanes" else {}
    prefill = Case(dim, batch, d_state, state_dtype=str(dtype), initial="all", seed=seed, dtype="float32", **layout)
    return prefill, Step(9, 0, dim, d_state, state_dtype=str(dtype), dtype="float32", seed=seed)


HANDOVERS = {each: prefill_and_step(*each) for each in product(("few", "lanes", "tiles"), (None, 2**63 + 5), CODES)}


@EACH_RUN
@pytest.mark.parametrize(("kind", "seed", "dtype"), HANDOVERS, ids=str)
def test_codes_have_the_bits_that_a_decode_step_stores(kind: str, seed: int | None, dtype: DType, run: Runner) -> None:
    """Tokens of no duration leave states alone: what is stored is what rounding makes of what was there."""
    prebuild(run, [each for both in HANDOVERS.values() for each in both])
    prefill, step = HANDOVERS[kind, seed, dtype]
    values = prefill.inputs()
    values["delta"][...] = values["delta_bias"][...] = -np.inf
    start, scales = codes(dtype, values["ssm_states"].shape, np.random.default_rng(3))
    values |= {"ssm_states": start, "state_scale": scales}
    got = run(prefill, values)
    wanted = decoded(step, values, 0 if kind != "tiles" else 199)
    # The codes of rows without a scale say nothing.
    has_codes = np.isfinite(wanted["state_scale"])
    assert (~has_codes).any() and has_codes.mean() > 0.8
    # What NaN looks like differs between processors.
    np.testing.assert_array_equal(got["state_scale"], wanted["state_scale"])
    assert_same_bits(
        numbers(got["ssm_states"])[has_codes], numbers(wanted["ssm_states"])[has_codes], f"codes of {kind}"
    )
    if kind != "tiles":
        again = step.inputs() | {"state": start.copy(), "state_scale": scales.copy()}
        again |= {"dt": np.full_like(again["dt"], -np.inf), "state_batch_indices": values["cache_indices"]}
        stepped = run(step, again)
        assert_same_bits(numbers(stepped["state"])[has_codes], numbers(got["ssm_states"])[has_codes], "a step's codes")
        np.testing.assert_array_equal(stepped["state_scale"], got["state_scale"])


def numbers(codes: Array) -> Array:
    """Codes as floats, of which those of zeros have no sign: adding a zero to them may change it."""
    found: Array = codes.astype(np.float32) + np.float32(0.0)
    return found


def decoded(step: Step, values: Values, token: int) -> Values:
    """The pool with every sequence's state rounded as after a token, by the reference of the decode step."""
    pool, scales = values["ssm_states"].copy(), values["state_scale"].copy()
    for sequence, slot in enumerate(values["cache_indices"].tolist()):
        random = None
        if step.seed is not None:
            drawn = rounding.random_numbers(pool[slot].size, sequence, token, int(step.seed), step.rounds)
            random = drawn.reshape(pool[slot].shape)
        with np.errstate(over="ignore"):
            state = pool[slot].astype(np.float32) * scales[slot][..., None]
        pool[slot], scales[slot] = rounding.stored(state, pool.dtype, random)
    return {"ssm_states": pool, "state_scale": scales}


def as_heads(array: Array, heads: int) -> Array:
    """Channels as heads with rows; a view."""
    return array.reshape(array.shape[0], heads, -1, *array.shape[2:])


@EACH_CODE
def test_a_prefill_of_mamba_2_hands_over_to_replay(dtype: DType) -> None:
    """Heads are channels of the scan, and a reset drops what is live in rings that other sequences have left."""
    heads, headdim, d_state, groups, slots, tokens = 4, 6, 16, 2, 5, 23
    random = np.random.default_rng(4)
    dim, single = heads * headdim, np.float32

    def uniform(*shape: int) -> Array:
        return random.uniform(-1, 1, shape).astype(single)

    A, D, bias = (each.astype(single) for each in (random.uniform(-2, -0.5, heads), uniform(heads), uniform(heads) - 2))
    x, dt = uniform(tokens, heads, headdim), uniform(tokens, heads)
    B, C = uniform(tokens, groups, d_state), uniform(tokens, groups, d_state)
    pool, scales = np.full((slots, dim, d_state), -1, dtype.numpy), np.full((slots, dim), np.nan, single)
    state, state_scale = as_heads(pool, heads), as_heads(scales, heads)
    rings = cuconv.ReplayRings(state, x[:2], B[:2], window=4, fold=False)
    rings.x[...], rings.B[...], rings.dt[...], rings.cursors[:] = np.nan, np.nan, np.nan, [3, 2, 1, 0]
    slot, live = np.array([3, 1]), np.array([True, True])
    starts = np.array([0, 9, 20])

    def by_channel(per_head: Array) -> Array:
        return np.repeat(per_head, headdim, axis=-1)

    out = cuconv.selective_scan_varlen_fn(
        *(x.reshape(tokens, dim).T, pool, by_channel(dt).T, np.repeat(by_channel(A)[:, None], d_state, axis=1)),
        *(B.transpose(1, 2, 0), C.transpose(1, 2, 0), by_channel(D), None, by_channel(bias), True),
        *(starts, slot, ~live),
        state_scale=scales,
    )
    rings.reset(slot)
    wanted = np.zeros((slots, heads, headdim, d_state), single)
    plain = {"dt_softplus": True, "state_batch_indices": slot, "D": np.repeat(D[:, None], headdim, 1)}
    plain["dt_bias"] = np.repeat(bias[:, None], headdim, 1)
    A_of_rows = np.broadcast_to(A[:, None, None], (heads, headdim, d_state))
    prefilled = cuconv.selective_state_update(
        *(wanted, x, np.repeat(dt[..., None], headdim, -1), A_of_rows, B, C), **plain, cu_seqlens=starts
    )
    np.testing.assert_allclose(out.T.reshape(x.shape)[:20], prefilled[:20], rtol=1e-5, atol=1e-5)
    handed = state[slot].astype(single) * state_scale[slot][..., None]
    step = {"int16": 1e-4, "int8": 1e-2, "float8_e4m3fn": 0.07}[str(dtype)]
    assert np.abs(handed - wanted[slot]).max() <= step * np.abs(wanted[slot]).max()
    # From here on both go on from what was handed over.
    wanted[slot] = handed
    for token in range(3):
        now = [each[[9 + token, 20 + token]] for each in (x, dt, B, C)]
        got = rings.update(state, *now[:2], A, *now[2:], D, None, bias, True, slot, state_scale=state_scale)
        rows = np.repeat(now[1][..., None], headdim, -1)
        expected = cuconv.selective_state_update(wanted, now[0], rows, A_of_rows, *now[2:], **plain)
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
        rings.commit(None, slot)


def test_a_scan_of_no_tokens_with_contiguous_channels_keeps_no_chunk() -> None:
    batch, dim, d_state = 2, 128, 8

    def empty(channels: int) -> EmulatedArray:
        return EmulatedArray(np.zeros((batch, 8, channels), np.float32)[:, :0].transpose(0, 2, 1))

    chunks, initial = np.full((batch, 4, dim, d_state), 7, np.float32), np.ones((batch, dim, d_state), np.float32)
    _, last = cuconv.selective_scan_fn(
        *(empty(dim), empty(dim), EmulatedArray(-np.ones((dim, d_state), np.float32)), empty(d_state), empty(d_state)),
        initial_state=EmulatedArray(initial),
        return_last_state=True,
        chunk_states_out=EmulatedArray(chunks[:, :0]),
    )
    assert (last.array == 1).all() and (chunks == 7).all()
