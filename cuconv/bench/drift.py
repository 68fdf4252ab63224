"""Errors of results after many steps, by the dtype that states are stored in and how they are rounded to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import cuconv
from cuconv.bench.results import Drift
from cuconv.runtime.dtypes import BFLOAT16, CODES, FLOAT16, FLOAT32, DType

FORMATS = (
    (FLOAT32, False),
    *((dtype, is_random) for dtype in (BFLOAT16, FLOAT16, *CODES) for is_random in (False, True)),
)
"""The dtypes of states, each rounded to nearest and at random."""

DECAYS = (0.5, 0.9, 0.99, 0.999, 0.9999)
"""The factors of the state in one step, of one head each."""

INPUTS = ("random", "steady")
"""x, B and C of one sequence each: from -1 to 1, so that sums cancel, and from 0.5 to 1.5, so that they grow."""

STEPS, LAST = 10_000, 1000
"""Steps, and how many of them, the last ones, are compared."""

HEADDIM, D_STATE = 16, 128

Array = np.ndarray[Any, Any]


def drawn(steps: int) -> dict[str, Array]:
    """x, B and C of every step, (steps, sequences, heads, …) in float32, the same for all formats."""
    random = np.random.default_rng(19)
    shapes = {"x": (len(DECAYS), HEADDIM), "B": (1, D_STATE), "C": (1, D_STATE)}
    low = np.array([-1.0, 0.5])[:, None, None]
    high = np.array([1.0, 1.5])[:, None, None]
    return {
        name: random.uniform(low, high, (steps, len(INPUTS), *shape)).astype(np.float32)
        for name, shape in shapes.items()
    }


def step_lengths() -> Array:
    """dt of every head in float32: with A = -1 its decay is exp(-dt)."""
    lengths: Array = -np.log(np.array(DECAYS)).astype(np.float32)
    return lengths


def exact(tokens: dict[str, Array], last: int) -> Array:
    """The results of the last steps in float64."""
    dt = step_lengths().astype(np.float64)[:, None]
    state = np.zeros((len(INPUTS), len(DECAYS), HEADDIM, D_STATE))
    found = []
    steps = len(tokens["x"])
    for t in range(steps):
        x, B, C = (tokens[name][t].astype(np.float64) for name in ("x", "B", "C"))
        state *= np.exp(-dt)[..., None]
        state += (dt * x)[..., None] * B[:, :, None]
        if t >= steps - last:
            found.append((state * C[:, :, None]).sum(axis=-1))
    return np.array(found)


def stepped(library: Any, tokens: dict[str, Array], last: int, dtype: DType, is_random: bool) -> Array:
    """The results of the last steps of the public function, one call a step, on arrays of NumPy or CuPy."""
    given = {name: library.asarray(array) for name, array in tokens.items()}
    steps, shape = len(tokens["x"]), tokens["x"].shape[1:]
    states = (*shape, D_STATE)
    state = library.zeros(states, f"u{dtype.itemsize}").view(dtype.numpy)
    scale = library.ones(shape, np.float32) if dtype in CODES else None
    dt = library.broadcast_to(library.asarray(step_lengths())[:, None], shape)
    A = library.broadcast_to(library.asarray(np.full(1, -1.0, np.float32)), states[1:])
    out, found = library.empty(shape, np.float32), library.empty((last, *shape), np.float32)
    for t in range(steps):
        target = found[t - steps + last] if t >= steps - last else out
        x, B, C = (given[name][t] for name in ("x", "B", "C"))
        seed = t if is_random else None
        cuconv.selective_state_update(state, x, dt, A, B, C, rand_seed=seed, state_scale=scale, out=target)
    return np.asarray(found.get() if hasattr(found, "get") else found).astype(np.float64)


def rows(library: Any, formats: tuple[tuple[DType, bool], ...] = FORMATS, steps: int = STEPS) -> Iterator[Drift]:
    """The errors of every format, by inputs and decay."""
    last = min(LAST, steps)
    tokens = drawn(steps)
    wanted = exact(tokens, last)
    for dtype, is_random in formats:
        off = stepped(library, tokens, last, dtype, is_random) - wanted
        for sequence, inputs in enumerate(INPUTS):
            for head, decay in enumerate(DECAYS):
                y, error = wanted[:, sequence, head], off[:, sequence, head]
                size = float(np.sqrt((y**2).mean()))
                yield Drift(
                    state_dtype=str(dtype),
                    is_random=is_random,
                    inputs=inputs,
                    decay=decay,
                    steps=steps,
                    error=float(np.sqrt((error**2).mean())) / size,
                    bias=float((error * np.sign(y)).mean()) / size,
                )


def on_gpu(steps: int = STEPS) -> Iterator[Drift]:
    """The errors of every format on the current GPU."""
    import cupy

    return rows(cupy, steps=steps)
