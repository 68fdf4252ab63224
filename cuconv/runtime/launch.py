"""Launch configurations as values, and the arithmetic that makes them. Pure numbers: no GPU, no arrays."""

from dataclasses import dataclass

from cuconv.runtime.dtypes import DType

WARP_SIZE = 32
MAX_VECTOR_BYTES = 16
"""The widest memory access of a thread."""

MAX_GRID = 2**31 - 1
"""Blocks along the first grid axis (CUDA programming guide, technical specifications)."""

MAX_DIVIDEND = 2**31 - 1
"""The largest index that the kernels' fast division takes."""


@dataclass(frozen=True)
class LaunchConfig:
    """What a launch needs besides its arguments: grid and block in threads, dynamic shared memory in bytes."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_mem: int = 0

    def __post_init__(self) -> None:
        if self.grid[0] > MAX_GRID:
            raise ValueError(f"the problem needs {self.grid[0]} blocks; a launch takes at most {MAX_GRID}")

    @property
    def flat(self) -> tuple[int, int, int, int, int, int, int]:
        """Grid, block and shared memory as the driver's launch takes them."""
        return (*self.grid, *self.block, self.shared_mem)

    @property
    def threads(self) -> int:
        """Threads of the whole launch."""
        gx, gy, gz = self.grid
        bx, by, bz = self.block
        return gx * gy * gz * bx * by * bz


def ceil_div(numerator: int, denominator: int) -> int:
    """numerator / denominator, rounded up."""
    return -(-numerator // denominator)


def fast_div(divisor: int) -> tuple[int, int, int]:
    """The fields of common/fastdiv.cuh's FastDiv: divisor, multiplier, shift. Exact for dividends below 2**31."""
    if not 1 <= divisor <= MAX_DIVIDEND:
        raise ValueError(f"divisor is {divisor}; wanted 1 to {MAX_DIVIDEND}")
    shift = (divisor - 1).bit_length()
    multiplier = (((1 << 32) * ((1 << shift) - divisor)) // divisor + 1) & 0xFFFFFFFF
    return divisor, multiplier, shift


def vectors(dtype: DType) -> list[int]:
    """The elements that an access of a dtype may have, the scalar fallback first."""
    return [vec for vec in (1, 2, 4, 8) if vec * dtype.itemsize <= MAX_VECTOR_BYTES]


def widest_vector(itemsize: int, *quantities: int, limit: int = MAX_VECTOR_BYTES) -> int:
    """The most elements an access may have so that every quantity, in elements, is a multiple of it: a power of two.

    A quantity is whatever must be aligned: an offset from an aligned address, a stride, a size.
    """
    vec = limit // itemsize
    while vec > 1 and any(quantity % vec for quantity in quantities):
        vec //= 2
    return vec
