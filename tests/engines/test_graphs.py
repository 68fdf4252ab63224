"""Adapters in CUDA graphs: what they compute beside cuconv's kernels waits for nothing and is replayed, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from cuconv.engines import (  # noqa: E402
    _tensors,
    sglang,
    tokenspeed,
    vllm,
)
from tests.engines.tensors import indices, normal, starts  # noqa: E402

pytestmark = pytest.mark.gpu

DIM, WIDTH, BATCH, TOKENS, SLOTS = 16, 4, 3, 4, 40


def given(device: str, seed: int) -> dict[str, Any]:
    """The tensors of a call; those of another seed have the same sizes."""
    generator = torch.Generator().manual_seed(seed)
    slots = (torch.randperm(SLOTS - 1, generator=generator) + 1).int()
    chains = [[1, 2, 3, -1], [1, 3, -1, -1], [1, -1, -1, -1]]
    siblings = [[-1, -1, -1, -1], [-1, 2, -1, -1], [-1, 2, 3, -1]]
    computed = torch.randint(0, 40, (BATCH,), generator=generator).int()
    return {
        "x": normal(device, BATCH, DIM, TOKENS, seed=seed),
        "packed": normal(device, 60, DIM, seed=seed),
        "pool": normal(device, SLOTS, DIM, WIDTH + 3, seed=seed + 1),
        "slots": slots[:BATCH].to(device),
        "children": indices(device, *(chains[(i + seed) % 3] for i in range(BATCH))),
        "siblings": indices(device, *(siblings[(i + seed) % 3] for i in range(BATCH))),
        "windows": torch.zeros(BATCH, TOKENS, DIM, WIDTH - 1, device=device),
        "parents": torch.zeros(BATCH, TOKENS, dtype=torch.int32, device=device),
        "table": slots[: BATCH * 12].view(BATCH, 12).to(device),
        "starts": starts(device, (20, 20, 20) if seed % 2 else (31, 9, 20)),
        "computed": computed.to(device),
    }


def tree(t: dict[str, Any], weight: Any) -> Any:
    return sglang.causal_conv1d_update(
        *(t["x"], t["pool"], weight, None, True, None, t["slots"]),
        intermediate_conv_window=t["windows"], intermediate_state_indices=_tensors.positions(t["x"], BATCH),
        retrieve_next_token=t["children"], retrieve_next_sibling=t["siblings"], retrieve_parent_token=t["parents"],
    )  # fmt: skip


def windows(t: dict[str, Any], weight: Any) -> Any:
    return tokenspeed.causal_conv1d_update(
        t["x"], t["pool"], weight, None, True, None, t["slots"], intermediate_conv_window=t["windows"]
    )


def moving_windows(t: dict[str, Any], weight: Any) -> Any:
    return tokenspeed.causal_conv1d_update(t["x"], t["pool"], weight, None, True, None, t["slots"])


def blocks(t: dict[str, Any], weight: Any) -> Any:
    ends = t["computed"] + t["starts"].diff()
    return vllm.causal_conv1d_fn(
        *(t["packed"].T, weight, None, t["pool"], t["starts"], t["table"], t["computed"] > 0),
        block_idx_first_scheduled_token=t["computed"] // 16, block_idx_last_scheduled_token=(ends - 1) // 16,
        initial_state_idx=((t["computed"] - 1) // 16).clamp(min=0), num_computed_tokens=t["computed"],
        block_size_to_align=16,
    )  # fmt: skip


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU")
@pytest.mark.parametrize("call", [tree, windows, moving_windows, blocks])
@pytest.mark.parametrize("is_warm", [False, True])
def test_a_replay_computes_what_a_call_does(call: Callable[..., Any], is_warm: bool) -> None:
    device, weight = "cuda", normal("cuda", DIM, WIDTH)
    call(given(device, 5), weight)
    if not is_warm:
        _tensors._constants.clear()
    captured = given(device, 0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call(captured, weight)
    for seed in (1, 2):
        wanted, current = given(device, seed), given(device, seed)
        result = call(wanted, weight)
        for name, tensor in captured.items():
            tensor.copy_(current[name])
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, result)
        for name, tensor in captured.items():
            assert torch.equal(tensor, wanted[name]), name
