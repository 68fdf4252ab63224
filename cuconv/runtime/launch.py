"""Launch configurations as values, and the arithmetic behind them, without a GPU or arrays."""

from dataclasses import dataclass

from cuconv.runtime.dtypes import DType

WARP_SIZE = 32
MAX_VECTOR_BYTES = 16
"""Bytes of a thread's widest memory access."""

MAX_GRID = 2**31 - 1
"""Most blocks along the first grid axis (CUDA programming guide, technical specifications)."""

MAX_DIVIDEND = 2**31 - 1
"""The largest index that the fast division of kernels takes."""


class TooLarge(ValueError):
    """Raised for a problem that is too large for a launch."""


@dataclass(frozen=True)
class LaunchConfig:
    """A grid in blocks, a block in threads, and dynamic shared memory in bytes."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_mem: int = 0

    def __post_init__(self) -> None:
        if self.grid[0] > MAX_GRID:
            raise TooLarge(f"the problem needs {self.grid[0]} blocks; a launch takes at most {MAX_GRID}")

    @property
    def flat(self) -> tuple[int, int, int, int, int, int, int]:
        """Grid, block and shared memory in the order of the driver's launch."""
        return (*self.grid, *self.block, self.shared_mem)

    @property
    def threads(self) -> int:
        """Number of threads of the launch."""
        gx, gy, gz = self.grid
        bx, by, bz = self.block
        return gx * gy * gz * bx * by * bz


def ceil_div(numerator: int, denominator: int) -> int:
    """numerator / denominator, rounded up."""
    return -(-numerator // denominator)


def fast_div(divisor: int) -> tuple[int, int, int]:
    """The fields of common/fastdiv.cuh's FastDiv: divisor, multiplier, shift. Exact for dividends below 2**31."""
    if not 1 <= divisor <= MAX_DIVIDEND:
        raise TooLarge(f"divisor is {divisor}; wanted 1 to {MAX_DIVIDEND}")
    shift = (divisor - 1).bit_length()
    multiplier = (((1 << 32) * ((1 << shift) - divisor)) // divisor + 1) & 0xFFFFFFFF
    return divisor, multiplier, shift


def vectors(dtype: DType) -> list[int]:
    """The possible numbers of elements per access for a dtype, the scalar fallback first."""
    return [vec for vec in (1, 2, 4, 8, 16) if vec * dtype.itemsize <= MAX_VECTOR_BYTES]


def widest_vector(itemsize: int, *quantities: int, limit: int = MAX_VECTOR_BYTES) -> int:
    """Elements of the widest access, a power of two, that every quantity is a multiple of.

    A quantity is a number of elements that must be aligned: an offset from an aligned address, a stride, a size. The
    access has at most `limit` bytes.
    """
    vec = limit // itemsize
    while vec > 1 and any(quantity % vec for quantity in quantities):
        vec //= 2
    return vec
