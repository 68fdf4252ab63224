"""cuconv's functions in the models of Hugging Face transformers, whether these are imported before or later.

A modeling file of transformers keeps its functions as globals, and looks for packages only once, when it is imported.
So the globals themselves are replaced.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import re
import sys
import threading
from collections.abc import Callable, Mapping
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from cuconv.runtime.tracing import is_recorded
from cuconv.torch import causal_conv1d as conv
from cuconv.torch import mamba_ssm as mamba
from cuconv.torch import ssd
from cuconv.torch.dropin import STAND_IN
from cuconv.torch.modules import is_only_weights
from cuconv.torch.operators import is_transformed

FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "causal_conv1d_fn": conv.causal_conv1d_fn,
    "causal_conv1d_update": conv.causal_conv1d_update,
    "mamba_inner_fn": mamba.mamba_inner_fn,
    "mamba_selective_scan": mamba.selective_scan_fn,
    "mamba_selective_state_update": mamba.selective_state_update,
    "mamba2_selective_state_update": mamba.selective_state_update,
}
"""The replacement for each global of modeling files, by the global's name."""


def _by_steps(*arguments: Any, seq_idx: Any = None) -> None:
    """None, which has a model of Mamba-2 compute its block step by step."""


CHUNKED: Mapping[str, Callable[..., Any]] = {
    "mamba2_chunk_scan": ssd.mamba_chunk_scan_combined,
    "mamba2_split_conv1d_scan_combined": _by_steps,
}
"""The replacements where mamba_ssm is not installed with its kernels of Mamba-2."""

try:
    from torch.distributed.tensor import DTensor
except ImportError:
    DISTRIBUTED: tuple[type[Any], ...] = ()
else:
    DISTRIBUTED = (DTensor,)
"""The class of tensors that are distributed over processes, where torch has it: operators would need rules for them."""

_is_exporting = getattr(torch.compiler, "is_exporting", torch.compiler.is_dynamo_compiling)
"""Whether a graph is exported. torch says so from 2.7 on; before that every graph counts as exported."""

PACKED = ("cu_seqlens", "seq_idx")
"""The arguments that say where packed sequences begin; either is enough."""

MODELING = re.compile(r"transformers\.models\.\w+\.modeling_\w+")


def patch_transformers() -> dict[str, tuple[str, ...]]:
    """Make the models of transformers call cuconv, those imported already and those imported from now on.

    Transformers' own code still computes what cuconv cannot: another activation than silu, float64, and packed
    sequences, which that code refuses, unless a convolution gets seq_idx. It also computes calls that torch.export and
    torch.jit.trace trace, as with the packages that cuconv stands in for, calls that torch.func transforms, and
    distributed tensors.

    Models of Mamba-2 get `cuconv.torch.mamba_chunk_scan_combined`, unless mamba_ssm is installed with its kernels.

    As with mamba_ssm, a training step of the models of Mamba computes the block as one function, which does not get
    attention_mask: padding in front of a text changes its result where the convolution has a bias. A block is computed
    step by step where its projections have hooks or are of another class than nn.Linear, as with low-rank adapters and
    quantised weights.

    Returns:
        For every modeling module that is already imported, the functions that have been replaced in it.
    """
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    return {
        name: replaced
        for name, module in list(sys.modules.items())
        if MODELING.fullmatch(name) and (replaced := _patch(module))
    }


def unpatch_transformers() -> None:
    """Undo `patch_transformers`."""
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
    for name, module in list(sys.modules.items()):
        if MODELING.fullmatch(name):
            for function in (*FUNCTIONS, *CHUNKED):
                if hasattr(found := getattr(module, function, None), "cuconv_original"):
                    setattr(module, function, found.cuconv_original)  # type: ignore[union-attr]
            for block in _blocks(module):
                if hasattr(block.forward, "cuconv_original"):
                    block.forward = block.forward.cuconv_original


def _has_kernels_of_mamba2() -> bool:
    """Whether mamba_ssm is installed with its kernels of Mamba-2."""
    try:
        spec = importlib.util.find_spec("mamba_ssm.ops.triton.ssd_combined")
    except ImportError:
        return False
    return spec is not None and spec.origin != STAND_IN


def _patch(module: ModuleType) -> tuple[str, ...]:
    for block in _blocks(module):
        if not hasattr(block.forward, "cuconv_original"):
            block.forward = _by_module(block.forward)
    replaced = []
    functions = FUNCTIONS if _has_kernels_of_mamba2() else {**FUNCTIONS, **CHUNKED}
    for name, function in functions.items():
        found = getattr(module, name, None)
        if callable(found) and not hasattr(found, "cuconv_original"):
            setattr(module, name, _replacement(found, function))
        if hasattr(module, name):
            replaced.append(name)
    return tuple(replaced)


def _blocks(module: ModuleType) -> list[Any]:
    """The classes of blocks that a modeling module computes as one function."""
    classes: list[Any] = [each for each in vars(module).values() if isinstance(each, type)]
    modules = [each for each in classes if issubclass(each, nn.Module)]
    codes = {each: getattr(inspect.unwrap(each.forward), "__code__", None) for each in modules}
    return [each for each, code in codes.items() if code is not None and "mamba_inner_fn" in code.co_names]


class _Way(threading.local):
    """How a thread's current block is computed."""

    is_by_steps = False


_way = _Way()


def _by_module(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A block's `forward` that calls its projections as modules where these are more than their weights."""

    @functools.wraps(forward)
    def call(self: Any, *arguments: Any, **named: Any) -> Tensor:
        _way.is_by_steps = not (is_only_weights(self.x_proj) and is_only_weights(self.out_proj))
        try:
            return forward(self, *arguments, **named)
        finally:
            _way.is_by_steps = False

    call.cuconv_original = forward  # type: ignore[attr-defined]
    return call


def _replacement(original: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    known = tuple(inspect.signature(function).parameters)
    is_inner = function is mamba.mamba_inner_fn

    @functools.wraps(original)
    def call(*arguments: Any, **named: Any) -> Any:
        if is_inner and _way.is_by_steps:
            # Models that get None compute the block step by step.
            return None
        if _is_for_torch() or not all(map(_fits, (*arguments, *named.values()))):
            return original(*arguments, **named)
        borders = [name for name in PACKED if named.get(name) is not None]
        if borders and not ("seq_idx" in borders and "seq_idx" in known):
            return original(*arguments, **named)
        if is_inner and named.get("dt_rms_weight") is not None:
            # mamba_ssm normalises delta, with a weight per channel; the models normalise what delta is made from, with
            # weights of one.
            dim, rank = (named["delta_proj_weight"] if "delta_proj_weight" in named else arguments[4]).shape
            if dim == rank:
                return None
            named["dt_rms_weight"] = named["dt_rms_weight"][:rank]
        return function(*arguments, **{name: value for name, value in named.items() if name in known})

    call.cuconv_original = original  # type: ignore[attr-defined]
    return call


def _is_for_torch() -> bool:
    """Whether torch exports or traces this call to its own operations, or transforms it by torch.func."""
    if torch.compiler.is_dynamo_compiling():
        return _is_exporting()
    return _is_exporting() or is_recorded() or is_transformed()


def _fits(value: Any) -> bool:
    """Whether cuconv takes this argument."""
    if isinstance(value, Tensor):
        is_whole = not isinstance(value, DISTRIBUTED)
        return is_whole and value.device.type in ("cpu", "cuda") and value.dtype != torch.float64
    return not isinstance(value, str) or value in ("silu", "swish")


class _Finder(MetaPathFinder):
    """Patches modeling modules right after they are imported."""

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if not MODELING.fullmatch(name):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_patch(module: ModuleType) -> None:
                execute(module)
                _patch(module)

            spec.loader.exec_module = execute_and_patch  # type: ignore[method-assign]
        return spec


_finder = _Finder()
