"""Calls on arrays that stay where they are on a GPU while their contents change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests import cases
from tests.families.test_numerics import place_arguments
from tests.support.compare import check_results
from tests.support.gpu import CupyArrays, TorchTensors

BATCHES = ("20+3+0+40+off2", "1+30+33+0+off1", "0+0+0+0+off65", "65+0+0+0")
"""Batches of equally many sequences, with equally many tokens in all."""


Similar = list[Any]
"""Cases that differ only in what their arrays hold."""


def of_batches(function: str, *fixed: Any, **options: Any) -> Similar:
    """Packed sequences: other ones."""
    return [cases.kind(function)(fixed[0], batch, *fixed[1:], **options) for batch in BATCHES]


def varied(function: str, *fixed: Any, changes: list[dict[str, Any]], **options: Any) -> Similar:
    """Others: other numbers and values, as these changes of the case make them."""
    return [replace(cases.kind(function)(*fixed, **options), **change) for change in changes]


def of_steps(function: str, *fixed: Any, **options: Any) -> Similar:
    """Decode steps of convolutions."""
    changes: Any = [{"slots": slots, "scale": scale} for scale in (1.0, 2.0) for slots in ("odd", "permuted")]
    return varied(function, *fixed, changes=changes, **options)


def of_updates(*fixed: Any, **options: Any) -> Similar:
    """Updates of state spaces."""
    changes: Any = [{"odd": odd, "loud": loud} for loud in (1.0, 2.0) for odd in (True, False)]
    return varied("selective_state_update", *fixed, changes=changes, dtype="float32", **options)


ODD: Any = {"slots": "odd", "index": "int64"}
WINDOWS: Any = {"window": "channels", "rows": True}
SCAN: Any = {"dtype": "float32", "without": "chunk_states_out"}
LOUD: Any = [{"loud": loud} for loud in (1.0, 2.0, 4.0, 8.0)]
PACKED_STEPS: Any = [{"batch": batch} for batch in ("3+1+0+2+off2", "1+4+2+0+off1", "0+0+0+0+off8", "8+0+0+0")]
PACKED_TOKENS: Any = [
    {"lengths": lengths, "behind": behind}
    for lengths, behind in (((3, 1, 0, 2), 2), ((1, 4, 2, 0), 1), ((0, 0, 0, 0), 8), ((8, 0, 0, 0), 0))
]
SCALES: Any = [{"scale": scale} for scale in (1.0, 2.0, 4.0)]
DENSE: Any = {"seq_idx": True, "initial": True, "final": True}
CALLS: dict[str, Similar] = {
    "rows": varied("causal_conv1d_fn", 2, 24, 65, 4, "float32", changes=SCALES, **DENSE),
    "columns": varied("causal_conv1d_fn", 2, 24, 65, 4, "float32", layout="channel_last", changes=SCALES, **DENSE),
    "channels": of_batches("causal_conv1d_varlen_fn", 24, 4, "float32", **ODD),
    "tokens": of_batches("causal_conv1d_varlen_fn", 24, 4, "float32", layout="tokens", initial="all"),
    "split": of_batches("causal_conv1d_split", (16, 5, 3), 4, "float32", **ODD),
    "qkv": of_batches("causal_conv1d_qkv_split", (1, 1, 2, 8, 8, 4), 4, "float32", **ODD),
    "normalised": of_batches("causal_conv1d_qkv_split", (1, 1, 2, 8, 8, 4), 4, "float32", l2norm=True),
    "states": of_batches("causal_conv1d_varlen_states", 24, 4, "float32"),
    "step": of_steps("causal_conv1d_update", 24, 5, None, 4, "float32", pool="columns_and_one"),
    "ring": of_steps("causal_conv1d_update", 24, 5, 3, 4, "float32", mode="circular", index="int64", **WINDOWS),
    "accepted": of_steps("causal_conv1d_update", 24, 5, 3, 4, "float32", mode="accepted", index="mixed"),
    "step_packed": varied("causal_conv1d_update", 24, 4, None, 4, "float32", slots="odd", changes=PACKED_TOKENS),
    "step_tree": of_steps("causal_conv1d_update", 24, 5, 4, 4, "float32", tree=True, token_slots=2, **WINDOWS),
    "step_split": of_steps("causal_conv1d_update_split", (16, 5, 3), 5, None, 4, "float32", mode="circular"),
    "step_qkv": of_steps("causal_conv1d_update_qkv_split", (1, 1, 2, 8, 8, 4), 5, 3, 4, "float32"),
    "scan": varied("selective_scan_fn", 2, 24, 65, changes=LOUD, **SCAN),
    "scan_packed": of_batches("selective_scan_varlen_fn", 24, 16, None, "float32", **ODD),
    "ssm": of_updates(7, 0, 24, 16, index="int64"),
    "ssm_tokens": of_updates(7, 4, 6, 16, 2, tokens=3, per_head="all", targets="one", steps="row"),
    "ssm_accepted": of_updates(7, 4, 6, 16, 2, tokens=2, accepted=True, columns=3, index="mixed"),
    "ssm_rounded": of_updates(7, 4, 6, 16, 2, per_head="all", state_dtype="float16", seed="array"),
    "ssm_packed": varied(
        *("selective_state_update", "1", 4, 6, 16, 2), changes=PACKED_STEPS, dtype="float32", targets="each", columns=3
    ),
}


class Fixed:
    """A call's arrays on the GPU, into which the contents of similar calls' go."""

    def __init__(self, library: str, case: Any) -> None:
        self.library = pytest.importorskip(library)
        self._copies = CupyArrays if library == "cupy" else TorchTensors
        self._case = case
        self._before = place_arguments(case)
        self._uploaded = {name: self._copies.upload(placed) for name, placed in self._before.items()}
        self.arrays = {name: view for name, (_, view) in self._uploaded.items()}

    def take(self, other: Fixed) -> None:
        """Hold what a similar call's arrays hold, and expect its results; copies on the current stream."""
        self._case, self._before = other._case, other._before
        for name, (new, _) in other._uploaded.items():
            old = self._uploaded[name][0]
            if self._copies is CupyArrays:
                old.data.copy_from_device_async(new.data, old.nbytes)
            else:
                old.copy_(new)

    def __call__(self, *, with_outputs: bool = True, **changes: Any) -> Any:
        arrays = {name: each for name, each in self.arrays.items() if with_outputs or name not in self._case.OUTPUTS}
        return self._case.call(arrays, **changes)

    def wait(self) -> None:
        self.library.cuda.Device().synchronize() if self._copies is CupyArrays else self.library.cuda.synchronize()

    def check(self) -> None:
        """What the call should have written is there; waits for the device."""
        self.wait()
        after = {name: self._copies.download(buffer) for name, (buffer, _) in self._uploaded.items()}
        check_results(self._case, self._before, after)
