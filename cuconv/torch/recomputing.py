"""Tensors that a backward pass computes again instead of keeping them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import torch
from torch import Tensor


class Recomputed:
    """A context in which operations save recipes instead of some tensors.

    Unlike a checkpoint around all operations, which would run them all again, it computes only what was named.
    """

    def __init__(self, is_on: bool) -> None:
        self._recipes: dict[tuple[Any, ...], _Recipe] = {}
        # torch.compile traces this class where it is off, and no hooks.
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, _unpack) if is_on else None

    def __enter__(self) -> None:
        if self._hooks is not None:
            self._hooks.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._hooks is not None:
            self._hooks.__exit__(kind, error, trace)
            # Addresses mean tensors only as long as these live.
            self._recipes.clear()

    def keep(self, tensor: Tensor, recipe: Callable[[], Tensor], sources: Sequence[Tensor | None]) -> Tensor:
        """The tensor, which later operations save as its recipe: what computes it again from the sources."""
        if self._hooks is not None:
            given = [source for source in sources if source is not None]
            self._recipes[tensor.data_ptr(), tensor.dtype] = _Recipe(recipe, given, tensor.device.type)
        return tensor

    def _pack(self, tensor: Tensor) -> Any:
        recipe = self._recipes.get((tensor.data_ptr(), tensor.dtype))
        return tensor if recipe is None else (recipe, tensor.shape, tensor.stride(), tensor.storage_offset())


class _Recipe:
    """How to compute a tensor again; it is computed once for all operations that saved it."""

    def __init__(self, compute: Callable[[], Tensor], sources: list[Tensor], device: str) -> None:
        self._compute, self._sources, self._device = compute, sources, device
        self._autocast = torch.get_autocast_dtype(device), torch.is_autocast_enabled(device)
        self._versions = [source._version for source in sources]
        self._result: Tensor | None = None

    def result(self) -> Tensor:
        """The tensor; RuntimeError when it would be another one by now."""
        if self._result is None:
            if [source._version for source in self._sources] != self._versions:
                raise RuntimeError("a tensor that the backward pass computes from has been modified in place")
            with torch.no_grad(), torch.autocast(self._device, *self._autocast):
                self._result = self._compute()
        return self._result


def _unpack(saved: Any) -> Tensor:
    if isinstance(saved, Tensor):
        return saved
    recipe, shape, strides, offset = saved
    result: Tensor = recipe.result()
    return result.as_strided(shape, strides, offset)
