"""Which scans of whole rows run SelectiveScanShortFwd: short rows, few rows and rows that are not aligned."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from cuconv.runtime.machine import multiprocessors
from cuconv.selective_scan.check import Inputs
from cuconv.selective_scan.kernels import SelectiveScanShortFwd, TileShape, max_tile_states
from cuconv.selective_scan.plan import FILL, input_dtype, tokens_vector
from cuconv.selective_scan.plan_turned import FEW_ROWS, LEAST_COPIED

TOKENS_OF_MANY = 128
"""Tokens from which on rows are not short where lanes of tiles can share them."""

SHORT_ALONE, SHORT_LEAST = 64, 40
"""Tokens of a row from which on SelectiveScanShortFwd with few states is quicker than a lane for each channel: than one
for aligned rows, and than one for any others, where there are many rows. On an H200 64 x 1536 x 32 of one state takes
26 us so and 18 with a lane for each channel, x 64 25 and 41; 64 x 3072 x 49, which is not aligned, 63 and 147, of 4
states 133 and 175, but 64 x 1536 x 1 25 and 7.
"""

SHORT_FILL = 128
"""Threads per multiprocessor from which on it has long rows of few states that are not aligned."""

SHORT_ODD = 2048
"""Tokens up to which it has few rows that lanes of tiles can share, where these have one state at a time: 1 x 1536 x
2048 of one state takes 15 us so, and 23 in segments."""

SHORT_TOKENS, SHORT_ROWS = 32, 80
"""Tokens from which on it has few rows, and their number per multiprocessor, divided by the states of a lane. With 16
states 1 x 256 x 96 takes 4.0 us so and 10.3 with tiles, 1 x 1536 x 250 13.0 and 36.2 with rows of any alignment, 8 x
384 x 197 36.4 and 33.1; with 8 states 16 x 384 x 196 24.8 and 27.2.
"""

SHORT_LONG = 1024
"""Tokens up to which it has rows of more than four states of which each multiprocessor has four, not aligned: longer
ones are copied. 1 x 64 x 300 takes 6.2 us so and 12.6 with copies."""


def short_rows(
    inputs: Inputs, shapes: Sequence[TileShape], *, has_copies: bool = False
) -> SelectiveScanShortFwd | None:
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
    if shared and seqlen < TOKENS_OF_MANY:
        is_quick = is_few
    elif shared:
        is_odd = has_few_states and all(shape.at_once == 1 for shape in shared)
        is_quick = is_odd and kernel.lanes == SelectiveScanShortFwd.LANES[-1] and seqlen <= SHORT_ODD
    elif not has_few_states:
        is_quick = is_few and (seqlen < LEAST_COPIED or (seqlen < SHORT_LONG and rows <= 4 * processors))
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
