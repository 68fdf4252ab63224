"""How many blocks of a kernel a multiprocessor holds at a time, and which resource limits them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cuconv.runtime.launch import WARP_SIZE, ceil_div

REGISTERS = 64 * 1024
"""Registers of a multiprocessor."""

PARTITIONS = 4
"""Partitions of a multiprocessor, each with its share of the registers and the warps."""

REGISTER_STEP = 256
"""The unit in which registers are handed out to a warp."""


@dataclass(frozen=True)
class Limits:
    """The most that a multiprocessor holds."""

    warps: int
    blocks: int
    shared_bytes: int


_HOPPER, _AMPERE, _ADA = Limits(64, 32, 228 * 1024), Limits(48, 16, 100 * 1024), Limits(48, 24, 100 * 1024)
_THOR = Limits(48, 24, 228 * 1024)

LIMITS = {
    70: Limits(64, 32, 96 * 1024),
    72: Limits(64, 32, 96 * 1024),
    75: Limits(32, 16, 64 * 1024),
    80: Limits(64, 32, 164 * 1024),
    86: _AMPERE,
    87: Limits(48, 16, 164 * 1024),
    88: _AMPERE,
    89: _ADA,
    90: _HOPPER,
    100: _HOPPER,
    101: _THOR,
    103: _HOPPER,
    110: _THOR,
    120: _ADA,
    121: _ADA,
}
"""Limits by compute capability (CUDA programming guide, technical specifications)."""


@dataclass(frozen=True)
class Occupancy:
    """How much of a multiprocessor one kernel fills."""

    allowed: Mapping[str, int]
    """Blocks that fit, by the resource that they take."""
    warps_a_block: int
    most_warps: int

    @property
    def blocks(self) -> int:
        """Blocks that a multiprocessor holds at a time."""
        return min(self.allowed.values())

    @property
    def warps(self) -> int:
        """Warps of the blocks that a multiprocessor holds at a time."""
        return self.blocks * self.warps_a_block

    @property
    def limited_by(self) -> tuple[str, ...]:
        """The resources that leave no room for another block."""
        return tuple(name for name, blocks in self.allowed.items() if blocks == self.blocks)


def occupancy(capability: int, threads: int, registers: int, shared_bytes: int) -> Occupancy | None:
    """The occupancy of a kernel with `threads` and all `shared_bytes` per block, `registers` per thread.

    None for a compute capability whose limits are not known.
    """
    limits = LIMITS.get(capability)
    if limits is None:
        return None
    warps = ceil_div(threads, WARP_SIZE)
    # The system reserves a kilobyte per block, and shared memory and registers are allocated in steps.
    reserved, step = (1024, 128) if capability >= 80 else (0, 256)
    shared = ceil_div(shared_bytes + reserved, step) * step
    a_warp = ceil_div(registers * WARP_SIZE, REGISTER_STEP) * REGISTER_STEP
    allowed = {
        "registers": REGISTERS // PARTITIONS // a_warp * PARTITIONS // warps,
        "threads": limits.warps // warps,
        "blocks": limits.blocks,
        "shared memory": limits.shared_bytes // shared if shared else limits.blocks,
    }
    return Occupancy(allowed, warps, limits.warps)
