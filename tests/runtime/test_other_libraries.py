"""Arrays of libraries that cuconv knows nothing of: JAX through DLPack, Numba through DLPack's older sibling."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cuconv


def arrays() -> tuple[np.ndarray[Any, Any], ...]:
    rng = np.random.default_rng(0)
    return tuple(rng.standard_normal(shape).astype(np.float32) for shape in ((2, 6, 9), (6, 4), (6,)))


def wanted() -> tuple[np.ndarray[Any, Any], ...]:
    result: tuple[np.ndarray[Any, Any], ...] = cuconv.causal_conv1d_fn(
        *arrays(), return_final_states=True, activation="silu"
    )
    return result


def test_jax_arrays_go_in_and_come_out() -> None:
    jax = pytest.importorskip("jax", reason="jax is not installed")
    with jax.default_device(jax.devices("cpu")[0]):
        given = tuple(map(jax.numpy.asarray, arrays()))
        before = [np.array(each) for each in given]
        results = cuconv.causal_conv1d_fn(*given, return_final_states=True, activation="silu")
    for one, other in zip(results, wanted(), strict=True):
        assert isinstance(one, jax.Array)
        np.testing.assert_array_equal(np.asarray(one), other)
    for one, copy in zip(given, before, strict=True):
        np.testing.assert_array_equal(np.asarray(one), copy)


def test_a_jax_array_is_not_updated_in_place() -> None:
    jax = pytest.importorskip("jax", reason="jax is not installed")
    x, weight = jax.numpy.ones((2, 6)), jax.numpy.ones((6, 4))
    state = jax.numpy.zeros((2, 6, 3))
    with pytest.raises(ValueError, match=r"^conv_state: got a read-only array; wanted one that can be written$"):
        cuconv.causal_conv1d_update(x, state, weight)
    assert not np.asarray(state).any()


class Immutable:
    """An array of a library of immutable ones, whose memory could be written for all that DLPack says."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


Immutable.__module__ = "jaxlib._jax"


@pytest.mark.parametrize("bound", [False, True])
def test_an_immutable_array_is_not_updated_whatever_dlpack_says(bound: bool) -> None:
    x, weight = (Immutable(np.ones(shape, np.float32)) for shape in ((2, 6), (6, 4)))
    state, given = np.zeros((2, 6, 3), np.float32), np.zeros((2, 6, 3), np.float32)

    def step(pool: Any) -> None:
        if bound:
            cuconv.bind(cuconv.causal_conv1d_update, x, pool, weight)()
        else:
            cuconv.causal_conv1d_update(x, pool, weight)

    with pytest.raises(ValueError, match=r"^conv_state: got a read-only array; wanted one that can be written$"):
        step(Immutable(state))
    assert not state.any()
    step(given)
    assert given.any()


def test_numba_code_calls_and_is_called() -> None:
    numba = pytest.importorskip("numba", reason="numba is not installed")

    @numba.njit  # type: ignore[untyped-decorator]
    def doubled(array: Any) -> Any:
        return array * 2

    x, weight, bias = arrays()
    out = doubled(cuconv.causal_conv1d_fn(doubled(x), weight, bias))
    np.testing.assert_array_equal(out, 2 * cuconv.causal_conv1d_fn(2 * x, weight, bias))


@pytest.mark.gpu
def test_numba_device_arrays_go_in() -> None:
    numba = pytest.importorskip("numba.cuda", reason="numba is not installed")
    cupy = pytest.importorskip("cupy")
    if not numba.is_available():
        pytest.skip("numba finds no GPU")
    out, states = cuconv.causal_conv1d_fn(*map(numba.to_device, arrays()), return_final_states=True, activation="silu")
    for one, other in zip((out, states), wanted(), strict=True):
        np.testing.assert_allclose(cupy.asnumpy(one), other, rtol=1e-5, atol=1e-6)
        assert numba.as_cuda_array(one).shape == other.shape


@pytest.mark.gpu
def test_jax_device_arrays_go_in_and_come_out() -> None:
    jax = pytest.importorskip("jax", reason="jax is not installed")
    if jax.default_backend() != "gpu":
        pytest.skip("jax finds no GPU")
    results = cuconv.causal_conv1d_fn(*map(jax.numpy.asarray, arrays()), return_final_states=True, activation="silu")
    for one, other in zip(results, wanted(), strict=True):
        assert isinstance(one, jax.Array)
        np.testing.assert_allclose(np.asarray(one), other, rtol=1e-5, atol=1e-6)
