"""Sequences of steps with rings: whatever alternates, the results are those of the recurrence, token by token."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
import pytest

import cuconv
from cuconv.bench import device
from cuconv.runtime.abstract import AbstractArray, launches_of
from cuconv.runtime.dtypes import BFLOAT16 as _BFLOAT16
from cuconv.runtime.dtypes import CODES
from cuconv.selective_state_update import plan_replay, workloads
from cuconv.selective_state_update.reference_replay import APPENDED, LIVE, START
from tests.support.libraries import LIBRARIES, Library, numpy, on_gpu

HEADS, GROUPS, DIM, N = 4, 2, 5, 16
SLOTS, WINDOW, TOKENS = 6, 5, 3
ROWS = WINDOW + TOKENS
BFLOAT16 = _BFLOAT16.numpy
Array = np.ndarray[Any, Any]


@dataclass
class Model:
    """A layer that decodes: its states with rings, and by slot the states of the recurrence in float64."""

    library: Library
    random: np.random.Generator
    dtype: Any = np.float32
    truth: Array = field(init=False)

    def __post_init__(self) -> None:
        state = self.random.normal(size=(SLOTS, HEADS, DIM, N)).astype(self.dtype)
        self.truth = state.astype(np.float64)
        self.A = -np.exp(self.random.normal(size=HEADS)).astype(np.float32)
        self.D, self.bias = (self.random.normal(size=HEADS).astype(np.float32) for _ in range(2))
        self.state = self.library.upload(state)
        # Whatever was in the memory before must never be read.
        shapes = (SLOTS, HEADS, ROWS, DIM), (SLOTS, GROUPS, ROWS, N), (SLOTS, HEADS, ROWS)
        self.rings = [self.library.upload(np.full(shape, np.nan, np.float32)) for shape in shapes]
        self.cursors = self.library.upload(np.array([[slot % ROWS, 0, 0, 0] for slot in range(SLOTS)], np.int32))
        self.worst = 0.0

    def options(self, slots: list[int], **more: Any) -> dict[str, Any]:
        arrays = {"state_batch_indices": np.array(slots, np.int32), **more}
        return {
            name: self.library.upload(value) if isinstance(value, np.ndarray) else value
            for name, value in arrays.items()
        }

    def tokens(self, *lead: int) -> dict[str, Array]:
        """x, dt, B and C of some tokens."""
        rows, grouped = (*lead, HEADS, DIM), (*lead, GROUPS, N)
        shapes = {"x": rows, "dt": rows[:-1], "B": grouped, "C": grouped}
        return {name: self.random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}

    def recurrence(self, slot: int, token: dict[str, Array]) -> Array:
        """Advances the true state of a slot; returns y."""
        x, dt, B, C = (token[name].astype(np.float64) for name in ("x", "dt", "B", "C"))
        step = np.logaddexp(0.0, dt + self.bias)
        B, C = (np.repeat(each, HEADS // GROUPS, axis=0)[:, None] for each in (B, C))
        added = (step[:, None] * x)[..., None] * B
        self.truth[slot] = self.truth[slot] * np.exp(step * self.A)[:, None, None] + added
        y: Array = (self.truth[slot] * C).sum(axis=-1) + self.D[:, None] * x
        return y

    def compare(self, got: Array, wanted: Array) -> None:
        self.worst = max(self.worst, float(np.abs(got - wanted).max() / max(1.0, np.abs(wanted).max())))

    def run(self, given: dict[str, Array], slots: list[int], **more: Any) -> Array:
        """The result of a step that nothing commits. So few states would never be in rings."""
        more.setdefault("fold", False)
        out = cuconv.selective_state_update_replay(
            self.state, *self.rings, self.cursors, **{name: self.library.upload(each) for name, each in given.items()},
            A=self.library.upload(self.A), D=self.library.upload(self.D), dt_bias=self.library.upload(self.bias),
            dt_softplus=True, window=WINDOW, **self.options(slots, **more),
        )  # fmt: skip
        return self.library.download(out)

    def step(self, slots: list[int], tokens: int | None = None, accepted: list[int] | None = None, **more: Any) -> None:
        """One step and its commit; of several tokens the first `accepted` ones remain."""
        given = self.tokens(len(slots)) if tokens is None else self.tokens(len(slots), tokens)
        found = self.run(given, slots, **more)
        for i, slot in enumerate(slots):
            if slot < 0:
                assert (found[i] == 0).all()
                continue
            kept = self.truth[slot].copy()
            for number in range(tokens or 1):
                at = (i,) if tokens is None else (i, number)
                # A token that is rejected later follows the others all the same.
                self.compare(found[at], self.recurrence(slot, {name: each[at] for name, each in given.items()}))
                if accepted is None or number < accepted[i]:
                    kept = self.truth[slot].copy()
            self.truth[slot] = kept
        self.commit(slots, accepted)

    def commit(self, slots: list[int], accepted: list[int] | None = None, reset: bool = False) -> None:
        more = {} if accepted is None else {"accepted": np.array(accepted, np.int32)}
        cuconv.selective_state_update_commit(
            self.cursors, ring_rows=ROWS, window=WINDOW, reset=reset, **self.options(slots, **more)
        )

    def materialise(self, slots: list[int], targets: list[int] | None = None, **more: Any) -> None:
        if targets is not None:
            more["dst_state_batch_indices"] = np.array(targets, np.int32)
        cuconv.selective_state_update_materialise(
            self.state, *self.rings, self.cursors, self.library.upload(self.A), window=WINDOW,
            **self.options(slots, **more),
        )  # fmt: skip

    def prefill(self, slots: list[int]) -> None:
        """New sequences in slots, with states that another function wrote."""
        states = self.library.download(self.state).copy()
        states[slots] = self.random.normal(size=(len(slots), *states.shape[1:]))
        self.truth[slots] = states[slots]
        self.state = self.library.upload(states)
        self.commit(slots, reset=True)

    def plain(self, slots: list[int]) -> None:
        """A step without rings, which reads states that have to be up to date."""
        self.materialise(slots)
        self.commit(slots, reset=True)
        given = self.tokens(len(slots))
        rows = {"A": (HEADS, DIM, N), "D": (HEADS, DIM), "dt_bias": (HEADS, DIM)}
        heads = {"A": self.A, "D": self.D, "dt_bias": self.bias}
        wide = {name: np.broadcast_to(heads[name].reshape(HEADS, *[1] * (len(shape) - 1)), shape).copy()
                for name, shape in rows.items()}  # fmt: skip
        named = {**given, **wide, "dt": np.repeat(given["dt"][..., None], DIM, axis=-1)}
        out = cuconv.selective_state_update(
            self.state, **{name: self.library.upload(each) for name, each in named.items()}, dt_softplus=True,
            **self.options(slots),
        )  # fmt: skip
        for i, (slot, found) in enumerate(zip(slots, self.library.download(out), strict=True)):
            self.compare(found, self.recurrence(slot, {name: each[i] for name, each in given.items()}))

    def check(self) -> None:
        """The states after all live tokens, and all results so far, are right to rounding."""
        cursors = self.library.download(self.cursors)
        assert (cursors[:, APPENDED:] == 0).all()
        assert ((cursors[:, START] >= 0) & (cursors[:, START] < ROWS)).all()
        assert ((cursors[:, LIVE] >= 0) & (cursors[:, LIVE] <= WINDOW)).all()
        everything = list(range(SLOTS))
        self.materialise(everything)
        self.compare(self.library.download(self.state), self.truth)
        assert self.worst < 2e-6, self.worst


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("seed", range(4))
def test_whatever_alternates_gives_the_recurrence(library: Any, seed: int) -> None:
    """Prefills, plain steps, steps of one and of several tokens with rollback, of tokens that go to the state at once,
    forced flushes, and copies of sequences, in random order and for random slots."""
    model = Model(library(), np.random.default_rng(seed))
    random = model.random
    for _ in range(40 if library is numpy else 15):
        slots = random.permutation(SLOTS)[: random.integers(1, SLOTS + 1)].tolist()
        match random.integers(0, 7):
            case 0:
                model.prefill(slots)
            case 1:
                model.plain(slots)
            case 2:
                model.step([-1, *slots], fold=True)
            case 3:
                count = int(random.integers(1, TOKENS + 1))
                model.step(slots, count, random.integers(0, count + 1, len(slots)).tolist())
            case 4:
                model.step(slots, force_flush=random.uniform(size=len(slots)) < 0.5)
            case 5 if len(slots) > 1:
                source, target = slots[:2]
                model.materialise([source], [target])
                model.commit([target], reset=True)
                model.truth[target] = model.truth[source]
            case _:
                model.step([*slots, -1])
    model.check()


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_rejected_token_changes_nothing(library: Any) -> None:
    """Bit for bit, in all later results and states."""
    found = []
    for rejected in (0.0, np.nan):
        model = Model(library(), np.random.default_rng(7))
        for number in range(6):
            given = model.tokens(2, TOKENS)
            for name in "x", "B":
                given[name][:, 1:] += rejected
            out = model.run(given, [number % 3, 5])
            model.commit([number % 3, 5], [1, 1])
            found.append(out[:, 0].copy())
        model.materialise(list(range(SLOTS)))
        found.append(model.library.download(model.state).copy())
    half = len(found) // 2
    for one, other in zip(found[:half], found[half:], strict=True):
        np.testing.assert_array_equal(one, other)


def products_of_codes(library: Any, codes: Any, C: Any) -> Any:
    """C times codes of a sequence, (1, 2, 64, 64), by a step that replays no tokens and adds none; C: (tokens, 64)."""
    of, lead = library(), (1,) if len(C) == 1 else (1, len(C))
    upload = device.upload if library is on_gpu else of.upload
    C = C.astype(BFLOAT16).reshape(*lead, 1, 64)
    x, dt = np.zeros((*lead, 2, 64), BFLOAT16), np.zeros((*lead, 2), np.float32)
    rings = np.zeros((1, 2, 19, 64), BFLOAT16), np.zeros((1, 1, 19, 64), BFLOAT16), np.zeros((1, 2, 19), np.float32)
    out = upload(x)
    # So few heads would be divided further.
    with mock.patch.object(plan_replay, "FEW_LEAST", 0):
        cuconv.selective_state_update_replay(
            upload(codes), *map(upload, rings), upload(np.zeros((1, 4), np.int32)), x=upload(x.copy()), dt=upload(dt),
            A=upload(np.full(2, -1.0, np.float32)), B=upload(np.zeros_like(C)), C=upload(C),
            state_scale=upload(np.ones((1, 2, 64), np.float32)), window=16, fold=False, out=out,
        )  # fmt: skip
    return (device.fetch(out) if library is on_gpu else of.download(out)).astype(np.float64).reshape(-1, 2, 64)


BYTES = [dtype.numpy for dtype in CODES if dtype.itemsize == 1]
"""Codes of 8 bits."""


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("dtype", BYTES, ids=str)
@pytest.mark.parametrize("tokens", [1, 2])
def test_small_elements_of_c_count_beside_a_large_one(library: Any, dtype: Any, tokens: int) -> None:
    """Codes are multiplied by C in a unit of its largest element, here of one that meets codes of zero."""
    random = np.random.default_rng(11)
    codes = random.integers(-127, 128, (1, 2, 64, 64), np.int8).astype(dtype)
    codes[..., 5] = 0
    C = (0.002 * random.normal(size=(tokens, 64))).astype(BFLOAT16).astype(np.float64)
    numbers = codes[0].astype(np.float64), C
    wanted, terms = (np.einsum("hpn,tn->thp", *each) for each in (numbers, map(np.abs, numbers)))
    C[:, 5] = 8.0
    found = products_of_codes(library, codes, C)
    assert (np.abs(found - wanted) <= 2.0**-9 * np.abs(wanted) + 1e-3 * terms).all()


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("dtype", BYTES, ids=str)
def test_c_that_is_not_finite_concerns_its_token_alone(library: Any, dtype: Any) -> None:
    random = np.random.default_rng(12)
    codes = random.integers(1, 128, (1, 2, 64, 64), np.int8).astype(dtype)
    C = random.integers(-3, 4, (3, 64)).astype(np.float64)
    wanted = np.einsum("hpn,tn->thp", codes[0].astype(np.float64), C)
    C[1, 7], C[2, 9] = np.inf, np.nan
    found = products_of_codes(library, codes, C)
    np.testing.assert_allclose(found[0], wanted[0], rtol=2.0**-8)
    assert not np.isfinite(found[1:]).any()


@pytest.mark.parametrize("library", LIBRARIES)
def test_what_is_committed_is_committed_once(library: Any) -> None:
    """A second commit, one without a step and one of other slots move no cursor."""
    model = Model(library(), np.random.default_rng(8))
    model.step([1, 2, 3], 2, [2, 0, 1])
    before = model.library.download(model.cursors).copy()
    assert before[:, LIVE].tolist() == [0, 2, 0, 1, 0, 0]
    model.commit([1, 2, 3, 4])
    np.testing.assert_array_equal(model.library.download(model.cursors), before)
    model.run(model.tokens(1), [2])
    model.commit([0, 1])
    assert model.library.download(model.cursors)[2].tolist() == [before[2, START], 0, 1, 0]


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_state_stays_until_the_ring_is_full(library: Any) -> None:
    model = Model(library(), np.random.default_rng(9))
    model.prefill([0])
    first = model.library.download(model.state).copy()
    for _ in range(WINDOW):
        model.step([0])
    np.testing.assert_array_equal(model.library.download(model.state), first)
    model.step([0])
    changed = (model.library.download(model.state) != first).any(axis=(1, 2, 3))
    assert changed.tolist() == [True, *[False] * (SLOTS - 1)]
    assert model.library.download(model.cursors)[0, LIVE] == 1
    model.check()


@pytest.mark.gpu
def test_a_graph_moves_the_cursors() -> None:
    """Replays of one graph of a step and its commit, over several windows."""
    import cupy

    model = Model(on_gpu(), np.random.default_rng(10))
    given = {name: cupy.asarray(each) for name, each in model.tokens(SLOTS, 2).items()}
    accepted, out = cupy.zeros(SLOTS, np.int32), cupy.empty_like(given["x"])
    heads = {"A": cupy.asarray(model.A), "D": cupy.asarray(model.D), "dt_bias": cupy.asarray(model.bias)}

    def step() -> None:
        rings = (model.state, *model.rings, model.cursors)
        cuconv.selective_state_update_replay(*rings, **given, **heads, dt_softplus=True, window=WINDOW, out=out)
        cuconv.selective_state_update_commit(model.cursors, accepted, ring_rows=ROWS, window=WINDOW)

    # Compiling cannot be captured. No slot is any the further for it.
    step()
    model.commit(list(range(SLOTS)), reset=True)
    model.state[...] = cupy.asarray(model.truth)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        step()
        graph = stream.end_capture()
    for _ in range(30):
        tokens, kept = model.tokens(SLOTS, 2), model.random.integers(0, 3, SLOTS)
        for name, each in tokens.items():
            given[name].set(each)
        accepted.set(kept.astype(np.int32))
        cupy.cuda.Device().synchronize()
        graph.launch(stream)
        stream.synchronize()
        for slot, found in enumerate(out.get()):
            states = [model.truth[slot].copy()]
            for number in range(2):
                token = {name: each[slot, number] for name, each in tokens.items()}
                model.compare(found[number], model.recurrence(slot, token))
                states.append(model.truth[slot].copy())
            model.truth[slot] = states[kept[slot]]
    model.check()


def test_rings_know_their_bytes_and_share_cursors() -> None:
    state, x, B = np.ones((SLOTS, HEADS, DIM, N), np.float32), np.ones((2, HEADS, DIM)), np.ones((2, GROUPS, N))
    x, B = x.astype(np.float16), B.astype(np.float32)
    rings = cuconv.ReplayRings(state, x, B, window=WINDOW, tokens=TOKENS)
    assert rings.nbytes == rings.x.nbytes + rings.B.nbytes + rings.dt.nbytes
    assert (rings.x.shape, rings.B.shape) == ((SLOTS, HEADS, ROWS, DIM), (SLOTS, GROUPS, ROWS, N))
    assert (rings.x.dtype, rings.B.dtype, rings.dt.dtype) == (np.float16, np.float32, np.float32)
    other = cuconv.ReplayRings(state, x, B, window=WINDOW, tokens=TOKENS, cursors=rings)
    A = np.full(HEADS, -1.0, np.float32)
    token = {"x": x, "dt": np.ones((2, HEADS), np.float32), "A": A, "B": B, "C": B}
    for each in (rings, other):
        each.update(state.copy(), **token, state_batch_indices=np.array([1, 2]), fold=False)
    rings.commit(state_batch_indices=np.array([1, 2]))
    assert rings.cursors[:, LIVE].tolist() == other.cursors[:, LIVE].tolist() == [0, 1, 1, 0, 0, 0]
    before = state.copy()
    rings.materialise(state, A, np.array([1]))
    assert (state != before).any(axis=(1, 2, 3)).tolist() == [False, True, *[False] * 4]
    rings.reset(np.array([2]))
    assert rings.cursors[:, LIVE].tolist() == [0, 1, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"window": 0}, "window: got 0; wanted 1 to 32"),
        ({"window": 33}, "window: got 33; wanted 1 to 32"),
        ({"tokens": 6}, "tokens: got 6; wanted 1 to 5"),
        ({"state": np.ones((3, 4), np.float32)}, "state: got shape"),
        ({"B": np.ones((2, 3, 15), np.float32)}, "B: got shape"),
        ({"x": np.ones((2, 3, 15), np.int32)}, "x: got dtype"),
    ],
)
def test_rings_that_cannot_be(change: dict[str, Any], wanted: str) -> None:
    state, B = np.ones((SLOTS, HEADS, DIM, N), np.float32), np.ones((2, GROUPS, N), np.float32)
    given = {"state": state, "x": B, "B": B, "window": WINDOW, **change}
    with pytest.raises((TypeError, ValueError), match=wanted):
        cuconv.ReplayRings(**given)


@pytest.mark.parametrize(("name", "sizes"), [("B_ring", {"ngroups": 1}), ("x_ring", {"nheads": 1, "ngroups": 1})])
def test_an_axis_of_one_entry_of_a_ring_has_any_stride(name: str, sizes: dict[str, int]) -> None:
    step = workloads.selective_state_update_replay(3, **{"nheads": 4, **sizes}, headdim=16, d_state=64)
    arrays = {argument: array.abstract for argument, array in step.arrays.items()}
    ring = step.arrays[name]
    slots, _, *inner = ring.strides
    apart = AbstractArray(ring.shape, (slots, 2**33 + 5, *inner), ring.dtype)
    plain, strange = (
        launches_of(cuconv.selective_state_update_replay, **step.call(given))
        for given in (arrays, {**arrays, name: apart})
    )
    assert strange == plain
