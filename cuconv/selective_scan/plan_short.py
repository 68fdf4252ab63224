"""Which scans of whole rows run SelectiveScanShortFwd, this kernel below: short, few and unaligned rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from cuconv.runtime.machine import multiprocessors
from cuconv.selective_scan.check import Inputs
from cuconv.selective_scan.kernels import SelectiveScanShortFwd, TileShape, max_tile_states
from cuconv.selective_scan.plan import FILL, input_dtype, tokens_vector
from cuconv.selective_scan.plan_turned import FEW_ROWS, LEAST_COPIED

TOKENS_OF_MANY = 128
"""Tokens of a row below which it is short for tiles."""

SHORT_TOKENS, SHORT_ROWS = 32, 80
"""Rows are few where their number per multiprocessor, times the states that a lane has, is at most SHORT_ROWS. Few rows
of SHORT_TOKENS tokens or more run this kernel where they are short or not aligned. On an H200, with 16 states, 1 x 256
x 96 takes 4.0 us so and 10.3 with tiles, and 1 x 1536 x 250, which is not aligned, 13.0 and 36.2 with
selective_scan_fwd; but 8 x 384 x 197 are too many rows, which take 36.4 and 33.1.
"""

SHORT_LONG, LONG_ROWS = 1024, 4
"""With more than four states, rows that are not aligned run this kernel up to SHORT_LONG tokens, instead of being
copied, where a multiprocessor has at most LONG_ROWS of them. 1 x 64 x 300 takes 6.2 us so and 12.6 with copies.
"""

SHORT_ODD, ODD_ROWS = 2048, 8
"""Tiles take one state at a time where the number of states is odd. Few rows of up to four states then run this kernel
up to SHORT_ODD tokens, and those of one state up to twice as many where a multiprocessor has ODD_ROWS of them or more.
1 x 1536 x 2048 of one state takes 15 us so, and 23 with tiles in segments, x 4096 27.0 and 35.5; but 1 x 256 x 4096
22.2 and 14.9.
"""

SHORT_PAIR, PAIR_ROWS = 2048, 2
"""Rows of more than four states run this kernel up to SHORT_PAIR tokens, an even number, where a multiprocessor has at
most PAIR_ROWS of them: a block each. With 16 states 1 x 128 x 1024 takes 9.3 us so and 11.4 with tiles, 1 x 256 x 2048
18.1 and 20.1, and 1 x 256 x 1500, which is not aligned for tiles, 15.7 and 26.9; but 1 x 300 x 1024 11.6 and 11.4.
"""

SHORT_ALONE = 64
"""Tokens of aligned rows from which on this kernel is quicker with few states than tiles in which a lane has a channel
alone. 64 x 1536 x 32 of one state takes 26 us so and 18 with such tiles, x 64 25 and 41.
"""

SHORT_LEAST = 40
"""Tokens of other rows from which on this kernel is quicker with few states than selective_scan_fwd, however many rows
there are. 64 x 3072 x 49 of one state takes 63 us so and 147 with that, of 4 states 133 and 175.
"""

SHORT_FILL = 128
"""Threads per multiprocessor that long rows of few states must give this kernel, where rows are not aligned."""


def short_rows(inputs: Inputs, shapes: Sequence[TileShape], *, has_copies: bool) -> SelectiveScanShortFwd | None:
    """The kernel of short rows; None where another one is quicker, or where it cannot be.

    Args:
        inputs: what a scan reads and writes.
        shapes: the tiles that the rows have room for.
        has_copies: whether there can be copies of them that have.
    """
    batch, dim, seqlen = inputs.u.shape
    vec = tokens_vector(inputs)
    if vec is None or inputs.d_state > max_tile_states():
        return None
    rows, processors = batch * dim, multiprocessors(inputs.u.device)
    of = partial(SelectiveScanShortFwd.of, input_dtype(inputs), vec, d_state=inputs.d_state)
    fitting = [kernel for kernel in map(of, SelectiveScanShortFwd.LANES) if rows * kernel.group <= FILL * processors]
    # No more than half of a tile is empty.
    kernel = [of(SelectiveScanShortFwd.LANES[0]), *(each for each in fitting if 4 * each.lanes < seqlen)][-1]
    has_few_states, shared = kernel.parts == 1, [shape for shape in shapes if shape.group > 1]
    is_few = seqlen >= SHORT_TOKENS and rows * kernel.states <= SHORT_ROWS * processors
    is_pair = not has_few_states and vec > 1 and rows <= PAIR_ROWS * processors and seqlen <= SHORT_PAIR
    if shared and seqlen < TOKENS_OF_MANY:
        is_quick = is_few
    elif shared:
        is_odd = has_few_states and all(shape.at_once == 1 for shape in shared)
        longest = SHORT_ODD * (2 if kernel.states == 1 and rows >= ODD_ROWS * processors else 1)
        is_quick = is_pair or (is_odd and kernel.lanes == SelectiveScanShortFwd.LANES[-1] and seqlen <= longest)
    elif not has_few_states:
        is_short = seqlen < LEAST_COPIED or (seqlen < SHORT_LONG and rows <= LONG_ROWS * processors)
        is_quick = is_few and (is_short or is_pair)
    elif shapes:
        is_quick = seqlen >= SHORT_ALONE
    elif seqlen < LEAST_COPIED:
        is_quick = seqlen >= SHORT_LEAST or rows * kernel.group <= FILL * processors
    else:
        # 8 x 1536 x 2047 of one state take 137 us so and 191 with copies, but 1 x 5120 x 2047 106 and 91, and of two
        # states 275 and 195.
        is_copied = has_copies and (rows <= FEW_ROWS or inputs.d_state > 1)
        is_quick = rows * kernel.group >= SHORT_FILL * processors and not is_copied
    return kernel if is_quick else None
