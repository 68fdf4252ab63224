"""Steps of models, small and on the CPU: what is timed, beside what, and what is not."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from cuconv.bench import results, steps
from cuconv.bench.results import Step
from cuconv.cli import bench, main
from cuconv.cli.console import OK, USAGE, WRONG
from tests.support.bench_machine import FakeMachine

torch = pytest.importorskip("torch", reason="torch is not installed")

STEP = Step("Mamba", {"batch": 4}, "training", "cuconv", 4.0)
SMALL = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 1, "state_size": 4}


def of_small(**options: Any) -> list[Step]:
    pytest.importorskip("transformers", reason="transformers is not installed")
    return list(steps.of_transformers("Mamba", SMALL, 1, "cpu", 2, 5, 2, **options))


def test_a_model_by_torch_and_by_cuconv() -> None:
    found = of_small()
    wanted = [(library, step) for library in ("torch", "cuconv") for step in ("prefill", "decode", "training")]
    assert [(row.library, row.step) for row in found] == wanted
    assert all(row.step_ms > 0 and row.sizes == {"batch": 2, "tokens": 5, "layers": 1, "hidden": 16} for row in found)


def test_there_is_no_time_beside_wrong_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "CLOSE", -1.0)
    with pytest.raises(ArithmeticError, match=r"^logits differ by .* of the largest$"):
        of_small()


def test_blocks_and_the_example() -> None:
    small = ["--device", "cpu", "--batch", "2", "--tokens", "9", "--width", "8", "--layers", "1", "--text-bytes", "999"]
    sizes = {"batch": 1, "tokens": 5, "d_model": 8, "blocks": 1}
    blocks, example = [*steps.of_blocks(sizes, 1, "cpu"), *steps.of_example(1, small)]
    assert (blocks.library, blocks.sizes) == ("cuconv", sizes)
    assert (example.model, example.sizes) == ("cuconv.torch.train", {"batch": 2, "tokens": 9, "width": 8, "layers": 1})


def test_packages_are_absent_for_a_while() -> None:
    import json.decoder

    before = sys.modules["json"]
    with steps._absent("json"), pytest.raises(ModuleNotFoundError):
        import json.encoder
    assert sys.modules["json"] is before and json.decoder is sys.modules["json.decoder"]


def test_the_command_writes_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "Machine", lambda quick: FakeMachine())
    monkeypatch.setattr(bench.device, "missing", lambda: None)
    path, parts = tmp_path / "results.jsonl", {"Mamba": lambda: iter([STEP])}
    monkeypatch.setattr(steps, "parts", lambda quick: parts)
    assert main(["bench", "--steps", "--output", str(path)]) == OK
    (run,) = results.read(path)
    assert run.rows == [STEP]
    assert "4.000  cuconv    training  Mamba, batch=4" in capsys.readouterr().out
    parts |= {"Lfm2": lambda: iter([1 // 0]), "FalconH1": lambda: iter([STEP])}
    assert main(["bench", "--steps"]) == WRONG
    out = capsys.readouterr().out
    assert "Lfm2: ZeroDivisionError: integer division or modulo by zero" in out and out.count("cuconv    training") == 2
    assert main(["bench", "--steps", "--op", "causal_conv1d_fn"]) == USAGE
