"""Workloads by public function, and from text."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from cuconv.causal_conv1d import workloads as conv
from cuconv.runtime.workload import Workload
from cuconv.selective_scan import workloads as scan
from cuconv.selective_state_update import workloads as decode

MAKERS: dict[str, Callable[..., Workload]] = {
    maker.__name__: maker
    for maker in (
        conv.causal_conv1d_fn,
        conv.causal_conv1d_varlen_fn,
        conv.causal_conv1d_split,
        conv.causal_conv1d_qkv_split,
        conv.causal_conv1d_varlen_states,
        conv.causal_conv1d_update,
        conv.causal_conv1d_update_split,
        conv.causal_conv1d_update_qkv_split,
        decode.selective_state_update,
        scan.selective_scan_fn,
        scan.selective_scan_varlen_fn,
    )
}
"""By public function."""


def parse(function: str, sizes: str) -> Workload:
    """The workload that "batch=8,dim=4096" describes; what it leaves out is as the maker has it.

    ValueError naming what is wrong. A value that itself has commas goes last: "width=4,parts=64,32,32".
    """
    known = inspect.signature(MAKERS[function]).parameters
    found: dict[str, str] = {}
    name = ""
    for word in filter(None, sizes.split(",")):
        left, equals, right = word.partition("=")
        if equals:
            name, found[left] = left, right
        elif name:
            found[name] += f",{word}"
        else:
            raise ValueError(f"shape: got {word!r}; wanted name=value")
    if unknown := found.keys() - known.keys():
        raise ValueError(f"shape: got {min(unknown)!r}; wanted one of {', '.join(known)}")
    return MAKERS[function](**{name: _value(name, text, known[name].default) for name, text in found.items()})


def _value(name: str, text: str, default: Any) -> Any:
    """Text as what the maker's default is."""
    if isinstance(default, bool):
        if text not in ("0", "1", "false", "true"):
            raise ValueError(f"{name}: got {text!r}; wanted 0, 1, false or true")
        return text in ("1", "true")
    if isinstance(default, int):
        # Mamba has no heads, all else at least one of everything.
        least = 0 if name == "nheads" else 1
        if not text.isdecimal() or int(text) < least:
            raise ValueError(f"{name}: got {text!r}; wanted a whole number of at least {least}")
        return int(text)
    return text
