"""Arrays that adapters make once and keep: for every caller, also behind one that traced or only inferred."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from cuconv.engines import _tensors, tokenspeed  # noqa: E402
from tests.engines.tensors import normal  # noqa: E402


@pytest.fixture(autouse=True)
def none_kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(_tensors, "_constants", {})
    yield


def split(mixed_qkv: Any) -> Any:
    q, k, v = tokenspeed.fused_qkv_split_gdn_prefill(mixed_qkv, 1, 1, 1, 2, 2, 2)
    return torch.cat((q, k, v), -1)


@pytest.mark.parametrize("is_traced_first", [False, True])
def test_calls_that_torch_traces_have_arrays_of_their_own(is_traced_first: bool) -> None:
    """Tensors that torch makes where it traces have no memory, and it takes no others there."""
    x = normal("cpu", 7, 6)
    for is_traced in (is_traced_first, not is_traced_first):
        if is_traced:
            with FakeTensorMode():
                assert split(torch.empty(7, 6)).shape == (1, 7, 1, 6)
        else:
            assert torch.equal(split(x)[0, :, 0], x)


def test_autograd_follows_calls_behind_one_of_inference_mode() -> None:
    x = normal("cpu", 7, 6).requires_grad_()
    with torch.inference_mode():
        split(normal("cpu", 7, 6))
    split(x).sum().backward()
    assert torch.equal(x.grad, torch.ones_like(x))


def test_an_array_is_made_once() -> None:
    like = normal("cpu", 2)
    assert _tensors.positions(like, 3) is _tensors.positions(like, 9)
    assert _tensors.positions(like, _tensors.KEPT + 1).shape == (2 * _tensors.KEPT,)
    assert _tensors.unit_taps(like, 5).shape == (5, 1) and _tensors.ones(like, 2).all()
