"""Other libraries are called as their own signatures say, on the arrays that they want, and what they do is found.

In their place stand functions of the same signatures that insist on what the libraries do and compute with NumPy, so
that an argument in the wrong place, or a result or state looked for where it is not, gives wrong numbers.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from cuconv.bench import measure
from cuconv.bench.makers import MAKERS
from cuconv.bench.peers import eager, found
from cuconv.bench.results import Kernel
from tests.support.bench_machine import FakeMachine
from tests.support.bench_stubs import STUBS, mamba_forward, vllm_forward, vllm_update

SIZES: dict[str, Any] = {"dim": 16, "dtype": "bfloat16"}
MAMBA2: dict[str, Any] = {"nheads": 4, "headdim": 8, "ngroups": 2, "d_state": 32, "batch": 3}


class Tensor(np.ndarray[Any, Any]):
    """What of torch's tensors NumPy's arrays lack."""

    def contiguous(self) -> Any:
        return self.copy()

    def clone(self) -> Any:
        return self.copy("K")


class TensorsOfNumpy(FakeMachine):
    """Tensors that need no torch."""

    def tensors(self, arrays: Any) -> Any:
        return {name: array.view(Tensor) for name, array in arrays.items()}


class TorchOnCpu(FakeMachine):
    """Tensors as libraries get them, but of the CPU's memory."""

    def tensors(self, arrays: Any) -> Any:
        return {name: to_torch(array) for name, array in arrays.items()}

    def cut(self, workload: Any, name: str, array: Any) -> Any:
        return super().cut(workload, name, to_numpy(array))


def to_torch(array: Any) -> Any:
    torch = sys.modules["torch"]
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def to_numpy(value: Any) -> Any:
    torch = sys.modules["torch"]
    if not isinstance(value, torch.Tensor):
        return value
    if value.dtype is torch.bfloat16:
        return value.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return value.numpy()


def on_tensors(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function on tensors, whose memory it shares."""

    def back(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(back, value))
        return to_torch(value) if isinstance(value, np.ndarray) else value

    @wraps(function)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        return back(function(*map(to_numpy, arguments), **{name: to_numpy(value) for name, value in named.items()}))

    return wrapped


@pytest.fixture(params=["numpy", *(["torch"] if find_spec("torch") else [])])
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    """With the stubs in the libraries' places; on torch's own tensors, too, where it is installed."""
    if request.param == "torch":
        importlib.import_module("torch")
    for name, functions in STUBS.items():
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            place = ".".join(parts[:end])
            if place not in sys.modules or not hasattr(sys.modules[place], "is_stub"):
                module = ModuleType(place)
                module.__dict__.update(is_stub=True, __path__=[])
                monkeypatch.setitem(sys.modules, place, module)
        for attribute, function in functions.items():
            wrapped = on_tensors(function) if request.param == "torch" else function
            monkeypatch.setattr(sys.modules[name], attribute, wrapped, raising=False)
    return TorchOnCpu() if request.param == "torch" else TensorsOfNumpy()


def row(machine: FakeMachine, library: str, function: str, **sizes: Any) -> Kernel | None:
    """What is measured of a library; None where it does not take part."""
    loaded, missing = found.find([library], [function])
    assert not missing
    rows = measure.kernels(machine, MAKERS[function](**sizes), loaded)
    assert rows[0].is_right and [row.library for row in rows[1:]] in ([], [library])
    return rows[1] if rows[1:] else None


RAGGED = {"sequences": "7+1+20+2", **SIZES}
RIGHT: list[tuple[str, str, dict[str, Any], str]] = [
    *(
        ("causal_conv1d", "causal_conv1d_fn", {**SIZES, "batch": 2, "seqlen": 50, **more}, "")
        for more in (
            {"contiguous": "channels"}, {"contiguous": "tokens"}, {"bias": False}, {"silu": False, "width": 3},
            {"contiguous": "tokens", "dim": 12},
        )
    ),
    *(
        ("causal_conv1d", "causal_conv1d_update", {**SIZES, "batch": 5, **more}, "")
        for more in ({"contiguous": "channels"}, {"contiguous": "tokens"}, {"tokens": 3}, {"silu": False})
    ),
    ("causal_conv1d", "causal_conv1d_varlen_states", {**RAGGED, "state_len": 4}, ""),
    *(
        ("causal_conv1d", "causal_conv1d_bwd", {**SIZES, "batch": 2, "seqlen": 50, **more}, "")
        for more in ({}, {"contiguous": "tokens", "dim": 12}, {"silu": False, "width": 3})
    ),
    ("mamba_ssm", "selective_scan_fn", {**SIZES, "seqlen": 40}, ""),
    ("mamba_ssm", "selective_scan_fn", {**SIZES, "seqlen": 40, "contiguous": "channels"}, "copies to contiguous"),
    ("mamba_ssm", "selective_scan_bwd", {**SIZES, "batch": 2, "seqlen": 40, "states": False}, "with the states"),
    *(
        ("mamba_ssm", "selective_state_update", {**MAMBA2, **more}, "")
        for more in ({}, {"indices": True}, {"nheads": 0}, {"state_dtype": "float32"})
    ),
    ("flashinfer", "selective_state_update", MAMBA2, ""),
    ("flashinfer", "selective_state_update", {**MAMBA2, "indices": True, "state_dtype": "float32"}, ""),
    *(
        ("fla", "causal_conv1d_fn", {**SIZES, "batch": 2, "seqlen": 50, "contiguous": "channels", **more}, "")
        for more in ({}, {"width": 7, "bias": False}, {"silu": False})
    ),
    *(
        ("fla", "causal_conv1d_bwd", {**SIZES, "batch": 2, "seqlen": 50, **more}, "")
        for more in ({}, {"width": 7, "bias": False}, {"silu": False})
    ),
    ("fla", "causal_conv1d_varlen_fn", {**RAGGED, "contiguous": "channels"}, "states gathered"),
    ("fla", "causal_conv1d_update", {**SIZES, "batch": 5, "contiguous": "tokens"}, ""),
    *(
        ("megatron", "causal_conv1d_update", {**SIZES, "batch": 5, **more}, "")
        for more in ({"contiguous": "channels"}, {"contiguous": "tokens"}, {"silu": False, "bias": False})
    ),
    ("vllm", "causal_conv1d_varlen_fn", {**RAGGED, "contiguous": "channels"}, ""),
    ("vllm", "causal_conv1d_varlen_fn", {**RAGGED, "contiguous": "channels", "bias": False, "silu": False}, ""),
    ("vllm", "causal_conv1d_update", {**SIZES, "batch": 5}, "writes over x"),
    ("vllm", "selective_scan_varlen_fn", RAGGED, "writes over z"),
    *(("vllm", "selective_state_update", {**MAMBA2, **more}, "") for more in ({}, {"indices": True}, {"nheads": 0})),
]  # fmt: skip


@pytest.mark.parametrize(("library", "function", "sizes", "note"), RIGHT)
def test_a_library_is_right(machine: FakeMachine, library: str, function: str, sizes: Any, note: str) -> None:
    theirs = row(machine, library, function, **sizes)
    assert theirs is not None and theirs.is_right, theirs and theirs.note
    assert theirs.kernel_us is not None
    assert theirs.note.startswith(note) and bool(theirs.note) == bool(note)


@pytest.mark.parametrize(
    ("library", "function", "sizes"),
    [
        ("causal_conv1d", "causal_conv1d_fn", {"dim": 12, "seqlen": 50, "contiguous": "channels"}),
        ("causal_conv1d", "causal_conv1d_fn", {**SIZES, "seqlen": 50, "width": 5}),
        ("causal_conv1d", "causal_conv1d_update", {**SIZES, "width": 5}),
        ("causal_conv1d", "causal_conv1d_bwd", {"dim": 12, "seqlen": 50}),
        ("causal_conv1d", "causal_conv1d_bwd", {**SIZES, "seqlen": 50, "states": True}),
        ("causal_conv1d", "causal_conv1d_bwd", {**SIZES, "seqlen": 50, "bias": False}),
        ("fla", "causal_conv1d_bwd", {**SIZES, "seqlen": 50, "contiguous": "tokens"}),
        ("mamba_ssm", "selective_scan_bwd", {**SIZES, "seqlen": 40}),
        ("mamba_ssm", "selective_scan_bwd", {**SIZES, "seqlen": 40, "states": False, "contiguous": "channels"}),
        ("mamba_ssm", "selective_state_update", {**MAMBA2, "tokens": 2}),
        ("flashinfer", "selective_state_update", {**MAMBA2, "tokens": 2}),
        ("flashinfer", "selective_state_update", {**MAMBA2, "nheads": 0}),
        ("flashinfer", "selective_state_update", {**MAMBA2, "d_state": 16}),
        ("fla", "causal_conv1d_fn", {**SIZES, "seqlen": 50, "contiguous": "tokens"}),
        ("fla", "causal_conv1d_varlen_fn", {**RAGGED, "contiguous": "tokens"}),
        ("fla", "causal_conv1d_update", {**SIZES, "contiguous": "channels"}),
        ("fla", "causal_conv1d_update", {**SIZES, "contiguous": "tokens", "tokens": 2}),
        ("megatron", "causal_conv1d_update", {**SIZES, "tokens": 2}),
        ("vllm", "causal_conv1d_varlen_fn", {**RAGGED, "contiguous": "tokens"}),
        ("vllm", "causal_conv1d_update", {**SIZES, "contiguous": "tokens"}),
        ("vllm", "causal_conv1d_update", {**SIZES, "tokens": 2}),
        ("vllm", "selective_scan_varlen_fn", {**RAGGED, "contiguous": "channels"}),
        ("vllm", "selective_state_update", {**MAMBA2, "tokens": 2}),
    ],
)
def test_a_library_is_not_asked_for_what_it_has_not(
    machine: FakeMachine, library: str, function: str, sizes: Any
) -> None:
    assert row(machine, library, function, **sizes) is None


def test_slot_0_is_one_as_the_others_under_either_name() -> None:
    from cuconv.bench.peers.vllm import every_slot

    assert every_slot(vllm_forward) == {"pad_slot_id": -1}
    assert every_slot(vllm_update) == {"null_block_id": -1}


@pytest.mark.parametrize("takes_device", [False, True])
def test_what_vllm_finds_out_on_the_host_is_found_out_before(
    monkeypatch: pytest.MonkeyPatch, takes_device: bool
) -> None:
    torch = pytest.importorskip("torch")
    from cuconv.bench.peers import vllm

    module = ModuleType("utils")
    if takes_device:
        module.compute_causal_conv1d_metadata = lambda cpu, *, device: ({8: cpu.tolist()}, device.type, 3)
    else:
        module.compute_causal_conv1d_metadata = lambda starts: ({8: starts.tolist()}, "cpu", 3)
    monkeypatch.setattr(vllm, "METADATA", "cuconv_test_utils")
    monkeypatch.setitem(sys.modules, "cuconv_test_utils", module)
    made = vllm.programs(torch.tensor([0, 3, 5]))
    assert (made.nums_dict, made.batch_ptr, made.token_chunk_offset_ptr) == ({8: [0, 3, 5]}, "cpu", 3)


@pytest.mark.parametrize(
    ("function", "sizes"),
    [
        *(
            ("causal_conv1d_fn", {**SIZES, "batch": 2, "seqlen": 50, **more})
            for more in ({"contiguous": "channels"}, {"bias": False, "dtype": "float32"}, {"silu": False, "width": 6})
        ),
        *(
            ("causal_conv1d_update", {**SIZES, "batch": 5, **more})
            for more in ({}, {"contiguous": "tokens"}, {"tokens": 3}, {"tokens": 5, "contiguous": "tokens"})
        ),
        *(
            ("selective_state_update", {**MAMBA2, **more})
            for more in ({}, {"indices": True}, {"nheads": 0}, {"dtype": "float32"}, {"state_dtype": "float32"})
        ),
    ],
)
def test_torch_itself_is_right(monkeypatch: pytest.MonkeyPatch, function: str, sizes: Any) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(eager, "check", lambda: None)
    theirs = row(TorchOnCpu(), "torch", function, **sizes)
    assert theirs is not None and theirs.is_right, theirs and theirs.note


def test_stubs_take_what_peers_are_known_to(machine: FakeMachine) -> None:
    """Every function that is called has a stub, so none of these tests is about nothing."""
    stubs = {function for functions in STUBS.values() for function in functions.values()}
    others = [peer for peer in found.PEERS if peer.library != "torch"]
    # The backward scan's peer calls this one, too, for the states that it takes.
    assert {inspect.unwrap(peer.load()) for peer in others} == stubs - {mamba_forward}
    assert {(peer.library, peer.function) for peer in others} == {(case[0], case[1]) for case in RIGHT}


def test_names_of_libraries() -> None:
    assert found.libraries("none") == () and found.libraries("all") == found.LIBRARIES
    assert found.libraries("fla,torch") == ("fla", "torch")
    with pytest.raises(ValueError, match=r"^peers: got 'flaa'; wanted one of none, all, causal_conv1d"):
        found.libraries("fla,flaa")


def test_what_is_missing_or_broken_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*sys.modules]:
        if name.partition(".")[0] in ("fla", "flashinfer", "causal_conv1d"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr("sys.meta_path", [Broken(), *sys.meta_path])
    functions = ["causal_conv1d_fn", "selective_state_update"]
    loaded, missing = found.find(["fla", "flashinfer", "causal_conv1d"], functions)
    assert not loaded
    assert missing == {
        "causal_conv1d": "undefined symbol: _ZN3c10",
        "flashinfer": "No module named 'flashinfer'",
        "fla": "No module named 'fla'",
    }
    assert found.find([], functions) == found.find(["fla"], ["selective_scan_fn"]) == ([], {})


class Broken:
    """An import system without these libraries, but for one that is there and does not work."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name == "causal_conv1d":
            raise OSError("undefined symbol: _ZN3c10\nand more")
        if name.partition(".")[0] in ("fla", "flashinfer"):
            raise ModuleNotFoundError(f"No module named {name.partition('.')[0]!r}")


def test_versions_are_those_that_libraries_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    telling, silent = ModuleType("telling"), ModuleType("silent")
    telling.__version__ = "1.2"  # type: ignore[attr-defined]
    for module in (telling, silent):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    peers = [found.Loaded(replace(found.PEERS[0], library=name), min) for name in ("telling", "silent", "telling")]
    assert found.versions(peers) == {"telling": "1.2", "silent": ""}
