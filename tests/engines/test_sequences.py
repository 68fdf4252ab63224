"""What serving does to sequences leaves no trace: every result is that of one uninterrupted prefill.

Sequences are prefilled in chunks with snapshots inside them, start anew from a snapshot in another slot, and go on by
plain, speculative and tree steps, with slots that move. Convolutions give the same bits, for their states hold the
inputs exactly; scans and state updates agree within the rounding of float32.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import cuconv  # noqa: E402
from cuconv.engines import sglang, vllm  # noqa: E402
from tests.engines.tensors import EACH_DEVICE, indices, normal, starts, whole  # noqa: E402

DIM, WIDTH, D_STATE, DRAFTS, TOKENS, SEQUENCES = 6, 4, 3, 4, 60, 3
SLOTS = 60
NULL = 0


@dataclass
class Sequence:
    """One sequence: how far it is, and where its states are."""

    inputs: dict[str, Any]
    """Its tokens (dim or d_state, TOKENS), by the names of the scan's arguments, and x of the convolution."""
    wanted: dict[str, Any]
    """The results of an uninterrupted prefill, (dim, TOKENS): out of the convolution and y of the scan."""
    slots: list[int]
    """One slot per token of a speculative step; plain states are in the first."""
    position: int = 0
    accepted: int = 1
    """Tokens accepted of the last step: the convolution's window begins with column accepted - 1 of the first slot."""
    snapshots: list[tuple[int, int]] = field(default_factory=list)
    """Positions with the slots that keep their states."""
    source: int | None = None
    """The slot of the snapshot that it starts from next."""


class Server:
    """Pools of states, and the calls that step some of the sequences."""

    def __init__(self, device: str, dtype: Any, seed: int) -> None:
        self.device, self.dtype, self.random = device, dtype, random.Random(seed)
        self.free = list(range(1, SLOTS))
        self.random.shuffle(self.free)
        self.weight = normal(device, DIM, WIDTH, seed=1, dtype=dtype)
        self.bias = normal(device, DIM, seed=2, dtype=dtype)
        self.A, self.D = -normal(device, DIM, D_STATE, seed=3).abs(), normal(device, DIM, seed=4)
        self.dt_bias = normal(device, DIM, seed=5)
        self.windows = normal(device, SLOTS, WIDTH - 1 + DRAFTS - 1, DIM, seed=6, dtype=dtype).transpose(1, 2)
        self.states = normal(device, SLOTS, DIM, D_STATE, seed=7)
        self.sequences = [self.sequence(seed * SEQUENCES + i) for i in range(SEQUENCES)]

    def sequence(self, seed: int) -> Sequence:
        given = self.noise(TOKENS, seed)
        parameters = {"D": self.D, "delta_bias": self.dt_bias, "delta_softplus": True}
        out = whole(given["x"], self.weight, self.bias)
        y = cuconv.selective_scan_fn(
            *(given[name][None] for name in ("u", "delta")), self.A, given["B"][None], given["C"][None], **parameters
        )[0]
        return Sequence(given, {"out": out, "y": y}, self.taken(DRAFTS))

    def noise(self, tokens: int, seed: int) -> dict[str, Any]:
        sizes = {"x": DIM, "u": DIM, "delta": DIM, "B": D_STATE, "C": D_STATE}
        return {
            name: normal(self.device, tokens, size, seed=100 * seed + i, dtype=self.dtype if name == "x" else None).T
            for i, (name, size) in enumerate(sizes.items())
        }

    def taken(self, count: int) -> list[int]:
        slots = [self.free.pop() for _ in range(count)]
        # What was in a slot before must not matter.
        self.windows[slots], self.states[slots] = torch.nan, torch.nan
        return slots

    def drafted(self, one: Sequence, depths: list[int | None]) -> dict[str, Any]:
        """Tokens that are those of the sequence at these depths from its position, and noise where there is None."""
        tokens = self.noise(len(depths), self.random.randrange(10**6))
        for t, depth in enumerate(depths):
            if depth is not None:
                for name, each in tokens.items():
                    each[:, t] = one.inputs[name][:, one.position + depth]
        return tokens

    def compare(self, one: Sequence, first: int, out: Any, y: Any) -> None:
        """Results (dim, tokens) of tokens that begin with this one."""
        tokens = slice(first, first + out.shape[1])
        assert torch.equal(out, one.wanted["out"][:, tokens])
        torch.testing.assert_close(y, one.wanted["y"][:, tokens], rtol=1e-3, atol=1e-4)

    def prefill(self, batch: list[Sequence]) -> None:
        """Chunks of new tokens, some with snapshots; states move to a new first slot now and then."""
        lengths = [self.random.randint(1, min(11, TOKENS - one.position)) for one in batch]
        rows, sources, finals = [], [], []
        for i, (one, length) in enumerate(zip(batch, lengths, strict=True)):
            sources.append(one.slots[0] if one.source is None else one.source)
            if one.source is None and self.random.random() < 0.3:
                one.slots[0] = self.taken(1)[0]
            finals.append(one.slots[0])
            one.source = None
            if self.random.random() < 0.5:
                position, (slot,) = self.random.randint(1, length), self.taken(1)
                rows.append([i, position, slot])
                one.snapshots.append((one.position + position, slot))
        snapshots = torch.tensor([*rows, [0, 1, -1]], device=self.device)
        joined = {
            name: torch.cat([one.inputs[name][:, one.position : one.position + length].T
                             for one, length in zip(batch, lengths, strict=True)]).T
            for name in batch[0].inputs
        }  # fmt: skip
        named = {
            "cache_indices": indices(self.device, *sources), "dst_state_indices": indices(self.device, *finals),
            "has_initial_state": torch.tensor([one.position > 0 for one in batch], device=self.device),
            "snapshots": snapshots, "snapshot_count": torch.tensor([len(rows)], device=self.device),
        }  # fmt: skip
        loc = starts(self.device, lengths)
        out = cuconv.causal_conv1d_varlen_fn(
            joined["x"], self.weight, self.bias, self.windows, loc, first_column=0, **named
        )
        y = cuconv.selective_scan_varlen_fn(
            *(joined["u"], self.states, joined["delta"], self.A, joined["B"], joined["C"], self.D, None, self.dt_bias),
            *(True, loc), **named,
        )  # fmt: skip
        for i, one in enumerate(batch):
            tokens = slice(int(loc[i]), int(loc[i + 1]))
            self.compare(one, one.position, out[:, tokens], y[:, tokens])
            one.position += lengths[i]

    def step(self, batch: list[Sequence]) -> None:
        """One token each, half of the time with slots that move."""
        sources = [one.slots[0] for one in batch]
        moves = self.random.random() < 0.5
        if moves:
            for one in batch:
                one.slots[0] = self.taken(1)[0]
        finals = indices(self.device, *(one.slots[0] for one in batch)) if moves else None
        slots, tokens = indices(self.device, *sources), [self.drafted(one, [0]) for one in batch]
        joined = {name: torch.cat([each[name] for each in tokens], 1).T for name in tokens[0]}
        out = cuconv.causal_conv1d_update(
            *(joined["x"], self.windows, self.weight, self.bias, "silu", None, slots),
            dst_state_indices=finals, first_column=0,
        )  # fmt: skip
        y = cuconv.selective_state_update(
            *(self.states, joined["u"], joined["delta"], self.A, joined["B"], joined["C"], self.D, None, self.dt_bias),
            *(True, slots), dst_state_batch_indices=finals,
        )  # fmt: skip
        for i, one in enumerate(batch):
            self.compare(one, one.position, out[i, :, None], y[i, :, None])
            one.position += 1

    def speculate(self, batch: list[Sequence]) -> None:
        """vLLM's packed step: drafts of any number, of which some are accepted."""
        lengths = [self.random.randint(1, min(DRAFTS, TOKENS - one.position)) for one in batch]
        accepted = [self.random.randint(1, length) for length in lengths]
        tokens = [
            self.drafted(one, [t if t < count else None for t in range(length)])
            for one, length, count in zip(batch, lengths, accepted, strict=True)
        ]
        joined = {name: torch.cat([each[name] for each in tokens], 1).T.contiguous() for name in tokens[0]}
        table, loc = indices(self.device, *(one.slots for one in batch)), starts(self.device, lengths)
        before = indices(self.device, *(one.accepted for one in batch))
        y = torch.empty_like(joined["u"])
        vllm.selective_state_update(
            *(self.states, joined["u"], joined["delta"], self.A, joined["B"], joined["C"], self.D, self.dt_bias),
            dt_softplus=True, state_batch_indices=table, null_block_id=NULL, out=y, num_accepted_tokens=before,
            cu_seqlens=loc,
        )  # fmt: skip
        out = vllm.causal_conv1d_update(
            *(joined["x"], self.windows, self.weight, self.bias, "silu", table, before, loc, DRAFTS, NULL)
        )
        for i, one in enumerate(batch):
            rows = slice(int(loc[i]), int(loc[i]) + accepted[i])
            self.compare(one, one.position, out[rows].T, y[rows].T)
            one.position, one.accepted = one.position + accepted[i], accepted[i]

    def tree(self, batch: list[Sequence]) -> None:
        """SGLang's step along a tree of drafts; the accepted path's last state goes to the live slot."""
        children, siblings, paths, tokens = [], [], [], []
        for one in batch:
            parents = [self.random.randrange(t) for t in range(1, DRAFTS)]
            path = [0]
            while (below := [t for t, p in enumerate(parents, 1) if p == path[-1]]) and self.random.random() < 0.8:
                if one.position + len(path) == TOKENS:
                    break
                path.append(self.random.choice(below))
            paths.append(path)
            tokens.append(self.drafted(one, [path.index(t) if t in path else None for t in range(DRAFTS)]))
            families = [[t for t, p in enumerate(parents, 1) if p == parent] for parent in range(DRAFTS)]
            children.append([family[0] if family else -1 for family in families])
            after = {a: b for family in families for a, b in itertools.pairwise(family)}
            siblings.append([after.get(t, -1) for t in range(DRAFTS)])
        joined = {name: torch.stack([each[name].T for each in tokens]) for name in tokens[0]}
        count, slots = len(batch), indices(self.device, *(one.slots[0] for one in batch))
        rows = indices(self.device, *reversed(range(count)))
        buffers = torch.empty(count, DRAFTS, DIM, WIDTH - 1, device=self.device, dtype=self.dtype)
        states = torch.empty(count, DRAFTS, 1, DIM, D_STATE, device=self.device)
        parents = torch.empty(count, DRAFTS, dtype=torch.int32, device=self.device)
        live = self.windows.clone()
        out = sglang.causal_conv1d_update(
            *(joined["x"].transpose(1, 2), live, self.weight, self.bias, True, None, slots),
            intermediate_conv_window=buffers, intermediate_state_indices=rows, retrieve_parent_token=parents,
            retrieve_next_token=indices(self.device, *children),
            retrieve_next_sibling=indices(self.device, *siblings),
        )  # fmt: skip
        y = torch.empty_like(joined["u"])[:, :, None]
        sglang.selective_state_update(
            *(self.states[:, None], joined["u"][:, :, None], joined["delta"][:, :, None], self.A[None]),
            *(joined["B"][:, :, None], joined["C"][:, :, None], self.D[None], None, self.dt_bias[None], True, slots),
            out=y, disable_state_update=True, intermediate_states_buffer=states, cache_steps=DRAFTS,
            retrieve_parent_token=parents, intermediate_state_indices=rows,
        )  # fmt: skip
        for i, (one, path) in enumerate(zip(batch, paths, strict=True)):
            self.compare(one, one.position, out[i][:, path], y[i, path, 0].T)
            row = count - 1 - i
            self.windows[one.slots[0], :, : WIDTH - 1] = buffers[row, path[-1]]
            self.states[one.slots[0]] = states[row, path[-1], 0]
            one.position += len(path)

    def go_on(self) -> None:
        """One call for some of the sequences that can take it."""
        going = [one for one in self.sequences if one.position < TOKENS]
        batch = self.random.sample(going, self.random.randint(1, len(going)))
        for one in batch:
            if one.snapshots and one.accepted == 1 and self.random.random() < 0.15 and len(self.free) > 20:
                one.position, one.source = self.random.choice(one.snapshots)
        only_prefill = [one for one in batch if one.source is not None or not one.position]
        only_speculation = [one for one in batch if one.accepted != 1]
        if only_prefill:
            self.prefill(only_prefill)
        elif only_speculation:
            self.speculate(only_speculation)
        else:
            self.random.choice([self.prefill, self.step, self.speculate, self.tree])(batch)


@EACH_DEVICE
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("seed", range(4))
def test_serving_gives_the_results_of_one_uninterrupted_prefill(seed: int, dtype: Any, device: str) -> None:
    server = Server(device, dtype, seed)
    while any(one.position < TOKENS for one in server.sequences) and len(server.free) > 2 * SEQUENCES:
        server.go_on()
    assert sum(one.position for one in server.sequences) > TOKENS
