"""Layers with common cursors: whatever their sizes and layouts, they put tokens in their states alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cuconv
from cuconv.runtime.dtypes import BFLOAT16
from cuconv.selective_state_update.reference_replay import LIVE
from tests import emulator
from tests.emulator.family import EmulatedArray

Array = np.ndarray[Any, Any]

DIM, N, WINDOW = 64, 128, 4


class Layer:
    """A layer of one group of B and C, and what its states are by the recurrence."""

    def __init__(self, heads: int, batch: int, dtype: Any, cursors: Any = None, misaligned: bool = False) -> None:
        self._draw, self._shape, self._dtype = np.random.default_rng(heads), (batch, 1, heads, DIM), dtype
        self._misaligned = misaligned
        self.state = self._draw.standard_normal((batch, heads, DIM, N), np.float32)
        self.wanted = self.state.copy()
        self.A = -np.ones(heads, np.float32)
        token = self.token()
        self.rings = cuconv.ReplayRings(self.state, token["x"], token["B"], window=WINDOW, cursors=cursors)

    def token(self) -> dict[str, Array]:
        batch, _, heads, _ = self._shape
        x = self._draw.standard_normal(self._shape, np.float32).astype(self._dtype)
        dt = self._draw.random((batch, 1, heads), np.float32)
        B, C = (self._matrix(batch) for _ in range(2))
        return {"x": x, "dt": dt, "A": self.A, "B": B, "C": C}

    def _matrix(self, batch: int) -> Array:
        values = self._draw.standard_normal((batch, 1, 1, N), np.float32).astype(self._dtype)
        if not self._misaligned:
            return values
        return np.concatenate([values[:1].ravel()[:1], values.ravel()])[1:].reshape(values.shape)

    def step(self) -> None:
        """One token with rings, and without."""
        token = self.token()
        got = self.rings.update(self.state, **token)
        heads = self._shape[2]
        whole = token | {
            "A": np.broadcast_to(self.A[:, None, None], (heads, DIM, N)),
            "dt": np.broadcast_to(token["dt"][..., None], self._shape),
        }
        wanted = cuconv.selective_state_update(self.wanted, **whole)
        tolerance = 1e-5 if self._dtype is np.float32 else 2**-7
        np.testing.assert_allclose(got.astype(np.float32), wanted.astype(np.float32), rtol=tolerance, atol=1e-3)


@pytest.mark.parametrize("first_is_small", [False, True])
def test_layers_of_different_sizes_agree(first_is_small: bool) -> None:
    """By itself the layer of 20 MiB would leave tokens in its rings, and the other one would not."""
    sizes = (8, 320) if first_is_small else (320, 8)
    first = Layer(sizes[0], 2, BFLOAT16.numpy)
    layers = [first, Layer(sizes[1], 2, BFLOAT16.numpy, first.rings)]
    for number in range(2):
        for layer in layers:
            layer.step()
        first.rings.commit()
        live = 0 if first_is_small else number + 1
        assert first.rings.cursors[:, LIVE].tolist() == [live, live]


def test_layers_of_different_layouts_agree() -> None:
    """With 20 MiB of float32 and bfloat16 inputs the choice would follow from where B lies in memory."""
    first = Layer(640, 1, BFLOAT16.numpy)
    layers = [first, Layer(640, 1, BFLOAT16.numpy, first.rings, misaligned=True)]
    for number in range(2):
        for layer in layers:
            layer.step()
        first.rings.commit()
        assert first.rings.cursors[:, LIVE].tolist() == [number + 1]


def test_the_caller_decides_for_layers_with_common_cursors() -> None:
    first = Layer(8, 2, np.float32)
    second = Layer(4, 2, np.float32, first.rings)
    for layer in (first, second):
        layer.rings.update(layer.state, **layer.token(), fold=False)
    first.rings.commit()
    assert first.rings.cursors[:, LIVE].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"window": 5}, "window: got 5; wanted 4, as in the rings of the layer that has the cursors"),
        ({"tokens": 2}, "tokens: got 2; wanted 1, as in"),
        ({"state": np.ones((3, 8, DIM, N), np.float32)}, "slots of state: got 3; wanted 2, as in"),
        ({"cursors": np.zeros((2, 4), np.int32)}, "cursors: got a ndarray; wanted the ReplayRings of another layer"),
    ],
)
def test_cursors_that_do_not_fit(change: dict[str, Any], wanted: str) -> None:
    first = Layer(8, 2, np.float32)
    token = first.token()
    given = {"state": first.state, "x": token["x"], "B": token["B"], "window": WINDOW, "cursors": first.rings}
    with pytest.raises((TypeError, ValueError), match=f"^{wanted}"):
        cuconv.ReplayRings(**{**given, **change})


@pytest.mark.parametrize("is_emulated", [False, True])
def test_a_pool_without_slots_gives_zeros(is_emulated: bool) -> None:
    if is_emulated and (reason := emulator.available()) is not None:
        pytest.skip(reason)
    upload = EmulatedArray if is_emulated else np.asarray
    state, slots = upload(np.zeros((0, 2, 4, 8), np.float32)), upload(np.array([-1, 0, 2]))
    x, dt, A, B = (np.ones(shape, np.float32) for shape in ((3, 2, 4), (3, 2), (2,), (3, 1, 8)))
    token = {"x": upload(x), "dt": upload(dt), "A": upload(-A), "B": upload(B), "C": upload(B)}
    rings = cuconv.ReplayRings(state, token["x"], token["B"])
    for fold in (None, False, True):
        out = upload(np.full_like(x, np.nan))
        rings.update(state, **token, state_batch_indices=slots, fold=fold, out=out)
        assert not (out.array if is_emulated else out).any()
        rings.commit(state_batch_indices=slots)
    rings.reset()
