"""Stochastic rounding: Philox's published numbers, what NumPy makes of them, and the same bits from every kernel."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cuconv.runtime.dtypes import BFLOAT16, FLOAT16, DType
from cuconv.runtime.rounding import philox4x32, random_numbers, round_stochastically
from tests.emulator.test_primitives import interesting_floats
from tests.selective_state_update.cases import Case
from tests.support.compare import assert_same_bits
from tests.support.placement import Array
from tests.support.runners import Runner, Values

HALVES = pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16], ids=str)
ALL_BITS = np.arange(2**16, dtype=np.uint16)


@pytest.mark.parametrize(
    ("counter", "key", "rounds", "wanted"),
    [
        # The known answers of Random123's kat_vectors.
        ((0, 0, 0, 0), (0, 0), 10, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((2**32 - 1,) * 4, (2**32 - 1,) * 2, 10, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            10,
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
        ((0, 0, 0, 0), (0, 0), 7, "5f6fb709 0d893f64 4f121f81 4f730a48"),
    ],
)
def test_philox_gives_the_published_numbers(
    counter: tuple[int, ...], key: tuple[int, int], rounds: int, wanted: str
) -> None:
    words = philox4x32(np.array([counter, counter], np.uint32), key, rounds)
    assert [" ".join(f"{word:08x}" for word in row) for row in words] == [wanted] * 2


def test_every_element_sequence_token_and_seed_has_numbers_of_its_own() -> None:
    drawn = random_numbers(24, 5, 3, 7 << 32 | 9)
    words = philox4x32(np.array([[i, 0, 5, 3] for i in range(3)], np.uint32), (9, 7))
    assert drawn.tolist() == [int(w) >> shift & 0xFFFF for w in words.reshape(-1) for shift in (0, 16)]
    assert random_numbers(13, 5, 3, 7 << 32 | 9).tolist() == drawn[:13].tolist()


@HALVES
def test_a_value_becomes_one_of_its_two_neighbours(dtype: DType) -> None:
    values = interesting_floats(dtype)
    random = np.random.default_rng(0).integers(0, 2**16, values.shape, np.uint16)
    for bits_up in (random, np.zeros_like(random), np.full_like(random, 2**16 - 1)):
        got = round_stochastically(values, bits_up, dtype.numpy).astype(np.float64)
        low, high = neighbours(values, dtype)
        finite = np.isfinite(values)
        assert ((got == low) | (got == high))[finite].all()
        assert_same_values(got[~finite], values[~finite])
        if not bits_up.any():
            smaller = np.where(np.abs(low) < np.abs(high), low, high)
            in_range = np.isfinite(low) & np.isfinite(high) & finite
            assert_same_values(got[in_range], smaller[in_range])


def neighbours(values: Array, dtype: DType) -> tuple[Array, Array]:
    """The largest value of a 16-bit dtype that is not above, the smallest that is not below; infinities count."""
    with np.errstate(over="ignore", invalid="ignore"):
        all_of_them = ALL_BITS.view(dtype.numpy).astype(np.float64)
    ladder = np.unique(all_of_them[~np.isnan(all_of_them)])
    with np.errstate(invalid="ignore"):
        wide = np.nan_to_num(values.astype(np.float64), nan=0.0)
    below = ladder[np.maximum(np.searchsorted(ladder, wide, side="right") - 1, 0)]
    return below, ladder[np.minimum(np.searchsorted(ladder, wide, side="left"), len(ladder) - 1)]


def assert_same_values(got: Array, wanted: Array) -> None:
    assert np.array_equal(got, wanted, equal_nan=True)


@HALVES
def test_the_mean_is_the_value(dtype: DType) -> None:
    """Averaged over all 16-bit random numbers; float16 sees 13 bits of them, and so do its steps below 2**-14."""
    random = np.random.default_rng(1)
    magnitudes = 2.0 ** random.uniform(-24, 15, 300)
    values = (np.where(random.uniform(size=300) < 0.5, -1, 1) * magnitudes).astype(np.float32)
    for value in values:
        rounded = round_stochastically(np.full(2**16, value), ALL_BITS, dtype.numpy).astype(np.float64)
        low, high = neighbours(np.array([value]), dtype)
        step = float((high - low)[0])
        assert abs(rounded.mean() - float(value)) <= step * (0.0 if dtype is BFLOAT16 else 2.0**-12)


@HALVES
def test_drawn_numbers_have_no_bias(dtype: DType) -> None:
    """A quarter of the way from one value to the next, over many elements, sequences and tokens: a quarter goes up."""
    value = np.full(512, 1.0 + 1.25 * 2.0 ** (-10 if dtype is FLOAT16 else -7), np.float32)
    ups = [
        round_stochastically(value, random_numbers(512, b, t, seed), dtype.numpy).astype(np.float64) > value
        for seed in (0, 2**63 + 5)
        for b in range(8)
        for t in range(4)
    ]
    # 32,768 drawings: five standard deviations are 0.012.
    assert abs(np.mean(ups) - 0.25) < 0.012


def exact_call(case: Case) -> tuple[Values, Array]:
    """Inputs with states after every token that are float32 numbers without any error, and these states.

    Nothing decays, steps are 1, and what is added to a row is B times a power of two.
    """
    values = case.inputs()
    values["A"][...], values["dt"][...], values["x"][...] = 0.0, 1.0, 1.0
    tokens = values["x"].shape[1]
    floats = np.random.default_rng(2).permutation(interesting_floats(case.own_dtypes()["state"]))
    floats = floats[np.abs(floats) < 2.0**100]
    B = np.resize(floats, values["B"].shape)
    B[:, 1:] = 0.0  # further tokens only draw again
    values["B"][...], values["C"][...] = B, 0.0
    scale = 2.0 ** -np.arange(case.heads * case.dim).reshape(case.heads, case.dim)
    values["x"][...] = scale
    values["state"][...] = 0.0
    grouped = np.repeat(B[:, 0], case.heads // case.groups, axis=1)
    states = (grouped[:, :, None] * scale[..., None]).astype(np.float32)
    return values, np.repeat(states[:, None], tokens, axis=1)


EXACT = Case(*(7, 4, 5, 128, 2), tokens=3, dtype="float32", without="all", softplus=False, targets="each", steps="row")
EACH_STATE = pytest.mark.parametrize("state_dtype", ["bfloat16", "float16"])


@EACH_STATE
@pytest.mark.parametrize("seed", [0, 2**64 - 3, "array"], ids=str)
def test_a_kernel_rounds_bit_by_bit_as_numpy(state_dtype: str, seed: Any, run: Runner) -> None:
    case = replace(EXACT, state_dtype=state_dtype, seed=seed, per_head="A dt" if seed == 0 else "")
    values, states = exact_call(case)
    got = run(case, values)
    number = seed if isinstance(seed, int) else int(values["rand_seed"][0]) % 2**64
    dtype = case.own_dtypes()["state"].numpy
    for (b, t), row in zip(np.ndindex(*states.shape[:2]), states.reshape(-1, *states.shape[2:]), strict=True):
        random = random_numbers(row.size, b, t, number).reshape(row.shape)
        wanted = round_stochastically(row, random, dtype).astype(np.float64)
        slots, rows = (values["dst_state_batch_indices"], values["intermediate_state_indices"])
        assert_same_values(got["state"][slots[b, t]].astype(np.float64), wanted)
        assert_same_values(got["intermediate_states_buffer"][rows[b], t].astype(np.float64), wanted)


@EACH_STATE
@pytest.mark.parametrize("rounds", [1, 7])
def test_so_many_rounds_are_made(state_dtype: str, rounds: int, run: Runner) -> None:
    case = replace(EXACT, state_dtype=state_dtype, seed=11, rounds=rounds, per_head="A dt")
    values, states = exact_call(case)
    got = run(case, values)["state"][values["dst_state_batch_indices"][0, 0]]
    random = random_numbers(states[0, 0].size, 0, 0, 11, rounds).reshape(states[0, 0].shape)
    assert_same_values(got.astype(np.float64), round_stochastically(states[0, 0], random, got.dtype).astype(np.float64))


@EACH_STATE
def test_results_depend_on_the_seed_alone(state_dtype: str, run: Runner) -> None:
    """Out does not at all; a seed in an array is one that is given."""
    case = Case(3, 2, 6, 128, dtype="float32", state_dtype=state_dtype, seed=5, per_head="all")
    values = case.inputs()
    first = run(case, values)
    again = run(case, values)
    in_array = run(replace(case, seed="array"), {**values, "rand_seed": np.array([5])})
    other = run(replace(case, seed=6), values)
    nearest = run(replace(case, seed=None), values)
    for got in (again, in_array):
        assert_same_bits(got["state"], first["state"], "states")
    for got in (again, in_array, other, nearest):
        assert_same_bits(got["out"], first["out"], "out")
    used = values["state_batch_indices"]
    for got in (other, nearest):
        assert (got["state"][used] != first["state"][used]).mean() > 0.2
