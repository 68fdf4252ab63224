"""States of codes: every rounding is the one that NumPy makes of the exact state, on every path that states take."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import cuconv
from cuconv.runtime.dtypes import CODES, FLOAT8_E4M3FN, DType
from cuconv.runtime.rounding import LARGEST, codes_of, quantised, random_numbers
from cuconv.selective_state_update.kernels import BYTES
from tests.selective_state_update.cases import BY_TOKENS, Case
from tests.support.compare import assert_same_bits
from tests.support.placement import Array
from tests.support.runners import Runner, Values, prebuild

EACH_CODE = pytest.mark.parametrize("dtype", CODES, ids=str)
PER_HEAD: Any = {"per_head": "all"}


def all_codes(dtype: DType) -> Array:
    """Every finite code, in order, in float64."""
    bits = np.arange(2 ** (8 * dtype.itemsize), dtype=f"u{dtype.itemsize}").view(dtype.numpy).astype(np.float64)
    return np.unique(bits[np.abs(bits) <= LARGEST[dtype.numpy]])


def random_rows(count: int, elements: int = 64) -> Array:
    """Rows of float32 of very different magnitudes."""
    random = np.random.default_rng(3)
    rows = random.normal(size=(count, elements)) * 2.0 ** random.integers(-90, 90, (count, 1))
    return rows.astype(np.float32)


@EACH_CODE
def test_codes_are_the_nearest_and_scales_those_of_the_largest(dtype: DType) -> None:
    rows = random_rows(200)
    codes, scales = quantised(rows, dtype.numpy, None)
    largest = np.abs(rows).max(axis=-1)
    exact = largest.astype(np.float64) / LARGEST[dtype.numpy]
    assert (np.abs(scales / exact - 1.0) <= 2.0**-23).all()
    # What the row's own elements become: within half a step of the code, and the largest one the largest code.
    ladder = all_codes(dtype)
    wanted = rows.astype(np.float64) / exact[:, None]
    got = codes.astype(np.float64)
    whole = np.abs(wanted - np.rint(wanted))
    nearest = whole if dtype.itemsize > 1 else np.min(np.abs(wanted[..., None] - ladder), axis=-1)
    assert (np.abs(got - wanted) <= nearest + 1e-6 * np.abs(wanted)).all()
    assert (np.abs(got).max(axis=-1) == LARGEST[dtype.numpy]).all()


@EACH_CODE
def test_every_code_stays_what_it_is(dtype: DType) -> None:
    """Reading and storing changes no code where the largest is among them, and rounding at random does not either."""
    ladder = all_codes(dtype).astype(np.float32)
    for factor in (1.0, 2.0**-60, 2.0**60):
        row = (ladder * np.float32(factor))[None]
        for random in (None, np.zeros(row.shape, np.uint16), np.full(row.shape, 2**16 - 1, np.uint16)):
            codes, scales = quantised(row, dtype.numpy, random)
            assert scales[0] == factor
            np.testing.assert_array_equal(codes[0].astype(np.float32), ladder)


@EACH_CODE
def test_random_bits_choose_between_neighbours_without_bias(dtype: DType) -> None:
    ladder, all_bits = all_codes(dtype), np.arange(2**16, dtype=np.uint16)
    random = np.random.default_rng(4)
    for value in random.uniform(-1, 1, 60) * 2.0 ** random.uniform(-12, np.log2(LARGEST[dtype.numpy]), 60):
        scaled = np.float32(value)
        got = codes_of(np.full((1, 2**16), scaled), np.ones(1, np.float32), dtype.numpy, all_bits[None])
        got = got[0].astype(np.float64)
        above = np.searchsorted(ladder, float(scaled))
        low, high = ladder[above - 1], ladder[above]
        assert np.isin(got, (low, high)).all()
        # Bits below the sixteenth are rounded, or cut off towards zero where there is a sign of its own.
        assert abs(got.mean() - float(scaled)) <= (high - low) * 2.0**-16


@EACH_CODE
def test_rows_without_a_scale(dtype: DType) -> None:
    """Nothing but zeros, magnitudes so small that their scale would not be normal, and what is not finite."""
    rows = np.ones((8, 4), np.float32)
    rows[:, 1] = [0, 2.0**-111, 2.0**-112, 2.0**126, 2.0**127, np.inf, -np.inf, np.nan]
    rows[:3, [0, 2, 3]] = 0.0
    codes, scales = quantised(rows, dtype.numpy, None)
    most = LARGEST[dtype.numpy]
    assert scales[[0, 2]].tolist() == [1.0, 1.0] and not codes[[0, 2]].astype(np.float64).any()
    assert codes[[1, 3], 1].astype(np.float64).tolist() == [most, most]
    assert np.isnan(scales[4:]).all() and np.isfinite(scales[:4]).all() and (scales[:4] >= 2.0**-126).all()


def exact_call(case: Case) -> tuple[Values, Array]:
    """Inputs with states after every token that are float32 numbers without any error, and these states.

    Nothing decays, steps are 1, and what is added to a row is B times a power of two; further tokens add nothing.
    """
    values = case.inputs()
    dtype = case.own_dtypes()["state"]
    values["A"][...], values["dt"][...], values["x"][...] = 0.0, 1.0, 1.0
    tokens, most, random = values["x"].shape[1], LARGEST[dtype.numpy], np.random.default_rng(5)
    shape = values["B"][:, 0].shape
    rows = [
        # Halves between codes, with the largest code so that the factor is a power of two.
        np.concatenate([[most], np.arange(shape[-1] - 1) - shape[-1] // 3 + 0.5]),
        np.concatenate([[-most], all_codes(dtype)[: shape[-1] - 1] * 0.3]),
        random.normal(size=shape[-1]),
        random.normal(size=shape[-1]) * 2.0 ** random.integers(-30, 30, shape[-1]),
        np.zeros(shape[-1]),
        np.full(shape[-1], 2.0**-108),
        np.full(shape[-1], 2.0**-140),
    ]
    B = np.resize(np.array(rows, np.float32), shape)
    values["B"][...] = 0.0
    values["B"][:, 0], values["C"][...] = B, 0.0
    scale = 2.0 ** -np.arange(case.heads * case.dim).reshape(case.heads, case.dim)
    values["x"][...] = scale
    values["state"][...], values["state_scale"][...] = 0, 1.0
    grouped = np.repeat(B, case.heads // case.groups, axis=1)
    # A sum with the zero before has no sign where it is zero.
    states = (grouped[:, :, None] * scale[..., None]).astype(np.float32) + np.float32(0.0)
    return values, np.repeat(states[:, None], tokens, axis=1)


EXACT = Case(*(7, 4, 5, 128, 2), tokens=3, dtype="float32", without="all", softplus=False, targets="each", steps="row")
ROUNDED = {
    (seed, dtype): replace(EXACT, state_dtype=str(dtype), seed=seed, per_head="A dt" if seed in (None, 0) else "")
    for seed in (None, 0, 2**64 - 3, "array")
    for dtype in CODES
}


@pytest.mark.parametrize(("seed", "dtype"), ROUNDED, ids=str)
def test_a_kernel_rounds_bit_by_bit_as_numpy(seed: Any, dtype: DType, run: Runner) -> None:
    prebuild(run, ROUNDED.values())
    case = ROUNDED[seed, dtype]
    values, states = exact_call(case)
    got = run(case, values)
    number = seed if isinstance(seed, int) else int(values["rand_seed"][0]) % 2**64 if seed else None
    for (b, t), row in zip(np.ndindex(*states.shape[:2]), states.reshape(-1, *states.shape[2:]), strict=True):
        random = None if number is None else random_numbers(row.size, b, t, number).reshape(row.shape)
        codes, scales = quantised(row, dtype.numpy, random)
        slot, place = values["dst_state_batch_indices"][b, t], (values["intermediate_state_indices"][b], t)
        assert_same_bits(got["state"][slot], codes, "codes in a slot")
        assert_same_bits(got["state_scale"][slot], scales, "scales of a slot")
        assert_same_bits(got["intermediate_states_buffer"][place], codes, "codes in the buffer")
        assert_same_bits(got["intermediate_state_scales"][place], scales, "scales of the buffer")


@EACH_CODE
def test_what_is_not_finite_spoils_its_row_alone(dtype: DType, run: Runner) -> None:
    case = Case(2, 2, 6, 128, dtype="float32", state_dtype=str(dtype), softplus=False, without="all")
    values = case.inputs()
    values["A"][...], values["dt"][...] = 0.0, 1.0
    for number, bad in enumerate((np.inf, -np.inf, np.nan, 2.0**127)):
        values["x"][0, 0, number] = bad
    values["B"][...] = 1.0
    got = run(case, values)
    slots = values["state_batch_indices"]
    is_spoilt = np.zeros((2, 2, 6), bool)
    is_spoilt[0, 0, :4] = True
    assert (np.isnan(got["state_scale"][slots]) == is_spoilt).all()
    stored = {name: got[name] for name in ("state", "state_scale")}
    again = run(case, {**values, **stored, "x": np.ones_like(values["x"])})
    assert (np.isnan(again["out"]) == is_spoilt).all()


def test_a_code_that_is_no_number_spoils_its_row_alone(run: Runner) -> None:
    """8-bit floats have NaN of either sign."""
    case = Case(2, 2, 6, 128, dtype="float32", state_dtype="float8_e4m3fn", **PER_HEAD)
    values = case.inputs()
    first, second = values["state_batch_indices"]
    values["state"].view(np.uint8)[[first, second], [0, 1], [2, 5], [7, 127]] = 0x7F, 0xFF
    got = run(case, values)
    is_spoilt = np.zeros((2, 2, 6), bool)
    is_spoilt[[0, 1], [0, 1], [2, 5]] = True
    for found in (got["out"], got["state_scale"][[first, second]]):
        assert (np.isnan(found) == is_spoilt).all()


def single_steps(case: Case, values: Values, path: list[int], run: Runner) -> Values:
    """What tokens at these places give, one call for each."""
    kept = {name: each for name, each in values.items() if not name.startswith("intermediate") and name != "parents"}
    got: Values = {}
    for t in path:
        token = {name: each[:, t] if name in BY_TOKENS else each for name, each in kept.items()}
        got = run(case, token)
        kept |= {name: got[name] for name in ("state", "state_scale")}
    return got


def pairs_of_trees(dtype: DType, per_head: str) -> tuple[Case, Case]:
    """Trees of tokens, and one of their tokens alone."""
    case = Case(2, 2, 6, 128, tokens=4, tree=True, steps="row", state_dtype=str(dtype), per_head=per_head)
    return case, replace(case, tokens=None, steps=None, tree=False)


@EACH_CODE
@pytest.mark.parametrize("per_head", ["all", ""], ids=["per_head", "per_element"])
def test_a_token_of_a_tree_has_the_bits_of_single_steps_along_its_path(
    dtype: DType, per_head: str, run: Runner
) -> None:
    """Codes, scales and results: one token of many is computed as one alone, and follows what was stored."""
    prebuild(run, [each for code in CODES for way in ("all", "") for each in pairs_of_trees(code, way)])
    case, one = pairs_of_trees(dtype, per_head)
    values = {**case.inputs(), "parents": np.array([[-1, 0, 0, 1], [0, 0, 0, 1]])}
    got = run(case, values)
    slots, rows = values["state_batch_indices"], values["intermediate_state_indices"]
    for path in ([0], [0, 1], [0, 2], [0, 1, 3]):
        wanted = single_steps(one, values, path, run)
        assert_same_bits(got["out"][:, path[-1]], wanted["out"], f"token {path[-1]}")
        for buffer, pool in (("intermediate_states_buffer", "state"), ("intermediate_state_scales", "state_scale")):
            assert_same_bits(got[buffer][rows, path[-1]], wanted[pool][slots], f"{pool} {path[-1]}")
    for buffer, pool in (("intermediate_states_buffer", "state"), ("intermediate_state_scales", "state_scale")):
        assert_same_bits(got[pool][slots], got[buffer][rows, 3], "the last token's state")


def pairs_of_single_tokens(dtype: DType, seed: int | None) -> tuple[Case, Case]:
    """One token whose state is also kept elsewhere, and one whose state is not."""
    case = Case(3, 2, 20, 128, 2, tokens=1, state_dtype=str(dtype), seed=seed, steps="row", **PER_HEAD)
    return case, replace(case, tokens=None, steps=None)


@EACH_CODE
@pytest.mark.parametrize("seed", [None, 7], ids=["nearest", "random"])
def test_one_token_has_the_bits_of_one_whose_state_is_kept(dtype: DType, seed: int | None, run: Runner) -> None:
    """Another way through the kernel, which shares no lane's rows."""
    prebuild(run, [each for code in CODES for way in (None, 7) for each in pairs_of_single_tokens(code, way)])
    case, one = pairs_of_single_tokens(dtype, seed)
    values = case.inputs()
    got, alone = run(case, values), single_steps(one, values, [0], run)
    assert_same_bits(got["out"][:, 0], alone["out"], "out")
    slots, rows = values["state_batch_indices"], values["intermediate_state_indices"]
    for buffer, pool in (("intermediate_states_buffer", "state"), ("intermediate_state_scales", "state_scale")):
        assert_same_bits(got[pool], alone[pool], pool)
        assert_same_bits(got[buffer][rows, 0], alone[pool][slots], buffer)


def in_units_of_rows(dtype: DType) -> list[Case]:
    """A token whose state is also kept elsewhere, and the same without, as a call of its size and of a larger one."""
    case = Case(3, 4, 64, 128, 2, dtype="float32", state_dtype=str(dtype), odd=True, **PER_HEAD)
    kept, larger = replace(case, tokens=1, steps="row"), replace(case, force="heads=1")
    return [kept, case, larger][: 2 + (dtype in BYTES)]


@EACH_CODE
@pytest.mark.parametrize("spread", [0, 40, 100])
def test_units_of_rows_change_no_bits(dtype: DType, spread: int, run: Runner) -> None:
    """Decays and inputs of any ratio, in one token, which takes rows in units of their own, and in larger calls."""
    prebuild(run, [each for code in CODES for each in in_units_of_rows(code)])
    kept, *others = in_units_of_rows(dtype)
    values, random = kept.inputs(), np.random.default_rng(6)
    for name in ("x", "state_scale"):
        values[name][...] *= np.ldexp(1.0, random.integers(-spread, spread + 1, values[name].shape)).astype(np.float32)
    values["state"][:, 0, 3], values["x"][:, 0, 0, 3:7] = 0, 0.0
    values["state_scale"][:, 1, :4] = [0.0, np.nan, np.inf, 2.0**-126]
    values["x"][0, 0, 2, :3] = [np.inf, -np.inf, np.nan]
    wanted = run(kept, values)
    single = {name: each[:, 0] if name in BY_TOKENS else each for name, each in values.items()}
    for other in others:
        with other.running():
            got = run(other, {name: each for name, each in single.items() if not name.startswith("intermediate")})
        for name, array in {**wanted, "out": wanted["out"][:, 0]}.items():
            if name in got:
                np.testing.assert_array_equal(got[name].astype(float), array.astype(float), f"{name} {other.force}")


@EACH_CODE
def test_results_follow_the_state_before_it_is_rounded(dtype: DType, run: Runner) -> None:
    """Tokens of one call pass the unrounded state on, and how it is stored changes no result."""
    case = Case(3, 2, 6, 128, 2, tokens=3, dtype="float32", state_dtype=str(dtype), steps="row", **PER_HEAD)
    values = case.inputs()
    wanted = run(case, values)["out"]
    frozen = replace(case, frozen=True, steps=None)
    without = {name: each for name, each in values.items() if not name.startswith("intermediate")}
    for other, given in ((frozen, without), (replace(case, seed=1), values)):
        assert_same_bits(run(other, given)["out"], wanted, "out")
    floats = replace(case, state_dtype="float32", steps=None)
    read = values["state"].astype(np.float64) * values["state_scale"][..., None]
    given = {name: each for name, each in without.items() if name != "state_scale"}
    given["state"] = read.astype(np.float32)
    # Both are off by float32's rounding of the state before: far less than a step of the codes.
    np.testing.assert_allclose(run(floats, given)["out"], wanted, rtol=2e-5, atol=2e-5)


def as_flashinfer(values: Values, b: int) -> dict[str, list[Array]]:
    """One sequence by the steps of FlashInfer's int16 kernels, in float32: results, codes and scales by token."""
    single = np.float32
    slot, scale = values["state_batch_indices"][b], values["state_scale"].reshape(values["state"].shape[:-1])
    state = values["state"][slot].astype(single) * scale[slot][..., None]
    found: dict[str, list[Array]] = {"y": [], "codes": [], "scales": []}
    for t in range(values["x"].shape[1]):
        x, dt = (values[name][b, t].astype(single) for name in ("x", "dt"))
        B, C = (np.repeat(values[name][b, t].astype(single), len(x) // values[name].shape[2], 0) for name in "BC")
        step = np.log1p(np.exp(dt + values["dt_bias"].astype(single)))
        state = state * np.exp(step[..., None] * values["A"]) + (B[:, None] * step[..., None]) * x[..., None]
        found["y"].append((state * C[:, None]).sum(axis=-1) + values["D"].astype(single) * x)
        largest = np.abs(state).max(axis=-1)
        encode = np.where(largest == 0, single(1), single(32767) / largest)
        found["codes"].append(np.clip(np.rint(state * encode[..., None]), -32767, 32767))
        found["scales"].append(single(1) / encode)
    return found


def test_int16_is_what_flashinfer_stores(run: Runner) -> None:
    """The state after every token, each with its scale, and the last one in its slot, too: up to a code's step."""
    case = Case(3, 4, 8, 128, 2, tokens=3, dtype="float32", state_dtype="int16", steps="row", scale_axis=True,
                without="z", **PER_HEAD)  # fmt: skip
    values = case.inputs()
    got = run(case, values)
    for b, (slot, row) in enumerate(
        zip(values["state_batch_indices"], values["intermediate_state_indices"], strict=True)
    ):
        wanted = as_flashinfer(values, b)
        np.testing.assert_allclose(got["out"][b], wanted["y"], rtol=1e-4, atol=1e-4)
        codes, scales = got["intermediate_states_buffer"][row], got["intermediate_state_scales"][row][..., 0]
        np.testing.assert_allclose(scales, wanted["scales"], rtol=1e-5)
        off = np.abs(codes - np.array(wanted["codes"]))
        assert off.max() <= 1 and off.mean() < 0.02
        assert_same_bits(got["state"][slot], codes[-1], "the slot")
        assert_same_bits(got["state_scale"][slot][..., 0], scales[-1], "its scales")


def test_torch_tensors_on_the_cpu() -> None:
    torch = pytest.importorskip("torch")
    for dtype in CODES:
        case = Case(2, 2, 6, 16, state_dtype=str(dtype), dtype="float32", tokens=2, steps="row")
        values = case.inputs()
        wanted = {name: each.copy() for name, each in values.items()}
        out = case.call(wanted)
        tensors = {name: torch.from_numpy(as_plain(each).copy()) for name, each in values.items()}
        if dtype is FLOAT8_E4M3FN:
            for name in ("state", "intermediate_states_buffer"):
                tensors[name] = tensors[name].view(torch.float8_e4m3fn)
        got = cuconv.selective_state_update(**{**case.arguments(tensors)})
        np.testing.assert_array_equal(got.numpy(), out)
        for name in Case.UPDATED:
            back = tensors[name].view(torch.uint8) if dtype is FLOAT8_E4M3FN and "scale" not in name else tensors[name]
            np.testing.assert_array_equal(back.numpy(), as_plain(wanted[name]))


def as_plain(array: Array) -> Array:
    """8-bit floats as bytes, which torch takes from NumPy."""
    return array.view(np.uint8) if array.dtype == FLOAT8_E4M3FN.numpy else array


@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_what_has_decayed_stays_zero_however_the_bits_are_drawn(dtype: str) -> None:
    """A row that is too small for a scale has scale 1, so that a code of -1 would be a state of -1."""
    values, factors = np.float32([[-1e-34, 1e-34, -0.0]]), np.ones(1, np.float32)
    for bits in (0, 1, 2**16 - 1):
        assert not codes_of(values, factors, np.dtype(dtype), np.full(values.shape, bits)).any()
