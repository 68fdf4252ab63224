"""What the case tables of decode steps share: where arrays lie, inputs and oracle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cuconv.causal_conv1d import reference
from cuconv.runtime.dtypes import BOOL, BY_NAME, DType
from cuconv.runtime.trees import LINKS
from tests.causal_conv1d.channels import OfChannels
from tests.support.compare import Kept
from tests.support.layouts import HEADS, LAYOUTS, POOLS, WINDOWS_OVERLAID
from tests.support.placement import Array, Placement, place
from tests.support.sequences import COLUMNS as COLUMNS_OF_SLOTS
from tests.support.sequences import moved_slots, slot_table, slots_in

LOUD = 500.0
"""The factor by which columns that are moved and not convolved are larger."""

COLUMNS: Any = {"pool": "columns"}
ROWS: Any = {"pool": "columns_and_one"}
ODD: Any = {"slots": "odd"}
RING: Any = {"mode": "circular"}
ACCEPTED: Any = {"mode": "accepted"}
FROZEN: Any = {"frozen": True}
"""What cases have in common."""


MIXED = {
    "cache_seqlens": "int64",
    "conv_state_indices": "int32",
    "num_accepted_tokens": "int64",
    "intermediate_state_indices": "int32",
    "state_column": "int64",
    "dst_state_indices": "int64",
    "query_start_loc": "int64",
    "token_state_indices": "int64",
    "parents": "int32",
    "retrieve_next_token": "int64",
    "retrieve_next_sibling": "int32",
    "retrieve_parent_token": "int64",
}
"""The dtypes of indices that are mixed."""


@dataclass(frozen=True)
class Step(OfChannels):
    """One call on the next tokens of every sequence."""

    UPDATED = ("conv_state", "intermediate_conv_window", "retrieve_parent_token")

    channels: int | tuple[int, ...]  # dim, or the sizes of ranges
    batch: int
    seqlen: int | None = None  # None: x is (batch, dim)
    width: int = 4
    dtype: str = "bfloat16"
    weight_dtype: str = ""  # x's when empty
    state_dtype: str = ""  # x's when empty
    bias: str | None = "weight"  # or "float32"
    layout: str = "channel_last"
    out: str = ""  # as x when empty; several are taken in turn
    others: str = "dense"
    pool: str = "channels"
    spare: int = 2  # slots that no sequence has
    slots: str | None = "permuted"  # "odd": some numbers of slots, tokens and rows are none
    index: str = "int32"  # or "int64" or "mixed"
    mode: str = "shift"  # or "circular" or "accepted"
    window: str | None = None
    rows: bool = False  # whether windows have rows of their own
    frozen: bool = False
    pad_slot_id: int = -1
    activation: str | None = "silu"
    scale: float = 1.0  # of x and the states
    table: str | None = None  # whether slots have columns: "first", or "column" with state_column
    longer: int = 0  # rows of the index arrays behind those of the sequences
    moved: bool = False  # whether states go to other slots
    null: bool = False  # whether pad_slot_id is given as null_slot
    keep: bool = False  # whether results of sequences without a slot keep their old contents
    first_column: int | None = None
    fresh: bool = False  # whether some sequences start from zeros
    lengths: tuple[int, ...] = ()  # tokens of packed sequences, which are taken in turn
    most: int | None = None  # max_query_len
    behind: int = 0  # packed tokens of no sequence
    held: int | None = None  # tokens that a state can hold, of those that packed sequences have
    token_slots: int = 0  # columns of token_state_indices
    whole: bool = False  # whether windows have all columns of a state
    tree: bool = False
    links: bool = False  # whether a tree is one of first children and next siblings
    gates: str = ""  # which of pre_gate, post_gate and residual there are
    beside: str = ""  # how they lie, as x when empty

    @property
    def pool_slots(self) -> int:
        """One slot per sequence, or two, those for the states after tokens, and spare ones."""
        return self.batch * (1 + self.moved + self.token_slots) + self.spare

    @property
    def is_packed(self) -> bool:
        """Whether query_start_loc says where sequences begin."""
        return bool(self.lengths)

    @property
    def counts(self) -> Array:
        """Tokens per sequence."""
        return np.resize(self.lengths, self.batch) if self.is_packed else np.full(self.batch, self.tokens)

    @property
    def starts(self) -> Array:
        """Where packed sequences begin, and where the last one ends."""
        return np.concatenate([[0], np.cumsum(self.counts)]).astype(np.int64)

    @property
    def halo(self) -> int:
        """The inputs before a token that its output depends on."""
        return self.width - 1

    @property
    def tokens(self) -> int:
        """How many every sequence has, and packed ones at most."""
        if self.is_packed:
            return max(self.lengths)
        return 1 if self.seqlen is None else self.seqlen

    @property
    def state_len(self) -> int:
        """The columns of a state."""
        held = self.tokens if self.held is None else self.held
        return self.halo + POOLS[self.pool][0] + (max(held - 1, 0) if self.mode == "accepted" else 0)

    def lay_packed(self, dtype: DType, channels: int, lies: dict[str, Any]) -> Placement:
        """Place what has a row per token and a column per channel."""
        placed = place(dtype, (1, channels, int(self.starts[-1]) + self.behind), **lies)
        return replace(placed, shape=placed.shape[:0:-1], strides=placed.strides[:0:-1])

    def lay_inputs(self, way: str) -> Placement:
        """Place what has x's shape."""
        lies = LAYOUTS[way][0]
        if self.is_packed:
            return self.lay_packed(self.input_t, self.dim, lies)
        return self.lay(self.input_t, (self.batch, self.dim, self.tokens), lies)

    def lay_output(self, heads: int, head_dim: int, way: str) -> Placement:
        if self.is_packed and self.has_heads:
            placed = place(self.input_t, (1, int(self.starts[-1]) + self.behind, heads, head_dim), **HEADS[way])
            return replace(placed, shape=placed.shape[1:], strides=placed.strides[1:])
        if self.is_packed:
            return self.lay_packed(self.input_t, heads * head_dim, LAYOUTS[way][1])
        if self.has_heads:
            return self.lay(self.input_t, (self.batch, self.tokens, heads, head_dim), HEADS[way], axis=1)
        return self.lay(self.input_t, (self.batch, heads * head_dim, self.tokens), LAYOUTS[way][1])

    def options(self) -> dict[str, Any]:
        return self.meaning() | self.division()

    def meaning(self) -> dict[str, Any]:
        """The options but those that divide the channels."""
        found: dict[str, Any] = {"null_slot" if self.null else "pad_slot_id": self.pad_slot_id}
        if self.frozen:
            found["disable_state_update"] = True
        if self.keep:
            found["pad_output"] = "keep"
        if self.first_column is not None:
            found["first_column"] = self.first_column
        if self.most is not None:
            found["max_query_len"] = self.most
        return {"activation": self.activation, **found}

    def lay(self, dtype: DType, shape: tuple[int, ...], lies: dict[str, Any], axis: int = -1) -> Placement:
        """Place what is of x's rank: without the axis of tokens when x is."""
        placed = place(dtype, shape, **lies)
        if self.seqlen is not None:
            return placed
        kept = [i for i in range(len(shape)) if i != axis % len(shape)]
        shape, strides = (tuple(numbers[i] for i in kept) for numbers in (shape, placed.strides))
        return replace(placed, shape=shape, strides=strides)

    def placements(self) -> dict[str, Placement]:
        dim, batch = self.dim, self.batch
        state_t = BY_NAME[self.state_dtype or self.dtype]
        index_t = {name: BY_NAME[self.index if self.index != "mixed" else wide] for name, wide in MIXED.items()}
        index_t["has_initial_state"] = BOOL
        slots, rows_of_indices = self.pool_slots, batch + self.longer
        placed = {
            "x": self.lay_inputs(self.layout),
            "conv_state": place(state_t, (slots, dim, self.state_len), **POOLS[self.pool][1]),
            **self.taps(),
        }
        for name, is_given in (
            ("cache_seqlens", self.mode == "circular"),
            ("conv_state_indices", self.slots is not None),
            ("num_accepted_tokens", self.mode == "accepted"),
            ("intermediate_state_indices", self.rows),
            ("state_column", self.table == "column"),
            ("dst_state_indices", self.moved),
            ("has_initial_state", self.fresh),
        ):
            if is_given:
                columns = (COLUMNS_OF_SLOTS,) if self.table is not None and name == "conv_state_indices" else ()
                placed[name] = self.other(name, index_t[name], (rows_of_indices, *columns))
        if self.is_packed:
            placed["query_start_loc"] = self.other("query_start_loc", index_t["query_start_loc"], (batch + 1,))
        if self.token_slots:
            shape = rows_of_indices, self.token_slots
            placed["token_state_indices"] = place(index_t["token_state_indices"], shape, order=(1, 0), pad=(2, 1))
        for name in LINKS if self.links else ("parents",) if self.tree else ():
            placed[name] = place(index_t[name], (rows_of_indices, self.tokens + 1), shift=1)
        if self.window is not None:
            longer, lies = WINDOWS_OVERLAID[self.window]
            rows, columns = batch + 1 if self.rows else slots, self.state_len if self.whole else self.halo
            placed["intermediate_conv_window"] = place(state_t, (rows, self.tokens + longer, dim, columns), **lies)
            if self.window.startswith("overlaid"):
                pad = (0, 1, 2) if self.window == "overlaid" else ()
                placed["intermediate_conv_window"] = overlaid(state_t, rows, self.tokens + longer, dim, columns, pad)
        placed |= {name: self.lay_inputs(self.beside or self.layout) for name in self.gates.split()}
        return placed | self.outputs()

    def integers(self, seed: int = 0) -> dict[str, Array]:
        random, batch, odd, length = self.random(seed), self.batch, self.slots == "odd", self.state_len
        is_wide = {name: self.index == "int64" or (self.index == "mixed" and t == "int64") for name, t in MIXED.items()}
        found = {}

        def take(name: str, usual: Array, strange: list[int], wide: list[int]) -> None:
            """Use the usual numbers, but strange ones for some sequences, which are not those of another array."""
            chosen = np.resize(usual, batch).astype(np.int64)
            if strange:
                every = slice({"conv_state_indices": 1, "intermediate_state_indices": 3}.get(name, 2), None, 4)
                chosen[every] = np.resize(strange + wide * is_wide[name], len(chosen[every]))
            found[name] = chosen

        def beyond(count: int, unused: int) -> list[int]:
            return [unused, count, -2, count + 7, -(2**31), 2**31 - 1] if odd else []

        if self.slots is not None:
            slots = self.pool_slots
            take("conv_state_indices", random.permutation(slots), beyond(slots, self.pad_slot_id), [2**40, -(2**40)])
            chosen = found.pop("conv_state_indices")
            found |= slot_table(self.table, "conv_state_indices", chosen, random, odd)
        if self.moved:
            found["dst_state_indices"] = moved_slots(
                found, batch, self.pool_slots, self.pad_slot_id, random, "conv_state_indices"
            )
        if self.token_slots:
            found["token_state_indices"] = self.slots_of_tokens(found, random)
        if self.tree:
            found["parents"] = np.stack([random.integers(-1, max(t, 1), batch) for t in range(self.tokens + 1)], 1)
            if odd:
                found["parents"][1::3, 1] = np.resize([1, 5, -(2**31), 2**31 - 1], len(found["parents"][1::3]))
            if self.links:
                found |= links_of(found.pop("parents"), self.tokens)
                found["retrieve_parent_token"] = np.full((batch, self.tokens + 1), -7)
        if self.mode == "circular":
            around = [0, 1, length - 1, length, length + 1, 5 * length + 2, -1, -length, -2 * length - 1, 10**6 + 3]
            ends = [2**31 - 1, -(2**31)] + [2**63 - 1, -(2**63), 2**40 + 1] * is_wide["cache_seqlens"]
            take("cache_seqlens", random.permutation(around), random.permutation(ends).tolist(), [])
        if self.mode == "accepted":
            last = length - self.halo + 1
            beyond_last = [last + 1, 2**31 - 1, last + 9] if odd else []
            take("num_accepted_tokens", random.permutation(np.arange(-1, last + 1)), beyond_last, [2**63 - 1])
        if self.rows:
            # Here pad_slot_id is a row like any other.
            take("intermediate_state_indices", random.permutation(batch + 1), beyond(batch + 1, -1), [2**40])
        if self.fresh:
            found["has_initial_state"] = random.permutation(np.arange(batch) % 3 > 0)
        if self.is_packed:
            found["query_start_loc"] = self.starts
        for name, rows in found.items():
            if name == "query_start_loc":
                continue
            found[name] = np.concatenate([rows, np.zeros((self.longer, *rows.shape[1:]), rows.dtype)])
        return found

    def slots_of_tokens(self, known: Mapping[str, Array], random: np.random.Generator) -> Array:
        """A slot of its own for each token, but for some that have none; that of its sequence where that stays."""
        starts = slots_in(known, "conv_state_indices", self.batch)
        taken = {*starts, *known.get("dst_state_indices", np.zeros(0)).tolist(), self.pad_slot_id}
        free = random.permutation(sorted({*range(self.pool_slots)} - taken))
        chosen = np.resize(free, (self.batch, self.token_slots))
        assert len(free) >= chosen.size
        chosen[::3, 1::2] = np.resize([-1, self.pad_slot_id, self.pool_slots, -(2**31)], chosen[::3, 1::2].shape)
        if self.frozen:
            chosen[1::3, -1] = starts[1::3]
        return chosen

    def live(self, known: Mapping[str, Array]) -> dict[int, tuple[int, Array]]:
        """The sequences that have results: the slot of each, and the columns that precede its first token."""
        slots, length, found, counts = self.pool_slots, self.state_len, {}, self.counts
        padding = self.pad_slot_id if "conv_state_indices" in known else None
        for i, slot in enumerate(slots_in(known, "conv_state_indices", self.batch)):
            first = 0 if self.first_column == 0 else length - self.halo
            if self.mode == "circular":
                first = int(known["cache_seqlens"][i]) - self.halo
            if self.mode == "accepted":
                first = max(int(known["num_accepted_tokens"][i]), 1) - 1
            fits = self.mode != "accepted" or max(first, int(counts[i]) - 1) <= length - self.halo
            if 0 <= slot < slots and slot != padding and fits and counts[i] > 0:
                found[i] = slot, np.array([(first + k) % length for k in range(self.halo)], int)
        return found

    def range(self, name: str) -> tuple[float, float]:
        scale = self.scale if name in ("x", "conv_state") else 1.0
        return -scale, scale

    def spoil(self, arrays: dict[str, Array]) -> None:
        """Leave in the pool only windows, and what is moved with them, which is louder."""
        loudness = np.full(arrays["conv_state"].shape, np.nan)
        for number, (slot, columns) in self.live(arrays).items():
            if self.fresh and not arrays["has_initial_state"][number]:
                continue
            if self.mode == "shift" and self.first_column != 0:
                moved = int(min(self.counts[number], self.counts[number] if self.most is None else self.most))
                kept = self.token_slots or self.whole or self.tree
                if kept or not self.frozen:
                    loudness[slot, :, 1 if kept else moved :] = LOUD
            if self.mode == "circular" and self.moved:
                loudness[slot] = LOUD
            loudness[slot][:, columns] = 1.0
        arrays["conv_state"][...] *= loudness.astype(arrays["conv_state"].dtype)
        if "intermediate_conv_window" in arrays:
            arrays["intermediate_conv_window"][...] = np.nan

    def oracle(self, arrays: dict[str, Array]) -> dict[str, Any]:
        by_token = {name: np.atleast_3d(arrays[name]) for name in ("x", *self.gates.split())}
        out, state, windows, parents = reference.causal_conv1d_update(**{**arrays, **by_token}, **self.meaning())
        if self.window is not None and self.window.startswith("overlaid"):
            for t in range(1, windows.shape[1]):
                known = windows[:, t - 1, :, 1:]
                windows[:, t, :, :-1] = np.where(np.isnan(known), windows[:, t, :, :-1], known)
        updated = {"conv_state": state} | ({} if windows is None else {"intermediate_conv_window": windows})
        updated |= {} if parents is None else {"retrieve_parent_token": parents}
        results: dict[str, Any] = self.divide(out)
        if self.keep:
            results = {name: Kept(each) for name, each in results.items()}
        return results | updated


def links_of(parents: Array, tokens: int) -> dict[str, Array]:
    """Trees (batch, tokens or more) as first children and next siblings; in places a link that counts for nothing."""
    child, sibling = np.full((2, *parents.shape), -1)
    for number, row in enumerate(parents[:, :tokens]):
        for parent in range(tokens):
            children = [t for t in range(1, tokens) if max(0, row[t] if row[t] < t else 0) == parent]
            child[number, parent] = children[0] if children else -1
            sibling[number, children[:-1]] = children[1:]
        unused = np.flatnonzero(child[number, :tokens] < 0)
        child[number, unused[1::2]] = np.resize([1, tokens, -(2**31), 2**31 - 1], len(unused[1::2]))
    return dict(zip(LINKS, (child, sibling), strict=False))


def overlaid(dtype: DType, rows: int, steps: int, dim: int, columns: int, pad: tuple[int, ...]) -> Placement:
    """Windows (rows, steps, dim, columns), each of which lies one column on from the one before it."""
    placed = place(dtype, (rows, dim, steps + max(columns - 1, 0)), pad=pad)
    row, channel, column = placed.strides
    return replace(placed, shape=(rows, steps, dim, columns), strides=(row, column, channel, column))
