"""The quick look at torch tensors like those of an earlier call: it takes none for equal that `inspect` tells apart."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cuconv
from cuconv.runtime import arrays, operation
from cuconv.runtime.dtypes import FLOAT32
from cuconv.runtime.layout import HOST, Layout

torch = pytest.importorskip("torch")

ARGUMENTS = ("x", "weight", "bias", "seq_idx")
SHAPE = (2, 3, 8)


def given(x: Any = None, bias: Any = None) -> tuple[Any, ...]:
    """Arguments of a convolution, the bias of which is absent."""
    return torch.ones(SHAPE) if x is None else x, torch.ones(3, 4), bias, torch.ones(2, 8, dtype=torch.int32)


@pytest.fixture
def family() -> Any:
    found = arrays.family(torch.ones(1))
    assert found is not None
    if found.recogniser is None:
        pytest.skip(f"torch {torch.__version__} is not among those of which internals are used")
    return found


def recogniser_of(family: Any, tensors: tuple[Any, ...]) -> Callable[[tuple[Any, ...]], Any]:
    made = family.recogniser(tensors)
    assert made is not None
    return made.addresses  # type: ignore[no-any-return]


def test_tensors_with_the_same_facts_are_recognised_wherever_they_are(family: Any) -> None:
    recognise = recogniser_of(family, given())
    for each in (given(), given(torch.ones(4, 3, 8)[1:3]), given(torch.ones(56)[8:].view(SHAPE))):
        assert recognise(each) == family.inspect(ARGUMENTS, each)[0]
    with torch.no_grad():
        assert recognise(given()) is not None


CHANGED: dict[str, Callable[[], tuple[Any, ...]]] = {
    "shape": lambda: given(torch.ones(2, 3, 9)),
    "axes": lambda: given(torch.ones(6, 8)),
    "strides": lambda: given(torch.ones(2, 8, 3).transpose(1, 2)),
    "dtype": lambda: given(torch.ones(SHAPE, dtype=torch.float16)),
    "size of elements alike": lambda: given(torch.ones(SHAPE, dtype=torch.int32)),
    "alignment": lambda: given(torch.ones(49)[1:].view(SHAPE)),
    "device": lambda: given(torch.ones(SHAPE, device="meta")),
    "parameter": lambda: given(torch.nn.Parameter(torch.ones(SHAPE), requires_grad=False)),
    "requires grad": lambda: given(torch.ones(SHAPE, requires_grad=True)),
    "negated view": lambda: given(torch.view_as_complex(torch.ones(*SHAPE, 2)).conj().imag),
    "one more": lambda: given(bias=torch.ones(3)),
    "another one absent": lambda: (torch.ones(SHAPE), None, torch.ones(3, 4), torch.ones(2, 8, dtype=torch.int32)),
    "one less": lambda: (*given()[:3], None),
    "an array of NumPy": lambda: given(np.ones(SHAPE, np.float32)),
    "a number": lambda: given(bias=3),
}


@pytest.mark.parametrize("change", CHANGED)
def test_what_differs_in_any_way_is_not_recognised(change: str, family: Any) -> None:
    recognise = recogniser_of(family, given())
    assert recognise(CHANGED[change]()) is None
    assert recognise(given()) is not None


def test_what_autograd_follows_is_told_apart(family: Any) -> None:
    followed = given(torch.ones(SHAPE, requires_grad=True))
    made = family.recogniser(followed)
    assert made.is_followed and not family.recogniser(given()).is_followed
    assert made.addresses(given()) is None and made.addresses((None, *followed[1:])) is None
    with torch.no_grad():
        assert made.addresses(followed) == family.inspect(ARGUMENTS, followed)[0]
        assert made.addresses(given()) is None
    x = torch.ones(SHAPE)
    recognise = recogniser_of(family, given(x))
    with torch.autograd.forward_ad.dual_level():
        assert recognise(given(torch.autograd.forward_ad.make_dual(x, x))) is None
    seen = []
    torch.vmap(lambda row: seen.append(recognise(given(row))) or row)(torch.ones(5, *SHAPE))
    assert seen == [None]


def test_calls_that_went_a_quick_way_are_followed_when_autograd_asks(family: Any) -> None:
    # Sizes of their own, because what was recognised once stays known.
    x, weight = torch.randn(2, 5, 9), torch.randn(5, 3, requires_grad=True)
    with torch.no_grad():
        wanted = [cuconv.causal_conv1d_fn(x, weight) for _ in range(4)]
    for _ in range(3):
        followed = cuconv.causal_conv1d_fn(x, weight)
        assert followed.requires_grad and torch.equal(followed, wanted[0])
        with torch.no_grad():
            assert not cuconv.causal_conv1d_fn(x, weight).requires_grad
    (gradient,) = torch.autograd.grad(followed.sum(), weight)
    assert gradient.shape == weight.shape and gradient.abs().sum() > 0


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_autograd_notices_what_a_quick_call_writes(mode: Any, family: Any) -> None:
    conv_state, weight = torch.zeros(2, 5, 3), torch.randn(5, 4)
    with mode():
        for _ in range(4):
            before = conv_state._version
            cuconv.causal_conv1d_update(torch.randn(2, 5), conv_state, weight)
            assert conv_state._version == before + 1


def test_a_quick_call_may_write_tensors_of_inference_mode(family: Any) -> None:
    weight = torch.randn(5, 4)
    with torch.inference_mode():
        kept = torch.zeros(2, 5, 3)
        for _ in range(4):
            cuconv.causal_conv1d_update(torch.randn(2, 5), kept, weight)
    with torch.no_grad():
        for _ in range(4):
            cuconv.causal_conv1d_update(torch.randn(2, 5), kept, weight)
    cuconv.causal_conv1d_update(torch.randn(2, 5), kept, weight)


def test_tensors_of_inference_mode_are_told_apart(family: Any) -> None:
    recognise = recogniser_of(family, given())
    with torch.inference_mode():
        kept = given()
    assert recognise(kept) is None


def test_inference_tensors_count_no_writes(family: Any) -> None:
    x = torch.ones(2, 3)
    with torch.inference_mode():
        kept = torch.ones(2, 3)
        assert family.recogniser((x, None, kept)).uncounted == {2}
    # Out of that mode a normal tensor that comes in it could be taken for this one.
    assert not family.recogniser((x, None, kept)).uncounted
    with torch.inference_mode():
        assert recogniser_of(family, (kept,))((x,)) is None


def test_no_recogniser_for_types_of_programs(family: Any) -> None:
    class Own(torch.Tensor):
        pass

    assert family.recogniser((torch.ones(3, 4), torch.ones(3, 4).as_subclass(Own))) is None


def test_one_tensor_in_several_places_is_told_from_two(family: Any) -> None:
    x, y = torch.ones(3, 4), torch.ones(3, 4)
    recognise = recogniser_of(family, (x, None, x))
    assert recognise((y, None, y)) == [y.data_ptr()] * 2
    assert recognise((x, None, y)) is None and recognise((x, x, x)) is None
    assert recogniser_of(family, (x, None, y))((x, None, x)) is None
    assert recogniser_of(family, (x, None))((y, None)) == [y.data_ptr()]


def test_a_recogniser_keeps_no_tensor(family: Any) -> None:
    tensors = given()
    seen = [weakref.ref(each) for each in tensors if each is not None]
    recognise = recogniser_of(family, tensors)
    assert recognise(tensors) is not None
    del tensors
    gc.collect()
    assert [each() for each in seen] == [None] * 3


@pytest.mark.parametrize("is_known", [True, False], ids=["guards", "no guards"])
def test_the_third_of_equal_calls_is_recognised_and_all_give_the_same(
    is_known: bool, family: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    inspected = []
    inspect = family.inspect
    monkeypatch.setattr(family, "inspect", lambda *call: inspected.append(call) or inspect(*call))
    if not is_known:
        monkeypatch.setattr(family, "recogniser", None)
    weight = torch.randn(5, 3)
    # Sizes of its own for each case, because what was recognised once stays known.
    rows = [torch.randn(2, 5, 7 + is_known) for _ in range(5)]
    cuconv.causal_conv1d_fn(torch.randn(2, 5, 11), weight)
    inspected.clear()
    results = [cuconv.causal_conv1d_fn(x, weight) for x in rows]
    assert len(inspected) == (2 if is_known else 5)
    for x, result in zip(rows, results, strict=True):
        np.testing.assert_array_equal(result.numpy(), cuconv.causal_conv1d_fn(x.numpy(), weight.numpy()))
    with torch.inference_mode():
        kept = cuconv.causal_conv1d_fn(rows[0], weight)
    assert torch.equal(kept, results[0])


def test_calls_that_take_turns_are_recognised(family: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    inspected = []
    inspect = family.inspect
    monkeypatch.setattr(family, "inspect", lambda *call: inspected.append(call) or inspect(*call))
    # Sizes of their own, because what was recognised once stays known.
    rows = [torch.randn(3, 5, tokens) for tokens in range(21, 21 + operation.RECENT)]
    weight = torch.randn(5, 3)
    wanted = [cuconv.causal_conv1d_fn(x.numpy(), weight.numpy()) for x in rows]
    counts = []
    for _ in range(4):
        inspected.clear()
        for x, result in zip(rows, wanted, strict=True):
            np.testing.assert_array_equal(cuconv.causal_conv1d_fn(x, weight).numpy(), result)
        counts.append(len(inspected))
    assert counts == [len(rows), len(rows), 0, 0]


class Compared:
    """An array of a library that compares element by element."""

    __hash__ = None

    def __eq__(self, other: object) -> bool:
        raise AssertionError("its elements were compared")


def test_arrays_of_other_libraries_are_not_compared(family: Any) -> None:
    known = family.recogniser([torch.ones(2, 3), None, torch.ones(3)])
    assert known.addresses([Compared(), Compared(), Compared()]) is None


def test_only_arrays_that_torch_can_trace_ask_whether_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(operation, "is_traced", lambda: asked.append(True))
    x, weight = np.ones((2, 5, 7), np.float32), np.ones((5, 3), np.float32)
    wanted = cuconv.causal_conv1d_fn(x, weight)
    assert not asked
    np.testing.assert_array_equal(cuconv.causal_conv1d_fn(torch.from_numpy(x), torch.from_numpy(weight)), wanted)
    assert asked == [True]


@pytest.mark.parametrize("version", ["1.13.1", "99.0.0+cu999"])
def test_internals_of_other_versions_are_not_touched(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    family = arrays.TorchFamily()
    assert family.recogniser is None
    array, address = family.maker(Layout((2, 3), (1, 2), FLOAT32, HOST, 0))()
    assert array.stride() == (1, 2) and address == array.data_ptr()
