"""Layers with common cursors: whatever their sizes and layouts, they put tokens in their states alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cuconv
from cuconv.runtime.dtypes import BFLOAT16, BY_NAME
from cuconv.selective_state_update.reference_replay import LIVE
from tests.support.compare import assert_same_bits
from tests.support.libraries import LIBRARIES, Library

Array = np.ndarray[Any, Any]

DIM, N, WINDOW = 64, 128, 4


class Layer:
    """A layer of one group of B and C, and what its states are by the recurrence."""

    def __init__(
        self,
        heads: int,
        batch: int,
        dtype: Any,
        cursors: Any = None,
        misaligned: bool = False,
        fold: bool | None = None,
    ) -> None:
        self._draw, self._shape, self._dtype = np.random.default_rng(heads), (batch, 1, heads, DIM), dtype
        self._misaligned = misaligned
        self.state = self._draw.standard_normal((batch, heads, DIM, N), np.float32)
        self.wanted = self.state.copy()
        self.A = -np.ones(heads, np.float32)
        token = self.token()
        self.rings = cuconv.ReplayRings(self.state, token["x"], token["B"], window=WINDOW, cursors=cursors, fold=fold)

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
    first = Layer(8, 2, np.float32, fold=False)
    second = Layer(4, 2, np.float32, first.rings)
    for layer in (first, second):
        layer.rings.update(layer.state, **layer.token())
    first.rings.commit()
    assert first.rings.cursors[:, LIVE].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"window": 5}, "window: got 5; wanted 4, as in the rings of the layer that has the cursors"),
        ({"tokens": 2}, "tokens: got 2; wanted 1, as in"),
        ({"state": np.ones((3, 8, DIM, N), np.float32)}, "slots of state: got 3; wanted 2, as in"),
        ({"fold": False}, "fold: got False; wanted None, as in"),
        ({"cursors": np.zeros((2, 4), np.int32)}, "cursors: got a ndarray; wanted the ReplayRings of another layer"),
    ],
)
def test_cursors_that_do_not_fit(change: dict[str, Any], wanted: str) -> None:
    first = Layer(8, 2, np.float32)
    token = first.token()
    given = {"state": first.state, "x": token["x"], "B": token["B"], "window": WINDOW, "cursors": first.rings}
    with pytest.raises((TypeError, ValueError), match=f"^{wanted}"):
        cuconv.ReplayRings(**{**given, **change})


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_pool_without_slots_gives_zeros(library: Callable[[], Library]) -> None:
    upload, download = library().upload, library().download
    state, slots = upload(np.zeros((0, 2, 4, 8), np.float32)), upload(np.array([-1, 0, 2]))
    x, dt, A, B = (np.ones(shape, np.float32) for shape in ((3, 2, 4), (3, 2), (2,), (3, 1, 8)))
    token = {"x": upload(x), "dt": upload(dt), "A": upload(-A), "B": upload(B), "C": upload(B)}
    for fold in (None, False, True):
        rings = cuconv.ReplayRings(state, token["x"], token["B"], fold=fold)
        out = upload(np.full_like(x, np.nan))
        rings.update(state, **token, state_batch_indices=slots, out=out)
        assert not download(out).any()
        rings.commit(state_batch_indices=slots)
    rings.reset()


SLOTS = np.array([3, -1, 0, 5], np.int32)
"""The slots of a step's sequences; one fills the batch."""


@pytest.mark.parametrize("packed", [False, True], ids=["dense", "packed"])
@pytest.mark.parametrize("state_t", ["float32", "int8"])
@pytest.mark.parametrize("library", LIBRARIES)
def test_rings_that_stay_empty_make_plain_steps(library: Callable[[], Library], state_t: str, packed: bool) -> None:
    """A pool of few bytes, for which replay never takes less time."""
    upload, download = library().upload, library().download
    draw = np.random.default_rng(5)
    state, scales = draw.standard_normal((6, 4, 8, 16), np.float32), draw.random((6, 4, 8), np.float32)
    if state_t == "int8":
        state = (state * 30).astype(np.int8)
    x, B, C = (draw.standard_normal(shape, np.float32) for shape in ((4, 4, 8), (4, 2, 16), (4, 2, 16)))
    dt, A = draw.random((4, 4), np.float32), -draw.random(4, np.float32)
    named = {"state_batch_indices": upload(SLOTS), "dt_softplus": True}
    if packed:
        named["cu_seqlens"] = upload(np.arange(5))
    by_row = {
        "dt": upload(np.broadcast_to(dt[..., None], x.shape)),
        "A": upload(np.broadcast_to(A[:, None, None], (4, 8, 16))),
    }
    token = {"x": upload(x), "B": upload(B), "C": upload(C)}
    pools = [(upload(state.copy()), upload(scales.copy())) for _ in range(2)]
    rings = cuconv.ReplayRings(pools[0][0], token["x"], token["B"])
    assert rings.empty
    for _ in range(2):
        given = [named | ({"state_scale": each[1]} if state_t == "int8" else {}) for each in pools]
        got = rings.update(pools[0][0], **token, dt=upload(dt), A=upload(A), **given[0])
        wanted = cuconv.selective_state_update(pools[1][0], **token, **by_row, **given[1])
        rings.commit(state_batch_indices=named["state_batch_indices"])
        assert download(wanted).any()
        for one, other in zip((got, *pools[0]), (wanted, *pools[1]), strict=True):
            assert_same_bits(download(one), download(other), "a step of empty rings")
    assert not download(rings.cursors).any()


def test_rings_that_stay_empty_hold_no_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = Layer(8, 2, np.float32)
    with pytest.raises(ValueError, match=r"^fold: got False; wanted True or None for rings that stay empty"):
        layer.rings.update(layer.state, **layer.token(), fold=False)
    several = {name: np.repeat(each, 2, 1) if name != "A" else each for name, each in layer.token().items()}
    rings = cuconv.ReplayRings(layer.state, several["x"], several["B"], window=WINDOW, tokens=2)
    assert not rings.empty
    with pytest.raises(ValueError, match=r"^empty: got True; wanted False where sequences may have several tokens"):
        rings.update(layer.state, **several, empty=True)
    monkeypatch.setenv("CUCONV_CHECK", "1")
    layer.rings.cursors[1] = 0, 1, 0, 0
    with pytest.raises(ValueError, match=r"^cursors\[1, 1\]: got 1; wanted 0 to 0 \(live tokens\)"):
        layer.step()


@pytest.mark.parametrize(
    ("state_t", "x_t", "slots", "window", "fold", "empty"),
    [
        ("float32", "bfloat16", 256, 16, None, False),
        ("int8", "bfloat16", 256, 16, None, False),
        # 8 MiB of states are fewer bytes than replay takes less time for.
        ("int8", "bfloat16", 8, 16, None, True),
        # Replay takes more time with windows below 4, and beside float32 with states of other dtypes.
        ("float32", "bfloat16", 256, 3, None, True),
        ("int8", "float32", 256, 16, None, True),
        ("bfloat16", "float32", 256, 16, None, True),
        ("bfloat16", "float32", 256, 16, False, False),
        ("float32", "bfloat16", 256, 16, True, True),
    ],
)
def test_whether_rings_stay_empty(
    state_t: str, x_t: str, slots: int, window: int, fold: bool | None, empty: bool
) -> None:
    state = np.empty((slots, 128, 64, 128), BY_NAME[state_t].numpy)
    x, B = (np.empty(shape, BY_NAME[x_t].numpy) for shape in ((1, 128, 64), (1, 8, 128)))
    assert cuconv.ReplayRings(state, x, B, window=window, fold=fold).empty is empty
    assert not cuconv.ReplayRings(state, x, B, window=window, fold=fold, tokens=min(2, window)).empty
