"""Errors after many steps: measured by the public function, written, shown; and what they say of the dtypes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cuconv.bench import drift, results
from cuconv.bench.results import Drift
from cuconv.cli import bench, main
from cuconv.cli.console import OK, USAGE
from cuconv.cli.report import tables
from cuconv.runtime.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT8, INT16, DType
from tests.support.bench_machine import FakeMachine
from tests.support.measurements import measured

ROW = Drift("int8", True, "steady", 0.9, 100, 2.5e-3, -1e-4)


Found = dict[tuple[str, bool], list[Drift]]


def errors(formats: tuple[tuple[DType, bool], ...], steps: int, library: Any = np) -> Found:
    """Rows by format, in the order of inputs and decays."""
    found: Found = {}
    for row in drift.rows(library, formats, steps):
        found.setdefault((row.state_dtype, row.is_random), []).append(row)
    return found


def test_every_format_has_errors_of_its_size() -> None:
    """In the order of their bits: a decay of 0.5 leaves little of earlier roundings."""
    found = errors(drift.FORMATS, 40)
    assert len(found) == len(drift.FORMATS)
    for (dtype, _), (low, high) in zip(
        found, [(1e-8, 1e-7), *[(5e-4, 3e-3)] * 2, *[(5e-5, 4e-4)] * 2, *[(5e-6, 4e-5)] * 2, *[(1e-3, 9e-3)] * 2,
                *[(1e-2, 5e-2)] * 2], strict=True
    ):  # fmt: skip
        rows = [row for key, each in found.items() if key[0] == dtype for row in each]
        assert all(low < row.error < high for row in rows if (row.inputs, row.decay) == ("random", 0.5)), dtype
        assert all(abs(row.bias) <= row.error for row in rows)
    kinds = [(inputs, decay) for inputs in drift.INPUTS for decay in drift.DECAYS]
    assert all([(row.inputs, row.decay) for row in rows] == kinds for rows in found.values())


@pytest.mark.parametrize(
    "library",
    ["numpy", pytest.param("cupy", marks=pytest.mark.gpu)],
)
def test_int16_is_more_accurate_than_bfloat16_after_ten_thousand_steps(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Holds for every decay and both kinds of inputs. bfloat16 rounded to nearest loses steady inputs."""
    monkeypatch.setattr(drift, "HEADDIM", 2)
    formats = ((FLOAT32, False), (BFLOAT16, False), (INT16, False))
    module = pytest.importorskip(library)
    exact, coarse, fine = errors(formats, drift.STEPS, module).values()
    for best, worse, better in zip(exact, coarse, fine, strict=True):
        assert best.error < better.error + 1e-3 and better.error < worse.error / 5, better
    lost = next(row for row in coarse if (row.inputs, row.decay) == ("steady", 0.9999))
    assert lost.bias < -0.8


def test_rounding_at_random_helps_steady_inputs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drift, "HEADDIM", 4)
    formats = ((FLOAT16, False), (FLOAT16, True), (INT8, False), (INT8, True))
    found = errors(formats, 3000)
    for dtype in (FLOAT16, INT8):
        nearest, random = found[str(dtype), False], found[str(dtype), True]
        worse = [b.error / a.error for a, b in zip(nearest, random, strict=True) if a.inputs == "random"]
        assert all(1.1 < ratio < 1.9 for ratio in worse), worse
        slowest = [b.error / a.error for a, b in zip(nearest, random, strict=True) if a.inputs == "steady"][-1]
        assert slowest < 0.5


def test_the_table_has_a_cell_for_each() -> None:
    text = tables.drifts(measured([ROW]))
    lines = text.splitlines()
    assert len(lines) == 2 + len(drift.FORMATS) and text.count("not measured") == 10 * len(drift.FORMATS) - 1
    (line,) = [line for line in lines if "2.5e-03" in line]
    assert line.startswith("| int8 | at random |") and line.split("|")[9].strip() == "2.5e-03"
    newer = measured([ROW, Drift("int8", True, "steady", 0.9, 100, 3.5e-3, -1e-4)])
    assert "3.5e-03" in tables.drifts(newer) and "2.5e-03" not in tables.drifts(newer)


def test_the_command_writes_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(bench, "Machine", lambda quick: FakeMachine())
    monkeypatch.setattr(bench.device, "missing", lambda: None)
    monkeypatch.setattr(drift, "on_gpu", lambda steps: asked.append(steps) or iter([ROW]))
    path = tmp_path / "results.jsonl"
    assert main(["bench", "--drift", "--output", str(path)]) == OK
    (run,) = results.read(path)
    assert run.rows == [ROW]
    assert "2.5e-03   -1.0e-04  int8 random, steady, decay 0.9" in capsys.readouterr().out
    assert main(["bench", "--drift", "--quick"]) == OK
    assert asked == [drift.STEPS, drift.LAST]
    for more in (["--steps"], ["--op", "causal_conv1d_fn"], ["--model", "mamba2-2.7b"], ["--dtype", "float16"]):
        assert main(["bench", "--drift", *more]) == USAGE
