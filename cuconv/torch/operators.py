"""The public functions as operators of torch, which torch.compile and torch.export put into their graphs.

Eager calls do not come here: dispatching an operator takes longer than a small kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import torch

from cuconv.causal_conv1d.ranges import MAX_RANGES
from cuconv.causal_conv1d.split import WHOLE, Split, split_of
from cuconv.runtime import checks
from cuconv.runtime import operation as _runner
from cuconv.runtime.dtypes import BY_NAME, FLOAT64, DType
from cuconv.runtime.errors import message
from cuconv.runtime.layout import HOST, Layout
from cuconv.runtime.operation import Operation
from cuconv.runtime.plan import NO_NUMBERS, Late
from cuconv.runtime.tracing import is_in_jit_trace
from cuconv.selective_scan import turn
from cuconv.torch import derivatives

SPLIT = "int[]? ranges, bool has_heads, int normalized, float eps, "

PACKED = SPLIT + "bool silu, int pad_slot_id, int? first_column, bool keeps_padding"

STEP = (
    SPLIT + "bool silu, bool disable_state_update, int pad_slot_id, int? first_column, int? max_query_len, "
    "bool keeps_padding"
)

OPTIONS = {
    "causal_conv1d_fn": "bool return_final_states, bool silu",
    "causal_conv1d_gated_fn": "bool return_final_states, bool silu",
    "causal_conv1d_bwd": "bool silu, bool float32_gradients",
    "causal_conv1d_varlen_fn": PACKED,
    "causal_conv1d_varlen_with_extras": PACKED.replace(
        "bool keeps", "bool in_place, bool by_token, bool outs_by_token, bool keeps"
    ),
    "causal_conv1d_varlen_by_blocks": SPLIT + "bool silu, int pad_slot_id, int? first_column, int block_size",
    "causal_conv1d_varlen_bwd": "bool silu, bool float32_gradients, int pad_slot_id",
    "causal_conv1d_varlen_states": "SymInt state_len",
    "causal_conv1d_update": STEP,
    "causal_conv1d_update_with_extras": STEP.replace("bool keeps", "bool by_token, bool keeps"),
    "causal_conv1d_update_by_blocks": STEP,
    "selective_scan_fn": "bool delta_softplus, bool return_last_state, bool keep_chunk_states",
    "selective_scan_bwd": "bool delta_softplus, bool is_packed",
    "selective_scan_varlen_fn": "bool delta_softplus, int pad_slot_id, bool keeps_padding",
    "selective_scan_varlen_with_extras": "bool delta_softplus, int pad_slot_id, bool has_seed, int philox_rounds, "
    "bool keeps_padding, int? seed",
    "selective_scan_varlen_by_blocks": "bool delta_softplus, int pad_slot_id, int block_size",
    "selective_state_update": "bool dt_softplus, bool disable_state_update, int pad_slot_id, bool has_seed, "
    "int philox_rounds, bool keeps_padding, int? seed",
    "selective_state_update_replay": "int window, bool? fold, bool empty, bool dt_softplus, int pad_slot_id, "
    "bool has_seed, int philox_rounds, bool keeps_padding, int? seed",
    "selective_state_update_commit": "int ring_rows, int window, bool reset, int pad_slot_id",
    "selective_state_update_materialise": "int window, int pad_slot_id",
    turn.operation.name: "",
}
"""Schemas of the arguments of each operation besides arrays; a Split is four arguments."""

KEEPING = tuple(name for name, options in OPTIONS.items() if "bool keeps_padding" in options)
"""The operations that can leave old contents in their results."""

SEEDED = tuple(name for name, options in OPTIONS.items() if "int? seed" in options)
"""The operations that may round at random."""

WITHOUT_RESULTS = ("selective_state_update_commit", "selective_state_update_materialise")
"""The operations that only update arguments."""

UPDATED = (
    *("conv_states", "conv_state", "intermediate_conv_window", "ssm_states", "x_ring", "B_ring", "dt_ring", "cursors"),
    *("state", "intermediate_states_buffer", "state_scale", "intermediate_state_scales", "snapshot_out", "payload"),
    "snapshot_scale",
    "retrieve_parent_token",
)
"""The arguments that operators write to."""

UPDATING = tuple(name for name in OPTIONS if set(UPDATED) & set(Operation.named[name].inputs))
"""The operations that write to arguments."""

TORCH_DTYPES: dict[DType, torch.dtype] = {
    dtype: getattr(torch, name) for name, dtype in {**BY_NAME, "float64": FLOAT64}.items()
}
DTYPES = {of_torch: dtype for dtype, of_torch in TORCH_DTYPES.items()}

_forward_mode = torch.autograd.forward_ad

NOT_FOLLOWED = (
    "cuconv has no batching rule and no forward-mode derivative for {}: torch.vmap, torch.func transforms and "
    "torch.autograd.forward_ad cannot follow it; call it on a batch and differentiate with torch.autograd"
)


def is_transformed() -> bool:
    """Whether a transform of torch.func or forward-mode differentiation is active."""
    functorch: bool = torch._C._are_functorch_transforms_active()
    return functorch or _forward_mode._current_level >= 0


def refuse_transforms(function: str) -> None:
    """RuntimeError while a transform of torch.func or forward-mode differentiation is active."""
    if is_transformed():
        raise RuntimeError(NOT_FOLLOWED.format(function))


def call(
    operation: Operation[Any],
    given: tuple[Any, ...],
    options: tuple[Any, ...],
    outputs: tuple[str, ...] | None,
    late: Late = NO_NUMBERS,
) -> Sequence[Any]:
    """The results of a call on tensors that torch traces, that autograd follows, or that have no memory."""
    traced = torch.compiler.is_compiling()
    if not traced:
        refuse_transforms(operation.name)
    # A program of torch.jit.trace cannot be saved with functions of autograd, so it has operators, without gradients.
    if torch.is_grad_enabled() and (traced or not is_in_jit_trace()):
        for each in given:
            if each is not None and each.requires_grad:
                return derivatives.call(operation, given, options, outputs, traced)
    return _operate(operation, given, options, outputs, late)


def _operate(
    operation: Operation[Any],
    given: tuple[Any, ...],
    options: tuple[Any, ...],
    outputs: tuple[str, ...] | None,
    late: Late,
) -> list[Any]:
    """The results of the operator. It makes all of them itself; those that the caller wants elsewhere are copied."""
    names, count = operation.outputs if outputs is None else outputs, len(operation.inputs)
    inputs, targets = given[:count], given[count:]
    if operation.name in KEEPING and options[-1]:
        raise ValueError(message("pad_output", "'keep'", "'zero' where torch traces: its operators make new results"))
    if operation.name == "selective_scan_fn":
        options = (*options[:2], options[2] or targets[2] is not None)
    if operation.name in SEEDED:
        options = (*options, late.get("seed"))
    made = getattr(torch.ops.cuconv, _variant(operation.name, len(names)))(*inputs, *_encoded(options))
    if len(names) == 1 and operation.name in UPDATING:
        made = (made,)
    results: list[Any] = []
    number = 0
    for name, target in zip(names, targets, strict=True):
        if _is_made(operation, name, inputs, options):
            results.append(made[number] if target is None else copied(name, target, made[number]))
            number += 1
        elif target is None:
            results.append(None)
        else:
            raise ValueError(message(name, "a tensor", "None: the call has no such result"))
    return results


def copied(argument: str, target: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """The target, after the result was copied to it. Raises where shape or dtype differ: copy_ would repeat and
    convert."""
    if target.device != result.device:
        raise ValueError(message(argument, f"a tensor on {target.device}", f"{result.device}, where the others are"))
    checks.dtype(argument, _dtype(target), (_dtype(result),))
    checks.shape(argument, tuple(target.shape), tuple(result.shape), "the shape of the result")
    return target.copy_(result)


def _variant(name: str, results: int) -> str:
    """The name of the operator that returns this many results.

    torch cannot functionalise an operator that updates arguments and returns a list. So such an operator returns
    separate tensors, with a variant for every number of them.
    """
    return f"{name}_to_{results}" if results > 1 and name in UPDATING else name


def _is_made(operation: Operation[Any], name: str, inputs: Sequence[Any], options: Sequence[Any]) -> bool:
    """Whether a call has this result."""
    if operation.name in ("causal_conv1d_bwd", "causal_conv1d_varlen_bwd", "selective_scan_bwd"):
        return inputs[operation.inputs.index(name[1:])] is not None
    if operation.name in ("causal_conv1d_fn", "causal_conv1d_gated_fn"):
        return name == "out" or bool(options[0])
    if operation.name == "selective_scan_fn":
        return name == "out" or bool(options[1] if name == "last_state_out" else options[2])
    return True


def _encoded(options: tuple[Any, ...]) -> tuple[Any, ...]:
    """Options in the form of a schema."""
    encoded: list[Any] = []
    for option in options:
        if isinstance(option, Split):
            ranges = None if option.ranges is None else [number for pair in option.ranges for number in pair]
            encoded += [ranges, option.has_heads, option.normalized, option.eps]
        else:
            # Integers of a schema are signed; a seed is not.
            encoded.append(option - 2**64 if type(option) is int and option >= 2**63 else option)
    return tuple(encoded)


def _decoded(operation: Operation[Any], options: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[str, ...] | None, Late]:
    """From a schema's options: the operation's, the names of its results where they vary by call, and late numbers."""
    if operation.name in SEEDED:
        *others, seed = options
        return tuple(others), None, NO_NUMBERS if seed is None else {"seed": seed % 2**64}
    if operation.outputs or operation.name in WITHOUT_RESULTS:
        return tuple(options), None, NO_NUMBERS
    ranges, has_heads, normalized, eps, *others = options
    split = _split(None if ranges is None else tuple(ranges), has_heads, normalized, eps)
    return (split, *others), split.names, NO_NUMBERS


# Splits are compared by identity, so equal ones must be one object.
@lru_cache(maxsize=4096)
def _split(ranges: tuple[int, ...] | None, has_heads: bool, normalized: int, eps: float) -> Split:
    if ranges is None:
        return WHOLE
    argument = "num_q_heads * head_q, num_k_heads * head_k, num_v_heads * head_v" if has_heads else "sizes"
    return split_of(argument, tuple(zip(ranges[::2], ranges[1::2], strict=True)), has_heads, normalized, eps)


def _returned(operation: Operation[Any], results: list[torch.Tensor]) -> Any:
    if operation.name in WITHOUT_RESULTS:
        return None
    if operation.name not in UPDATING:
        return results
    return results[0] if len(results) == 1 else tuple(results)


def _run(operation: Operation[Any], *arguments: Any) -> Any:
    """What the operator does: an eager call."""
    count = len(operation.inputs)
    options, outputs, late = _decoded(operation, arguments[count:])
    names = operation.outputs if outputs is None else outputs
    with torch.no_grad():
        given = (*arguments[:count], *[None] * len(names))
        results = operation(given, options, outputs, late, may_be_traced=False)
    return _returned(operation, [result for result in results if result is not None])


def _run_fake(operation: Operation[Any], *arguments: Any) -> Any:
    """Empty tensors, laid out like the results of the operator; raises for arguments that do not fit."""
    count = len(operation.inputs)
    tensors = arguments[:count]
    options, outputs, _ = _decoded(operation, arguments[count:])
    names = operation.outputs if outputs is None else outputs
    layouts = {
        name: None if each is None else _layout(each) for name, each in zip(operation.inputs, tensors, strict=True)
    }
    made = operation.layouts_of_results({**layouts, **dict.fromkeys(names)}, options)
    leader = next(each for each in tensors if each is not None)
    results = []
    for name in names:
        if (layout := made.get(name)) is not None:
            assert isinstance(layout.dtype, DType)
            results.append(leader.new_empty_strided(layout.shape, layout.strides, dtype=TORCH_DTYPES[layout.dtype]))
    return _returned(operation, results)


def _layout(tensor: torch.Tensor) -> Layout:
    device = HOST if tensor.device.type in ("cpu", "meta") else tensor.device.index or 0
    return Layout(tuple(tensor.shape), tuple(tensor.stride()), _dtype(tensor), device, 0)


def _dtype(tensor: torch.Tensor) -> DType | str:
    return DTYPES.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))


def _define() -> torch.library.Library:
    library = torch.library.Library("cuconv", "DEF")
    for name, options in OPTIONS.items():
        operation = Operation.named[name]
        letters = iter("abcdefgh")
        # A schema's names have no brackets.
        names = [each.replace("[", "_").replace("]", "") for each in operation.inputs]
        inputs = [f"Tensor({next(letters)}!)? {each}" if each in UPDATED else f"Tensor? {each}" for each in names]
        arguments = ", ".join([*inputs, options] if options else inputs)
        run: Callable[..., Any] = partial(_run, operation)
        has_one = operation.outputs or name in WITHOUT_RESULTS
        for results in range(1, 2 if has_one else MAX_RANGES + 1):
            variant = _variant(name, results)
            returned = f"({', '.join(['Tensor'] * results)})" if name in UPDATING else "Tensor[]"
            if name in WITHOUT_RESULTS:
                returned = "()"
            library.define(f"{variant}({arguments}) -> {returned}")
            for key in ("CPU", "CUDA"):
                library.impl(variant, run, key)
            torch.library.register_fake(f"cuconv::{variant}", partial(_run_fake, operation), lib=library)
    return library


_library = _define()

# Later calls come here directly.
_runner.through_torch = call
