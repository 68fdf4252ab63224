"""What adapters compute on the device with torch before cuconv's kernels, without waiting for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

KEPT = 4096
"""Least number of elements of a constant array."""

_constants: dict[tuple[Any, ...], Any] = {}


def positions(like: Any, count: int) -> Any:
    """The numbers 0, 1, … of the entries of a batch, int32 on the device of `like`: at least `count`."""
    return _constant(_positions, like, None, _length(count))


def ones(like: Any, count: int) -> Any:
    """Ones, int32 on the device of `like`: at least `count`."""
    return _constant(_ones, like, None, _length(count))


def unit_taps(like: Any, dim: int) -> Any:
    """The filter (dim, 1) that changes nothing, of dtype and device of `like`."""
    return _constant(_unit_taps, like, like.dtype, dim)


def _positions(torch: Any, device: Any, dtype: Any, length: int) -> Any:
    return torch.arange(length, dtype=torch.int32, device=device)


def _ones(torch: Any, device: Any, dtype: Any, length: int) -> Any:
    return torch.ones(length, dtype=torch.int32, device=device)


def _unit_taps(torch: Any, device: Any, dtype: Any, dim: int) -> Any:
    return torch.ones(dim, 1, dtype=dtype, device=device)


def _length(count: int) -> int:
    return KEPT if count <= KEPT else 1 << (count - 1).bit_length()


def _constant(make: Callable[..., Any], like: Any, dtype: Any, length: int) -> Any:
    """What `make` gives for these arguments behind torch.

    It is kept for good, because CUDA graphs may read it. It is not kept when it is made during a graph's capture,
    because its memory is then the graph's, or when torch traces, because it has no memory then; a `like` without memory
    gets no kept one. It is never a tensor of inference mode, because autograd must be able to follow later calls that
    read it.
    """
    key = make, like.__class__, like.device, dtype, length
    found = _constants.get(key)
    if found is None:
        import torch

        with torch.inference_mode(False):
            found = make(torch, like.device, dtype, length)
        has_memory = found.__class__ is torch.Tensor
        if has_memory and (like.device.type != "cuda" or not torch.cuda.is_current_stream_capturing()):
            _constants[key] = found
    return found


def random_seed(like: Any) -> Any:
    """A new seed of 32 bits on the device of `like`, of torch's generator, as engines draw one per call."""
    import torch

    return torch.randint(0, 2**32, (1,), dtype=torch.int64, device=getattr(like, "device", None))
