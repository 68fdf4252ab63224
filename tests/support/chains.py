"""Random chains of calls on a few arrays, so that some read what the one before has written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import cuconv

Array = np.ndarray[Any, Any]
Step = tuple[str, dict[str, Any]]

BUFFERS = "pqrstu"
WIDTH = 4


def arrays(batch: int, dim: int, seed: int) -> dict[str, Array]:
    """The arrays of a chain: buffers of inputs and results, pools of states, filters, and slots."""
    random = np.random.default_rng(seed)

    def normal(*shape: int) -> Array:
        return (random.standard_normal(shape) * 0.5).astype(np.float32)

    return {
        **{name: normal(batch, dim) for name in BUFFERS},
        **{f"windows{i}": normal(batch, dim, WIDTH - 1) for i in range(2)},
        **{f"states{i}": normal(batch, dim, dim) for i in range(2)},
        "codes": random.integers(-127, 127, (batch, dim, dim)).astype(np.int8),
        "scales": np.full((batch, dim), 0.01, np.float32),
        "weight": normal(dim, WIDTH),
        "A": -np.abs(normal(dim, dim)),
        "slots": random.permutation(batch).astype(np.int32),
    }


def chain(length: int, seed: int) -> list[Step]:
    """Functions and the names of their arrays; a capital letter is the second row of a buffer."""
    random = np.random.default_rng(seed)
    steps: list[Step] = []
    for _ in range(length):
        out, x, dt, B, C, z = random.permutation(list(BUFFERS))
        row = random.choice([x, dt, B]).upper()
        number, slots = random.integers(2), random.choice(["slots", None])
        kind = random.choice(["update", "split", "state", "codes", "sequence"], p=[0.35, 0.15, 0.3, 0.1, 0.1])
        convolution = {"x": x, "weight": "weight", "bias": row, "activation": "silu!"}
        state = {"x": x, "dt": dt, "A": "A", "B": B, "C": C, "D": row, "z": z, "dt_softplus": "True!", "out": out}
        window = {"conv_state": f"windows{number}", "conv_state_indices": slots}
        if kind == "update":
            steps.append(("causal_conv1d_update", {**convolution, **window, "out": out}))
        elif kind == "split":
            steps.append(("causal_conv1d_update_split", {**convolution, **window, "out": (f"{out}<", f"{out}>")}))
        elif kind == "state":
            pool = {"state": f"states{number}", "state_batch_indices": slots}
            steps.append(("selective_state_update", {**state, **pool}))
        elif kind == "codes":
            steps.append(("selective_state_update", {**state, "state": "codes", "state_scale": "scales"}))
        else:
            # A function that waits for what precedes it.
            steps.append(("causal_conv1d_fn", {"x": f"{x}=", "weight": "weight=", "out": f"{out}="}))
    return steps


def run(steps: list[Step], held: Mapping[str, Any], wrap: Callable[[Any], Any] = lambda array: array) -> None:
    """Make the calls of a chain on arrays of a library."""
    batch, dim = held["p"].shape
    parts = {"<": np.s_[:, : dim // 2], ">": np.s_[:, dim // 2 :], "=": np.s_[None]}

    def find(name: Any) -> Any:
        if isinstance(name, tuple):
            return tuple(map(find, name))
        if name is None:
            return None
        if name == "weight=":
            return wrap(held["weight"][:batch])
        if name[-1] in parts:
            return wrap(held[name[0]][parts[name[-1]]])
        if name.endswith("!"):
            return {"silu!": "silu", "True!": True}[name]
        return wrap(held[name.lower()][1] if name in BUFFERS.upper() else held[name])

    for function, given in steps:
        arguments = {name: find(value) for name, value in given.items()}
        if function == "causal_conv1d_update_split":
            arguments["sizes"] = (dim // 2, dim - dim // 2)
        getattr(cuconv, function)(**arguments)
