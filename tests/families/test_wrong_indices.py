"""Index arrays that hold anything: a call writes nowhere but in what is its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.causal_conv1d import cases_by_blocks as conv_by_blocks
from tests.causal_conv1d import cases_update, cases_varlen, cases_varlen_bwd
from tests.selective_scan import cases_by_blocks as scan_by_blocks
from tests.selective_scan import cases_varlen as scan
from tests.selective_state_update.cases import Case as Update
from tests.support.blocks import USUAL
from tests.support.compare import check_values
from tests.support.runners import Runner

PACKED = "9+0+8+7x1+20+off4"
STRIPS = "off2+100x1+3x70+100x3+0+20x1+2x2+5+off1"
SHORT = "off2+20x1+70+3+0+20x1+2x2+5+off1"
CALLS: tuple[Any, ...] = (
    *(
        cases_update.Case(136, 9, 3, pool=pool, mode=mode, index="int64", window="channels", rows=True)
        for pool in ("channels_longer", "columns_and_one")
        for mode in ("shift", "circular", "accepted")
    ),
    *(
        cases_update.Case(
            136, 9, lengths=(3, 0, 5, 1), behind=2, pool=pool, mode=mode, index="int64", window="overlaid"
        )
        for pool in ("channels_longer", "columns_and_one")
        for mode in ("shift", "accepted")
    ),
    *(
        cases_update.Case(136, 9, 4, pool=pool, token_slots=3, index="int64", window="channels", whole=True, tree=tree)
        for pool in ("channels_longer", "columns_and_one")
        for tree in (False, True)
    ),
    cases_update.Case(136, 9, 4, tree=True, index="int64", window="channels", rows=True, table="column"),
    cases_varlen.Case(136, PACKED, index="int64", layout="channels"),
    cases_varlen.Case(5, PACKED, index="int64", layout="tokens"),
    # On one multiprocessor tokens are walked in strips and short sequences in windows, with results over x.
    cases_varlen.Case(136, STRIPS, index="int64", layout="tokens", processors=1, over=True),
    cases_varlen.Case(136, SHORT, index="int64", layout="channels", processors=1, over=True),
    *(
        cases_varlen_bwd.Case(channels, PACKED, index="int64", layout=layout)
        for channels, layout in ((136, "channels"), (40, "tokens"), (5, "tokens"))
    ),
    *(scan.Case(35, PACKED, index="int64", layout=layout) for layout in ("channels", "tokens")),
    scan.Case(35, PACKED, index="int64", table="column", moved=True),
    *(
        cases_varlen.Case(channels, PACKED, index="int64", layout=layout, snapshots=where, initial="all")
        for channels, layout in ((136, "channels"), (5, "tokens"))
        for where in ("pool", "whole")
    ),
    cases_varlen.Case(5, "6x9", index="int64", layout="channel_first", snapshots="pool", dense=True),
    *(scan.Case(128, PACKED, index="int64", layout=layout, snapshots="own") for layout in ("channels", "tokens")),
    scan.Case(128, PACKED, index="int64", snapshots="own", every=2, processors=1),
    *(
        by_blocks(8, **USUAL, size=4, behind=7, index="int64", by_channel=by_channel)
        for by_blocks in (conv_by_blocks.Case, scan_by_blocks.Case)
        for by_channel in (False, True)
    ),
    Update(6, 2, 6, 128, tokens=3, targets="one", steps="row", index="int64", per_head="all"),
    Update(6, 2, 6, 128, tokens=3, column="chosen", tree=True, steps="row", index="int64", per_head="all"),
    Update(6, 2, 6, 128, tokens=2, accepted=True, targets="each", steps="slot", index="int64", per_head="all"),
    Update("2+3+0+1+2", 2, 6, 128, accepted=True, steps="row", columns=2, index="int64", per_head="all"),
    Update(6, 2, 6, 128, index="int64", targets="one", state_dtype="int8", per_head="all"),
    Update(6, 2, 6, 128, tokens=3, tree=True, steps="row", index="int64", state_dtype="int8", per_head="all"),
    Update("2+3+0+1+2", 2, 6, 128, targets="each", columns=2, index="int64", per_head="all"),
)
WRONG = (-(2**63), -(2**62), -(2**31) - 1, -(2**31), -5, 12, 300, 2**31 - 1, 2**31, 2**62, 2**63 - 1)


@pytest.mark.parametrize("case", CALLS, ids=lambda case: f"{case.FUNCTION}-{case.id}")
@pytest.mark.parametrize("seed", range(12))
def test_wrong_indices_write_nowhere_else(case: Any, seed: int, run: Runner) -> None:
    values, random = case.inputs(), np.random.default_rng(seed)
    pools = ("state", "conv_state", "conv_states", "ssm_states", "initial_states")
    pool = next(values[name] for name in pools if name in values)
    # Just outside, too: of the pool and of packed tokens.
    wrong = [*WRONG, len(pool)] + ([49, 48 + 300] if "query_start_loc" in values else [])
    for name, right in case.integers().items():
        if right.dtype != bool:
            if name == "query_start_loc":
                right = random.integers(0, right.max() + 1, right.shape)
            is_wrong = random.uniform(size=right.shape) < 0.4
            values[name] = np.where(is_wrong, random.choice(wrong, right.shape), right)
    if case.FUNCTION != "causal_conv1d_update" or case.is_packed or case.token_slots:
        run(case, values)
    else:
        # Here every sequence with a right slot has its results, whatever the others say.
        state = values["conv_state"]
        state[...] = random.uniform(-1, 1, state.shape)
        check_values(case, values, run(case, values))
    if "has_initial_state" in values and hasattr(case, "initial"):
        run(replace(case, initial=None), {name: each for name, each in values.items() if name != "has_initial_state"})
