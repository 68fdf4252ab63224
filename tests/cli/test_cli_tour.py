"""`cuconv` alone: its parts in order, what it does without a GPU, and how it ends."""

from __future__ import annotations

import json
import shlex
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from cuconv.bench.compiling import kernels_of
from cuconv.bench.workloads import of_model
from cuconv.cli import main, options_for, tour
from cuconv.cli.console import CANNOT, OK, WRONG, CannotRun, Console
from tests.support.command_line import Capture

KERNELS = [kernel.expression for kernel in kernels_of(w for model in tour.MODELS for w in of_model(model))]
Parts = list[list[str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture
def parts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Parts]:
    """A machine with or without a GPU whose other commands say that they ran, and end so."""
    monkeypatch.setenv("CUCONV_CACHE_DIR", str(folder))

    def use(has_gpu: bool, **codes: int) -> Parts:
        ran: Parts = []

        def parse(words: Sequence[str]) -> Namespace:
            def run(options: Namespace, console: Console) -> int:
                ran.append(list(words))
                code = codes.get(words[0], OK)
                if code == CANNOT:
                    raise CannotRun(f"{words[0]} is impossible")
                console.line(f"{words[0]} ran")
                console.finish({"code": code})
                return code

            # What the command itself makes of the words, but for running.
            return Namespace(**{**vars(options_for(words)), "run": run})

        monkeypatch.setattr(tour, "options_for", parse)
        monkeypatch.setattr(tour.device, "missing", lambda: None if has_gpu else "no driver")
        return ran

    return use


def test_with_a_gpu_all_parts_run(parts: Any, capsys: Capture) -> None:
    ran = parts(True)
    assert main([]) == OK
    assert [words[0] for words in ran] == ["doctor", "check", "bench"]
    assert all(model in ran[2] for model in tour.MODELS)
    text = capsys.readouterr().out
    assert text.index("doctor ran") < text.index("check ran") < text.index("bench ran") < text.index("next:")


def test_nothing_is_timed_that_is_wrong(parts: Any) -> None:
    ran = parts(True, check=WRONG)
    assert main(["tour"]) == WRONG
    assert [words[0] for words in ran] == ["doctor", "check"]


def test_what_the_doctor_finds_decides_the_end_but_not_the_rest(parts: Any) -> None:
    ran = parts(True, doctor=WRONG)
    assert main([]) == WRONG
    assert len(ran) == 3


def test_a_part_that_is_impossible(parts: Any, capsys: Capture) -> None:
    parts(True, bench=CANNOT)
    assert main([]) == CANNOT
    assert "bench is impossible" in capsys.readouterr().out
    assert main(["--json"]) == CANNOT
    value = json.loads(capsys.readouterr().out)
    assert value == {"doctor": {"code": OK}, "check": {"code": OK}, "bench": {"cannot": "bench is impossible"}}


def test_without_a_gpu_kernels_are_compiled(parts: Any, capsys: Capture) -> None:
    ran = parts(False)
    assert main([]) == OK
    assert [words[0] for words in ran] == ["doctor"]
    lines = capsys.readouterr().out.splitlines()
    for expression in KERNELS:
        (line,) = [line for line in lines if line.endswith(f"  {expression}")]
        registers, spilt, *_ = line.split()
        assert 8 <= int(registers) <= 255 and spilt == "0"
    assert lines[-len(tour.NEXT) - 1] == "next:"


def test_json_is_one_value_and_says_what_was_cached(parts: Any, capsys: Capture) -> None:
    parts(False)
    for _ in range(2):
        assert main(["--json"]) == OK
        value = json.loads(capsys.readouterr().out)
    assert set(value) == {"doctor", "compiled"} and value["doctor"] == {"code": OK}
    rows = value["compiled"]["kernels"]
    assert [row["kernel"] for row in rows] == KERNELS
    assert all(row["from_cache"] and row["error"] is None and row["resources"]["registers"] > 0 for row in rows)


def test_a_kernel_that_does_not_compile(parts: Any, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    parts(False)

    def compile_all(kernels: Sequence[Any], capability: int, done: Any) -> dict[Any, Exception]:
        return {kernel: RuntimeError("NVRTC was not found") for kernel in kernels}

    monkeypatch.setattr(tour, "compile_all", compile_all)
    assert main([]) == WRONG
    text = capsys.readouterr().out
    assert f"failed {len(KERNELS)}" in text and "The first that failed: NVRTC was not found" in text


def test_what_comes_next_can_be_typed() -> None:
    commands = [shlex.split(command) for command in tour.NEXT if command.startswith("cuconv ")]
    assert len(commands) == 2
    for _, *words in commands:
        if "--help" in words:
            with pytest.raises(SystemExit) as caught:
                options_for(words)
            assert caught.value.code == 0
        else:
            assert callable(options_for(words).run)


@pytest.mark.gpu
def test_on_a_gpu(capsys: Capture) -> None:
    assert main(["--json"]) == OK
    value = json.loads(capsys.readouterr().out)
    assert value["check"]["is_right"] and value["bench"]["rows"]
