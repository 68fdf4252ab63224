"""query_start_loc that falls: results of packed scans are wrong then, but calls end and write nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.selective_scan import cases_varlen as scan
from tests.selective_scan import cases_varlen_bwd as scan_bwd
from tests.support.runners import Runner

GRADIENTS: tuple[Any, ...] = (
    # Chunks of their own, which wait for each other, and shared ones.
    scan_bwd.Case(3, "256+512+1", 33, 3, "float32"),
    scan_bwd.Case(3, "530+600", dtype="float32"),
    scan_bwd.Case(5, "300+0+10+513"),
    scan_bwd.Case(3, "300+5+260+off3", 9, without="initial_state dlast_state"),
)
FORWARD: tuple[Any, ...] = (
    # Walked runs, tiles and sweeps, and lanes for some states.
    scan.Case(35, "off3+20x3+40+60x2+30+17+off2", processors=1),
    scan.Case(40, "off3+20x3+40+60x2+30+17+off2", processors=1, snapshots="pool", **scan.TURNED),
    scan.Case(128, "200+236+300+200", processors=1),
    scan.Case(9, "20+3+41", 40, dtype="float32"),
)
# With seed 5 a chunk of the first gradients waited for one that is none.
CALLS = [*((case, seed) for case in GRADIENTS for seed in (0, 5)), *((case, 0) for case in FORWARD)]


@pytest.mark.parametrize(("case", "seed"), CALLS, ids=lambda each: str(getattr(each, "id", each)))
def test_a_call_with_borders_that_fall_ends(case: Any, seed: int, run: Runner) -> None:
    values, random = case.inputs(), np.random.default_rng(seed)
    total, starts = values["u"].shape[-1], values["query_start_loc"]
    values["query_start_loc"] = random.integers(-300, total + 300, starts.shape, starts.dtype)
    run(case, values)
