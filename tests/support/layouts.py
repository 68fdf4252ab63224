"""Ways for arrays to lie in memory, as arguments of `place`: those of convolutions first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

LAST: Any = {"order": (0, 2, 1)}
LAYOUTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "channel_first": ({}, {}),
    "channel_last": (LAST, LAST),
    "mixed_to_first": (LAST, {}),
    "mixed_to_last": ({}, LAST),
    "transposed": ({"order": (1, 2, 0), "spacing": 2}, {}),
    "transposed_last": ({"order": (2, 1, 0), "spacing": 2}, {"order": (2, 1, 0), "spacing": 3}),
    "spaced": ({"spacing": 2}, {"spacing": 3}),
    "sliced_dim": ({"pad": (0, 5, 0)}, {}),
    "sliced_seq": ({"pad": (0, 0, 5)}, {}),
    "sliced_alike": ({"pad": (0, 0, 5)}, {"pad": (0, 2, 13)}),
    "sliced_aligned": ({"pad": (0, 0, 8)}, {"pad": (0, 3, 16)}),
    "last_sliced_dim": ({**LAST, "pad": (0, 8, 0)}, {**LAST, "pad": (0, 16, 0)}),
    "last_sliced_dim_by_2": ({**LAST, "pad": (0, 2, 0)}, LAST),
    "last_sliced_dim_by_3": (LAST, {**LAST, "pad": (0, 3, 0)}),
    "last_sliced_seq": ({**LAST, "pad": (0, 0, 3)}, {**LAST, "pad": (0, 0, 1)}),
    "offset_alike": ({"shift": 1}, {"shift": 1}),
    "offset_alike_by_2": ({"shift": 2}, {"shift": 2}),
    "offset_by_1": ({"shift": 1}, {}),
    "offset_by_2": ({}, {"shift": 2}),
    "offset_by_4": ({"shift": 5}, {"shift": 1}),
    "last_offset_by_1": ({**LAST, "shift": 1}, {**LAST, "shift": 1}),
    "last_offset_by_2": (LAST, {**LAST, "shift": 2}),
    "broadcast_batch": ({"repeated": (0,)}, {}),
    "last_broadcast_batch": ({**LAST, "repeated": (0,)}, LAST),
    "backward_rows": ({"backward": (0, 1)}, {"backward": (1,)}),
    "backward_seq": ({"backward": (2,)}, {}),
    "last_backward_seq": ({**LAST, "backward": (0, 2)}, {**LAST, "backward": (2,)}),
    "last_backward_dim": ({**LAST, "backward": (1,)}, LAST),
    "token_major": ({"order": (2, 0, 1)}, {"order": (2, 0, 1)}),
    "dim_major": ({"order": (1, 0, 2)}, {"order": (1, 0, 2)}),
}
"""How x and out lie. "alike": neither is aligned, but both in the same way, so that vectors still serve."""

CHANNELS: Any = {"order": (1, 0)}
PACKED: dict[str, dict[str, Any]] = {
    "channels": CHANNELS,
    "channels_sliced": {**CHANNELS, "pad": (8, 0)},
    "channels_sliced_by_2": {**CHANNELS, "pad": (2, 0)},
    "channels_sliced_by_3": {**CHANNELS, "pad": (3, 0)},
    "channels_offset_by_1": {**CHANNELS, "shift": 1},
    "channels_offset_by_2": {**CHANNELS, "shift": 2},
    "channels_spaced": {**CHANNELS, "spacing": 2},
    "channels_backward": {**CHANNELS, "backward": (1,)},
    "channels_backward_dim": {**CHANNELS, "backward": (0,)},
    "tokens": {},
    "tokens_sliced": {"pad": (0, 5)},
    "tokens_aligned": {"pad": (2, 8)},
    "tokens_offset_by_1": {"shift": 1},
    "tokens_offset_by_2": {"shift": 2},
    "tokens_offset_by_4": {"shift": 4},
    "tokens_spaced": {"spacing": 2},
    "tokens_backward": {"backward": (1,)},
    "tokens_backward_dim": {"backward": (0,)},
}
"""How (dim, total) may lie, named after the axis whose elements are neighbours."""

HEADS: dict[str, dict[str, Any]] = {
    "dense": {},
    "offset_by_1": {"shift": 1},
    "sliced": {"pad": (0, 0, 0, 8)},
    "sliced_heads": {"pad": (0, 0, 3, 0)},
    "head_major": {"order": (0, 2, 1, 3)},
    "transposed": {"order": (0, 3, 2, 1), "pad": (0, 1, 0, 0)},
    "spaced": {"spacing": 2},
    "backward": {"backward": (1, 2)},
    "backward_head": {"backward": (3,)},
}
"""How (1, total, heads, head_dim) may lie."""

POOLS: dict[str, tuple[int, dict[str, Any]]] = {
    "channels": (0, {"order": (0, 2, 1)}),
    "channels_longer": (3, {"order": (0, 2, 1)}),
    "channels_sliced": (1, {"order": (0, 2, 1), "pad": (0, 8, 1)}),
    "channels_offset": (0, {"order": (0, 2, 1), "shift": 1}),
    "channels_outermost": (0, {"order": (1, 0, 2), "pad": (0, 1, 0)}),
    "columns": (0, {}),
    "columns_and_one": (1, {}),
    "columns_longer": (2, {"pad": (1, 0, 3)}),
    "columns_offset": (1, {"shift": 1}),
    "spaced": (0, {"order": (0, 2, 1), "spacing": 2}),
    "slots": (2, {"order": (2, 1, 0), "pad": (3, 0, 0)}),
    "backward": (1, {"order": (0, 2, 1), "backward": (0, 1, 2)}),
}
"""How (slots, dim, state_len) may lie, and by how many columns it is longer than a filter needs."""

WINDOWS: dict[str, tuple[int, dict[str, Any]]] = {
    "channels": (0, {"order": (0, 1, 3, 2)}),
    "channels_sliced": (1, {"order": (0, 1, 3, 2), "pad": (1, 0, 8, 0)}),
    "channels_offset": (0, {"order": (0, 1, 3, 2), "shift": 1}),
    "columns": (0, {}),
    "columns_longer": (2, {"pad": (0, 1, 0, 3)}),
    "steps": (1, {"order": (1, 3, 0, 2)}),
    "spaced": (0, {"order": (0, 1, 3, 2), "spacing": 2}),
    "backward": (1, {"order": (0, 1, 3, 2), "backward": (0, 1, 2, 3)}),
}
"""How (rows, steps, dim, width - 1) may lie, and by how many steps it is longer than a call needs."""
WINDOWS_OVERLAID = {**WINDOWS, "overlaid": (0, {}), "overlaid_dense": (0, {})}
"""The same, and with windows that lie over each other."""

INDICES = (
    *("query_start_loc", "cache_indices", "has_initial_state"),
    *("cache_seqlens", "conv_state_indices", "num_accepted_tokens", "intermediate_state_indices"),
)
OFFSET = ("weight", "bias", "seq_idx", "initial_states", "final_states_out", *INDICES)

OTHERS: dict[str, dict[str, dict[str, Any]]] = {
    "dense": {},
    "offset": {name: {"shift": 1} for name in OFFSET},
    "offset_by_2": {name: {"shift": 2} for name in OFFSET},
    "offset_weight": {"weight": {"shift": 1}},
    "offset_bias": {"bias": {"shift": 1}},
    "strided": {
        "weight": {"order": (1, 0), "pad": (1, 0)},
        "bias": {"spacing": 3},
        "seq_idx": {"order": (1, 0), "spacing": 2},
        "initial_states": {"order": (2, 0, 1), "pad": (0, 1, 0), "shift": 1},
        "final_states_out": {"order": (1, 0, 2), "spacing": 2},
        **{name: {"spacing": count, "shift": 1} for count, name in enumerate(INDICES, start=2)},
    },
    "backward": {
        "weight": {"backward": (0, 1)},
        "bias": {"backward": (0,)},
        "seq_idx": {"backward": (1,)},
        "initial_states": {"backward": (1, 2)},
        "final_states_out": {"backward": (2,)},
        **{name: {"backward": (0,)} for name in INDICES},
    },
}
"""How the other arrays lie; the dense states are channel-last beside a channel-last x."""

Ways = dict[str, Callable[[int], dict[str, Any]]]
"""Arguments of `place` by the number of an array's axes."""


def inner_pads(*pads: int) -> Callable[[int], dict[str, Any]]:
    """The last axes are so much longer in the parent tensor."""
    return lambda rank: {"pad": (0,) * (rank - len(pads)) + pads[-rank:]}


BY_TOKEN: Ways = {
    "dense": lambda rank: {},
    "fused": lambda rank: {"pad": (0,) * (rank - 2) + ((8, 0) if rank > 2 else (0, 8))},
    "fused_by_1": inner_pads(1),
    "fused_by_2": inner_pads(2),
    "offset_by_1": lambda rank: {"shift": 1},
    "offset_by_2": lambda rank: {"shift": 2},
    "spaced": lambda rank: {"spacing": 2},
    "transposed": lambda rank: {"order": tuple(reversed(range(rank)))},
    "by_state": lambda rank: {"order": (*range(rank - 2), rank - 1, rank - 2)},
    "by_state_fused": lambda rank: {"order": (*range(rank - 2), rank - 1, rank - 2), "pad": (*(0,) * (rank - 2), 8, 0)},
    "backward": lambda rank: {"backward": tuple(range(rank))},
}
"""How x, dt, z, B, C and out may lie. "fused": as a slice of one wider tensor of all of them."""

SLOTS: Ways = {
    "dense": lambda rank: {},
    "slot_strided": inner_pads(1, 0, 0),
    "slots_innermost": lambda rank: {"order": (*range(1, rank), 0), "pad": (1,) + (0,) * (rank - 1)},
    "offset": lambda rank: {"shift": 1},
    "offset_by_2": lambda rank: {"shift": 2},
    "sliced": inner_pads(8),
    "sliced_by_2": inner_pads(2),
    "transposed": lambda rank: {"order": (*range(rank - 2), rank - 1, rank - 2)},
    "spaced": lambda rank: {"spacing": 2},
    "backward": lambda rank: {"backward": tuple(range(rank))},
}
"""How a pool of states or of intermediate states may lie. "slots_innermost": the slots are the innermost axis."""

PARAMETERS: Ways = {
    "dense": lambda rank: {},
    "strided": lambda rank: {"order": tuple(reversed(range(rank))), "spacing": 2, "shift": 1},
    "backward": lambda rank: {"backward": tuple(range(rank))},
}
"""How A, D, dt_bias, indices and a seed may lie."""
