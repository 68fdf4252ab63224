"""Stochastic rounding of float32 by the random numbers of Philox-4x32, and codes with scales, with the same bits as
kernels."""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_WORD = 0xFFFFFFFF
_NUMBERS_PER_DRAW = 8


def philox4x32(counter: Array, key: tuple[int, int], rounds: int = 10) -> Array:
    """Four random words for each counter of four, (..., 4) uint32: Salmon et al., "Parallel random numbers: as easy
    as 1, 2, 3", 2011."""
    words = [counter[..., i].astype(np.uint64) for i in range(4)]
    low = np.uint64(_WORD)
    for number in range(rounds):
        keys = [np.uint64((k + number * step) & _WORD) for k, step in zip(key, _KEY_STEPS, strict=True)]
        first, second = _MULTIPLIERS[0] * words[0], _MULTIPLIERS[1] * words[2]
        high = [first >> np.uint64(32), second >> np.uint64(32)]
        words = [high[1] ^ words[1] ^ keys[0], second & low, high[0] ^ words[3] ^ keys[1], first & low]
    return np.stack(words, axis=-1).astype(np.uint32)


def random_numbers(count: int, sequence: int, token: int, seed: int, rounds: int = 10) -> Array:
    """16 random bits, as uint16, for each of `count` elements of the state after a token of a sequence."""
    draw = np.arange(-(-count // _NUMBERS_PER_DRAW), dtype=np.uint64)
    place = (np.full_like(draw, sequence), np.full_like(draw, token))
    counter = np.stack([draw & np.uint64(_WORD), draw >> np.uint64(32), *place], axis=-1)
    words = philox4x32(counter, (seed & _WORD, seed >> 32 & _WORD), rounds)
    halves = np.stack([words & np.uint32(0xFFFF), words >> np.uint32(16)], axis=-1)
    return halves.astype(np.uint16).reshape(-1)[:count]


def round_stochastically(values: Array, random: Array, dtype: np.dtype[Any]) -> Array:
    """float32 values as bfloat16 or float16: up or down, the more likely the nearer, by 16 random bits each."""
    with np.errstate(over="ignore", invalid="ignore"):
        nearest = values.astype(dtype)
        bits, bits_up = values.view(np.uint32), random.astype(np.uint32)
        if dtype == np.float16:
            rounded = _to_float16(values, bits, bits_up)
        else:
            rounded = ((bits + bits_up) >> np.uint32(16)).astype(np.uint16).view(dtype)
    return np.where(np.isfinite(values), rounded, nearest)


def _to_float16(values: Array, bits: Array, bits_up: Array) -> Array:
    # Normal numbers lose 13 bits of their mantissa; below them float16 has a fixed step of 2**-24.
    normal = ((bits + (bits_up >> np.uint32(3))) & np.uint32(0xFFFFE000)).view(np.float32)
    raised = np.abs(values).astype(np.float64) + bits_up * 2.0**-40
    small = np.copysign(np.floor(raised * 2.0**24) * 2.0**-24, values).astype(np.float32)
    rounded: Array = np.where(np.abs(values) >= np.float32(2.0**-14), normal, small).astype(np.float16)
    return rounded


LARGEST = {np.dtype(np.int16): 32767.0, np.dtype(np.int8): 127.0, np.dtype(ml_dtypes.float8_e4m3fn): 448.0}
"""The largest code of each dtype of codes."""

LEAST, MOST = np.float32(2.0**-111), np.float32(2.0**126)
"""The least and the largest magnitude of a row with codes: a smaller row is stored as zeros, a larger one gets the
scale NaN."""


def factors_of(magnitudes: Array, dtype: np.dtype[Any]) -> Array:
    """The factors that turn rows of these largest magnitudes into codes, float32; NaN for rows without codes."""
    with np.errstate(all="ignore"):
        factors: Array = np.float32(LARGEST[dtype]) / magnitudes.astype(np.float32)
    return np.where(magnitudes < LEAST, np.float32(1.0), np.where(magnitudes <= MOST, factors, np.float32(np.nan)))


def scales_of(factors: Array) -> Array:
    """The scales for these factors."""
    return np.float32(1.0) / factors


def codes_of(values: Array, factors: Array, dtype: np.dtype[Any], random: Array | None) -> Array:
    """Rows of float32 values times their factors as codes: the nearest ones, or by 16 random bits each.

    Integer codes are nearest to the exact products; all other roundings start from products in float32.
    """
    most = np.float32(LARGEST[dtype])
    with np.errstate(all="ignore"):
        scaled = np.clip(values * factors[..., None], -most, most)
        if dtype == np.dtype(ml_dtypes.float8_e4m3fn):
            return scaled.astype(dtype) if random is None else _to_float8(scaled, random)
        if random is None:
            whole = np.rint(values.astype(np.float64) * factors.astype(np.float64)[..., None])
        else:
            # The bits are drawn for the nearest multiple of 2**-16.
            whole = np.floor((np.rint(scaled.astype(np.float64) * 65536) + random) / 65536)
        return np.nan_to_num(whole).astype(dtype)


def quantised(values: Array, dtype: np.dtype[Any], random: Array | None) -> tuple[Array, Array]:
    """Rows of float32 values as codes, and the scale of each row."""
    factors = factors_of(np.abs(values).max(axis=-1, initial=0.0), dtype)
    return codes_of(values, factors, dtype, random), scales_of(factors)


def _to_float8(values: Array, random: Array) -> Array:
    # Normal numbers lose 20 bits of their mantissa, the first 16 of them drawn; below them the step is 2**-9.
    bits = values.view(np.uint32) + (random.astype(np.uint32) << np.uint32(4))
    normal = (bits & np.uint32(0xFFF00000)).view(np.float32)
    raised = np.abs(values).astype(np.float64) + random * 2.0**-25
    small = np.copysign(np.floor(raised * 2.0**9) * 2.0**-9, values).astype(np.float32)
    rounded: Array = np.where(np.abs(values) >= np.float32(2.0**-6), normal, small)
    return rounded.astype(ml_dtypes.float8_e4m3fn)


class Stored(NamedTuple):
    """States as they are stored."""

    states: Array
    """In the dtype of the pool; the last axis is a row."""
    scales: Array | None
    """The scale of each row of codes."""

    @property
    def values(self) -> Array:
        """The states in float64."""
        values = self.states.astype(np.float64)
        return values if self.scales is None else values * self.scales.astype(np.float64)[..., None]


def stored(states: Array, dtype: np.dtype[Any], random: Array | None) -> Stored:
    """States as they are stored in a pool of a dtype, rounded by 16 random bits each or to nearest.

    States of a float64 pool, which torch tensors may be, are not rounded.
    """
    if dtype == np.float64:
        return Stored(states, None)
    with np.errstate(over="ignore"):
        values = states.astype(np.float32)
        if dtype in LARGEST:
            return Stored(*quantised(values, dtype, random))
        return Stored(values.astype(dtype) if random is None else round_stochastically(values, random, dtype), None)


def bounds(states: Array, error: Array, dtype: np.dtype[Any], random: Array | None) -> tuple[Stored, Stored]:
    """The least and the greatest states that may be stored where the exact ones are off by `error`.

    Codes are monotone in the state, and in the factor of the row, which falls with the largest magnitude.
    """
    if dtype not in LARGEST:
        return stored(states - error, dtype, random), stored(states + error, dtype, random)
    size = np.abs(states)
    magnitudes = (np.maximum(size - error, 0.0), size + error)
    factors = [factors_of(each.max(axis=-1, initial=0.0).astype(np.float32), dtype) for each in magnitudes]
    ends = [(states + sign * error).astype(np.float32) for sign in (-1.0, 1.0)]
    codes = [codes_of(end, factor, dtype, random).astype(np.float64) for end in ends for factor in factors]
    scales = [scales_of(factor) for factor in factors]
    low, high = (Stored(extreme(codes, axis=0).astype(dtype), extreme(scales, axis=0)) for extreme in (np.min, np.max))
    return low, high


def stored_errors(states: Array, error: Array, dtype: np.dtype[Any], random: Array | None) -> Stored:
    """The errors of stored states where the exact ones are off by `error`; for floats, the error before rounding."""
    if dtype not in LARGEST:
        return Stored(error, None)
    each = (stored(states, dtype, random), *bounds(states, error, dtype, random))
    wide = [[np.asarray(array).astype(np.float64) for array in found] for found in each]
    return Stored(*(np.maximum(high - value, value - low) for value, low, high in zip(*wide, strict=True)))
