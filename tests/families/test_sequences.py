"""What one call after another gives bit for bit: a whole sequence, its chunks, and its tokens one by one.

Convolutions give the same bits however a sequence is cut, as long as states hold the inputs exactly. State updates of
arrays that are laid out and aligned alike do so on a GPU, with float32 states: a kernel keeps them in float32 within a
call, too. Scans of packed sequences do so where the kernel takes one token after another, as it does with few;
elsewhere, and between scans and state updates, results agree within rounding errors. On NumPy arrays a state is float64
within a call and rounded between calls, so that scans and state updates of the same tokens in the same calls agree, but
not chunks.

The emulator has some of the convolutions, drawn anew in every run; with CUCONV_EVERY=1 in the environment all.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import cuconv
from cuconv.runtime.dtypes import BY_NAME
from tests.emulator.family import emulated
from tests.support import sampling
from tests.support.placement import Array

LENGTHS = (13, 1, 6)
"""Tokens per sequence."""
DIM = 6
SLOTS = (4, 0, 2)
"""The slot of each sequence."""
POOL_SLOTS = 5


def on_numpy(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Array:
    out: Array = function(**arguments)
    return out


def on_emulator(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Array:
    out: Array = emulated(function, arguments).array
    return out


def on_gpu(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Array:
    """On CuPy arrays; NumPy ones that the call changes are changed, too."""
    cupy = pytest.importorskip("cupy")
    uploaded = {
        name: as_laid_out(cupy, value) if isinstance(value, np.ndarray) else value for name, value in arguments.items()
    }
    out: Array = cupy.asnumpy(function(**uploaded))
    for name in ("conv_states", "conv_state", "intermediate_conv_window", "snapshot_out", "ssm_states", "state"):
        if isinstance(value := arguments.get(name), np.ndarray):
            value[...] = cupy.asnumpy(uploaded[name])
    return out


def as_laid_out(cupy: Any, array: Array) -> Any:
    """A CuPy array with the order of the axes that a NumPy array has in memory."""
    order = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
    return cupy.asarray(np.ascontiguousarray(array.transpose(order))).transpose(np.argsort(order).tolist())


CALLERS = [
    pytest.param(on_numpy, id="numpy"),
    pytest.param(on_emulator, id="emulator"),
    pytest.param(on_gpu, id="gpu", marks=pytest.mark.gpu),
]
EACH_CALLER = pytest.mark.parametrize("call", CALLERS)
EACH_DEVICE = pytest.mark.parametrize("call", CALLERS[1:])
Caller = Callable[[Callable[..., Any], Mapping[str, Any]], Array]


def uniform(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).uniform(-1, 1, shape)


def steps() -> Iterator[tuple[int, ...]]:
    """Random chunks of the sequences until all are done: the tokens of each in every call, some of them none.

    Each call of this function draws others, from a seed that it prints.
    """
    seed = secrets.randbits(32)
    print(f"random chunks of the seed {seed}")
    random, left = np.random.default_rng(seed), np.array(LENGTHS)
    while left.any():
        taken = np.minimum(random.integers(0, 6, len(left)), left)
        left -= taken
        yield tuple(taken.tolist())


Cuts = list[tuple[int, ...]]
WHOLE: Cuts = [LENGTHS]
BY_TOKEN: Cuts = [tuple(int(t < n) for n in LENGTHS) for t in range(max(LENGTHS))]
CUTS: dict[str, Callable[[], Cuts]] = {
    "whole": lambda: WHOLE,
    "by_token": lambda: BY_TOKEN,
    "random": lambda: [*steps()],
}


@pytest.fixture
def cuts(request: pytest.FixtureRequest) -> Cuts:
    """A way to cut the sequences, by its name."""
    return CUTS[request.param]()


EACH_CUT = pytest.mark.parametrize("cuts", list(CUTS)[1:], indirect=True)


@dataclass
class Progress:
    """Sequences that calls take further: how far each is, their pool, and their results."""

    pool: Array
    seen: list[int] = field(default_factory=lambda: [0] * len(LENGTHS))
    results: list[list[Array]] = field(default_factory=lambda: [[] for _ in LENGTHS])

    def chunk(self, inputs: list[Array], taken: tuple[int, ...]) -> Array:
        """The next tokens of all sequences, (…, tokens), packed."""
        parts = [each[..., n : n + count] for each, n, count in zip(inputs, self.seen, taken, strict=True)]
        packed: Array = np.concatenate(parts, axis=-1)
        return packed

    def packing(self, taken: tuple[int, ...]) -> dict[str, Any]:
        return {
            "query_start_loc": np.cumsum([0, *taken]).astype(np.int32),
            "cache_indices": np.array(SLOTS, np.int32),
            "has_initial_state": np.array([n > 0 for n in self.seen]),
        }

    def take(self, out: Array, taken: tuple[int, ...]) -> None:
        """Hand out the packed results of a call."""
        for i, part in enumerate(np.split(out, np.cumsum(taken)[:-1], axis=-1)):
            self.results[i].append(part)
            self.seen[i] += taken[i]

    def bits(self, columns: slice = slice(None)) -> tuple[list[bytes], bytes]:
        """All results, and the pool."""
        assert tuple(self.seen) == LENGTHS
        return [np.concatenate(parts, axis=-1).tobytes() for parts in self.results], self.pool[..., columns].tobytes()


@dataclass(frozen=True)
class Convolution:
    """A filter, and the inputs of sequences."""

    width: int
    dtype: str
    contiguous: str
    """Which axis of packed inputs is contiguous: "channels" or "tokens"."""
    activation: str | None = "silu"
    seed: int = 0
    dim: int = DIM
    pool_by: str = "tokens"
    """Which axis of a pool is contiguous."""

    @property
    def filter(self) -> dict[str, Any]:
        kind = BY_NAME[self.dtype].numpy
        taps, bias = uniform(self.seed + 1, self.dim, self.width), uniform(self.seed + 2, self.dim)
        return {"weight": taps.astype(kind), "bias": bias.astype(kind), "activation": self.activation}

    @property
    def inputs(self) -> list[Array]:
        return [uniform(self.seed + 3 + n, self.dim, n).astype(BY_NAME[self.dtype].numpy) for n in LENGTHS]

    def laid_out(self, packed: Array) -> Array:
        return np.asarray(packed, order="F" if self.contiguous == "channels" else "C")

    def pool(self, state_len: int) -> Array:
        """States that no sequence may start from before it has one."""
        pool = np.full((POOL_SLOTS, self.dim, state_len), 7.0, BY_NAME[self.dtype].numpy)
        return pool if self.pool_by == "tokens" else np.ascontiguousarray(pool.swapaxes(1, 2)).swapaxes(1, 2)

    def prefill(self, call: Caller, progress: Progress, taken: tuple[int, ...], **more: Any) -> None:
        x = self.laid_out(progress.chunk(self.inputs, taken))
        arguments = {"x": x, "conv_states": progress.pool, **self.filter, **progress.packing(taken), **more}
        progress.take(call(cuconv.causal_conv1d_varlen_fn, arguments), taken)

    def prefilled(self, call: Caller, cuts: Cuts, state_len: int, **more: Any) -> Progress:
        progress = Progress(self.pool(state_len))
        for taken in cuts:
            self.prefill(call, progress, taken, **more)
        return progress

    def step(self, call: Caller, progress: Progress, taken: tuple[int, ...], **more: Any) -> None:
        """Update calls for these tokens, one for the sequences with equally many."""
        for count in sorted({*taken} - {0}):
            which = [i for i, own in enumerate(taken) if own == count]
            x = np.stack([self.inputs[i][:, progress.seen[i] : progress.seen[i] + count] for i in which])
            if self.contiguous == "channels":
                x = np.ascontiguousarray(x.transpose(0, 2, 1)).transpose(0, 2, 1)
            if count == 1 and progress.seen[which[0]] % 2:
                x = x[:, :, 0]
            slots = np.array([SLOTS[i] for i in which], np.int32)
            own = {name: value[which] if isinstance(value, np.ndarray) else value for name, value in more.items()}
            arguments = {"x": x, "conv_state": progress.pool, **self.filter, "conv_state_indices": slots, **own}
            out = call(cuconv.causal_conv1d_update, arguments)
            for i, part in zip(which, out.reshape(*x.shape[:2], count), strict=True):
                progress.results[i].append(part)
                progress.seen[i] += count


CONVOLUTIONS = [
    Convolution(4, dtype, contiguous) for dtype in BY_NAME if dtype in ("float32", "float16", "bfloat16")
    for contiguous in ("channels", "tokens")
] + [
    Convolution(2, "bfloat16", "channels", None), Convolution(3, "float16", "tokens"),
    Convolution(5, "float32", "channels"), Convolution(9, "bfloat16", "tokens"), Convolution(1, "float32", "channels"),
    *(Convolution(4, "bfloat16", axis, dim=32, pool_by=axis) for axis in ("channels", "tokens")),
]  # fmt: skip
WIDE = [
    Convolution(width, "bfloat16", axis, dim=32, pool_by=pool_by)
    for width in (1, 2, 4, 7, 16)
    for axis in ("channels", "tokens")
    for pool_by in ("channels", "tokens")
]
"""Convolutions for which the emulator would have to build many kernels: a GPU alone has them."""
EMULATED = CONVOLUTIONS if sampling.EVERY else sampling.drawn(CONVOLUTIONS, 3)
EACH_CONVOLUTION = pytest.mark.parametrize(
    ("case", "call"),
    [
        *(pytest.param(case, on_numpy, id=f"{case}-numpy") for case in CONVOLUTIONS),
        *(pytest.param(case, on_emulator, id=f"{case}-emulator") for case in EMULATED),
        *(pytest.param(case, on_gpu, id=f"{case}-gpu", marks=pytest.mark.gpu) for case in [*CONVOLUTIONS, *WIDE]),
    ],
)


@EACH_CUT
@EACH_CONVOLUTION
def test_a_prefill_in_chunks_is_the_whole_prefill(case: Convolution, cuts: Cuts, call: Caller) -> None:
    for spare, first_column in ((0, None), (2, None), (2, 0)):
        columns = case.width - 1 + spare
        more = {} if first_column is None else {"first_column": first_column}
        assert case.prefilled(call, cuts, columns, **more).bits() == case.prefilled(call, WHOLE, columns, **more).bits()


@pytest.mark.parametrize("cuts", CUTS, indirect=True)
@EACH_CONVOLUTION
def test_update_steps_are_the_whole_prefill(case: Convolution, cuts: Cuts, call: Caller) -> None:
    halo = case.width - 1
    for spare, first_column in ((0, None), (2, None), (2, 0)):
        more = {} if first_column is None else {"first_column": first_column}
        whole = case.prefilled(call, WHOLE, halo + spare, **more)
        progress = Progress(case.pool(halo + spare))
        progress.pool[list(SLOTS)] = 0
        for taken in cuts:
            case.step(call, progress, taken, **more)
        columns = slice(spare, None) if first_column is None else slice(0, halo)
        assert progress.bits(columns) == whole.bits(columns)
        if first_column == 0:
            assert not progress.pool[list(SLOTS), :, halo:].any()


@EACH_CUT
@EACH_CONVOLUTION
def test_ring_steps_are_the_whole_prefill(case: Convolution, cuts: Cuts, call: Caller) -> None:
    whole, begins = case.prefilled(call, WHOLE, case.width + 1), np.array([0, 1000, -7], np.int32)
    progress = Progress(case.pool(case.width + 1))
    progress.pool[list(SLOTS)] = 0
    for taken in cuts:
        case.step(call, progress, taken, cache_seqlens=begins + np.array(progress.seen, np.int32))
    assert progress.bits()[0] == whole.bits()[0]
    for i, slot in enumerate(SLOTS):
        held = [(begins[i] + LENGTHS[i] - case.width + 1 + k) % (case.width + 1) for k in range(case.width - 1)]
        assert progress.pool[slot][:, held].tobytes() == whole.pool[slot, :, 2:].tobytes()


@EACH_CONVOLUTION
@pytest.mark.parametrize("seed", range(3))
def test_prefills_and_steps_of_all_kinds_share_the_first_columns(case: Convolution, seed: int, call: Caller) -> None:
    """Prefill, a speculative step of which some tokens are accepted, one token, a plain step, and a prefill again."""
    random = np.random.default_rng(seed)
    halo, drafted = case.width - 1, 3
    pool_columns = halo + drafted - 1
    whole = case.prefilled(call, WHOLE, pool_columns, first_column=0)
    progress = Progress(case.pool(pool_columns))
    case.prefill(call, progress, (3, 1, 1), first_column=0)
    # Sequence 1 has no further tokens and only takes part in the prefills.
    count = (drafted, 0, drafted)
    seen = list(progress.seen)
    case.step(call, progress, count, num_accepted_tokens=np.ones(len(LENGTHS), np.int32))
    accepted = random.integers(1, drafted + 1, len(LENGTHS))
    for i in (0, 2):
        progress.results[i][-1] = progress.results[i][-1][:, : accepted[i]]
        progress.seen[i] = seen[i] + int(accepted[i])
    case.step(call, progress, (1, 0, 1), num_accepted_tokens=accepted)
    case.step(call, progress, (1, 0, 0), first_column=0)
    assert progress.seen[0] < LENGTHS[0]
    left = tuple(n - own for n, own in zip(LENGTHS, progress.seen, strict=True))
    case.prefill(call, progress, left, first_column=0)
    assert progress.bits(slice(0, halo)) == whole.bits(slice(0, halo))


@EACH_CONVOLUTION
def test_a_dense_convolution_in_chunks_is_the_whole_and_the_packed_one(case: Convolution, call: Caller) -> None:
    packed = case.prefilled(call, WHOLE, case.width - 1).bits()[0]
    for i, length in enumerate(LENGTHS):
        x = case.inputs[i][None]
        if case.contiguous == "channels":
            x = np.ascontiguousarray(x.transpose(0, 2, 1)).transpose(0, 2, 1)
        assert call(cuconv.causal_conv1d_fn, {"x": x, **case.filter})[0].tobytes() == packed[i]
        parts: list[Array] = []
        cut = length // 2
        for begin, end in ((0, cut), (cut, length)):
            past = np.zeros((1, case.dim, case.width - 1), x.dtype)
            kept = x[..., max(0, begin - case.width + 1) : begin]
            past[..., past.shape[-1] - kept.shape[-1] :] = kept
            parts.append(call(cuconv.causal_conv1d_fn, {"x": x[..., begin:end], "initial_states": past, **case.filter}))
        assert np.concatenate(parts, axis=-1)[0].tobytes() == packed[i]


D_STATE = 8


@dataclass(frozen=True)
class StateSpace:
    """A selective state space model, and the inputs of sequences."""

    dtype: str

    @property
    def inputs(self) -> list[Array]:
        """x, dt, z, B and C of every sequence, one below the other: (3 * DIM + 2 * D_STATE, tokens)."""
        kind, rows = BY_NAME[self.dtype].numpy, 3 * DIM + 2 * D_STATE
        return [uniform(n, rows, n).astype(kind) for n in LENGTHS]

    @staticmethod
    def parameters(*names: str) -> dict[str, Any]:
        """A, D and the bias of dt, by these names, and that dt is a softplus."""
        A, D, bias = -np.abs(uniform(1, DIM, D_STATE)) - 0.1, uniform(2, DIM), uniform(3, DIM)
        given = (A.astype(np.float32), D.astype(np.float32), bias.astype(np.float32), True)
        return dict(zip(names, given, strict=True))

    @staticmethod
    def parts(chunk: Array) -> list[Array]:
        """x, dt, z, B and C of a chunk."""
        borders = [DIM, 2 * DIM, 3 * DIM, 3 * DIM + D_STATE]
        return [part.copy() for part in np.split(chunk, borders)]

    @staticmethod
    def progress() -> Progress:
        return Progress(np.zeros((POOL_SLOTS, DIM, D_STATE), np.float32))

    def scanned(self, call: Caller, cuts: Cuts) -> Progress:
        progress = self.progress()
        for taken in cuts:
            arrays = dict(
                zip(("u", "delta", "z", "B", "C"), self.parts(progress.chunk(self.inputs, taken)), strict=True)
            )
            arrays |= self.parameters("A", "D", "delta_bias", "delta_softplus") | progress.packing(taken)
            out = call(cuconv.selective_scan_varlen_fn, {**arrays, "ssm_states": progress.pool})
            progress.take(out, taken)
        return progress

    def updated(self, call: Caller, cuts: Cuts) -> Progress:
        """By state updates of packed tokens, all channels in one head."""
        progress = self.progress()
        pool = progress.pool[:, None]
        for taken in cuts:
            chunk = self.parts(progress.chunk(self.inputs, taken))
            by_token = [part.T.copy()[:, None] for part in chunk]
            arrays: dict[str, Any] = dict(zip(("x", "dt", "z", "B", "C"), by_token, strict=True))
            parameters = self.parameters("A", "D", "dt_bias", "dt_softplus")
            arrays |= {name: value if value is True else value[None] for name, value in parameters.items()}
            packing = progress.packing(taken)
            indices = {"state_batch_indices": packing["cache_indices"], "cu_seqlens": packing["query_start_loc"]}
            out = call(cuconv.selective_state_update, {**arrays, **indices, "state": pool})
            progress.take(np.ascontiguousarray(out[:, 0].T), taken)
        return progress

    def stepped(self, call: Caller) -> Progress:
        """By state updates of one token each."""
        progress = self.progress()
        for taken in BY_TOKEN:
            which = [i for i, count in enumerate(taken) if count]
            chunk = [part.T.copy() for part in self.parts(progress.chunk(self.inputs, taken))]
            arrays: dict[str, Any] = dict(zip(("x", "dt", "z", "B", "C"), chunk, strict=True))
            arrays |= self.parameters("A", "D", "dt_bias", "dt_softplus")
            slots = np.array(SLOTS, np.int32)[which]
            out = call(cuconv.selective_state_update, {**arrays, "state": progress.pool, "state_batch_indices": slots})
            progress.take(np.ascontiguousarray(out.T), taken)
        return progress


MODELS = [StateSpace("float32"), StateSpace("float16"), StateSpace("bfloat16")]
EACH_MODEL = pytest.mark.parametrize("model", MODELS, ids=str)


@EACH_DEVICE
@EACH_CUT
@EACH_MODEL
def test_state_updates_of_chunks_are_those_of_the_whole(model: StateSpace, cuts: Cuts, call: Caller) -> None:
    assert model.updated(call, cuts).bits() == model.updated(call, WHOLE).bits()


@EACH_DEVICE
@EACH_MODEL
def test_state_updates_of_single_tokens_are_those_of_the_whole(model: StateSpace, call: Caller) -> None:
    assert model.stepped(call).bits() == model.updated(call, WHOLE).bits()


@EACH_DEVICE
@EACH_CUT
@EACH_MODEL
def test_scans_of_chunks_of_few_tokens_are_those_of_the_whole(model: StateSpace, cuts: Cuts, call: Caller) -> None:
    assert model.scanned(call, cuts).bits() == model.scanned(call, WHOLE).bits()


@EACH_MODEL
def test_on_numpy_arrays_scans_and_state_updates_are_the_same(model: StateSpace) -> None:
    for make in CUTS.values():
        cuts = make()
        assert model.scanned(on_numpy, cuts).bits() == model.updated(on_numpy, cuts).bits()
    assert model.stepped(on_numpy).bits() == model.scanned(on_numpy, BY_TOKEN).bits()
