"""`cuconv bench`: what it times, what it shows and writes, and how it ends."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import cuconv
from cuconv.bench import measure, results
from cuconv.bench.makers import MAKERS
from cuconv.bench.models import MODELS
from cuconv.bench.workloads import REPORT, of_model, workloads
from cuconv.cli import bench, main, options_for
from cuconv.cli.console import CANNOT, OK, WRONG
from tests.conftest import missing_gpu
from tests.support.bench_machine import HEADER, FakeMachine, peer
from tests.support.command_line import Capture

CONV = ["bench", "--op", "causal_conv1d_fn", "--shape", "batch=2,dim=16,seqlen=40"]


def chosen(*words: str) -> list[Any]:
    return bench.choose(options_for(["bench", *words]))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    """A machine with two other libraries; one of them takes half our time."""
    made = FakeMachine()
    made.torch_seconds = {0: ([1.5e-6] * 3, ""), 1: ([6e-6] * 3, "")}
    others = [peer(cuconv.causal_conv1d_fn, "quick"), peer(cuconv.causal_conv1d_fn, "slow")]
    monkeypatch.setattr(bench, "Machine", lambda quick: made)
    monkeypatch.setattr(bench.device, "missing", lambda: None)
    monkeypatch.setattr(
        bench, "find", lambda names, functions: (others, {"absent": "No module"}) if names else ([], {})
    )
    return made


def broken(monkeypatch: pytest.MonkeyPatch, name: str = "causal_conv1d_fn") -> None:
    """A function that writes nothing where results are given; the oracle gives none."""
    right = getattr(cuconv, name)
    monkeypatch.setattr(cuconv, name, lambda **given: None if "out" in given else right(**given))


def test_everything_of_the_report_is_timed_unless_something_is_named() -> None:
    wanted = [workload.title for function in REPORT for workload in workloads(REPORT, function)]
    assert [workload.title for workload in chosen()] == wanted


def test_functions_models_and_shapes_are_chosen() -> None:
    some = chosen("--op", "causal_conv1d_split", "--op", "causal_conv1d_varlen_states")
    assert [workload.function for workload in some] == ["causal_conv1d_split", "causal_conv1d_varlen_states"]
    layer = chosen("--model", "lfm2-1.2b", "--model", "lfm2-1.2b", "--dtype", "float16")
    assert layer == list(of_model("lfm2-1.2b", "float16"))
    assert {workload.function for workload in chosen("--model", "mamba-130m", "--op", "selective_scan_fn")} == {
        "selective_scan_fn"
    }
    shapes = chosen("--op", "causal_conv1d_update", "--shape", "dim=8", "--shape", "dim=16,batch=2")
    assert shapes == [MAKERS["causal_conv1d_update"](dim=8), MAKERS["causal_conv1d_update"](dim=16, batch=2)]


@pytest.mark.skipif(missing_gpu() is None, reason="there is a GPU")
def test_without_a_gpu_nothing_is_timed(capsys: Capture) -> None:
    assert main(["bench"]) == CANNOT
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert err.startswith("cuconv: no GPU can be used (") and "`cuconv doctor` says what is missing" in err


def test_a_table_of_what_was_measured(machine: FakeMachine, capsys: Capture) -> None:
    assert main(CONV) == OK
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert err == "" and max(map(len, lines)) <= 140
    assert lines[0].startswith("A GPU, sm_90, driver 580.1, CUDA 12.9") and "1980 MHz" in lines[0]
    assert lines[1].startswith("cuconv 0.1.0, device code 0123456789ab, CuPy 14.2, Python 3.12.1")
    assert lines[2] == "beside quick, slow; not here: absent (No module)"
    ours, quick, _, slow, _, host = lines[-6:]
    gb_per_s = f"{MAKERS['causal_conv1d_fn'](batch=2, dim=16, seqlen=40).bytes_moved / 3e-6 / 1e9:.0f}"
    assert ours.split() == [
        "batch=2", "dim=16", "seqlen=40", "3.00", "[1.80,", "4.20]", gb_per_s, "0.50", "0.50x"
    ]  # fmt: skip
    assert quick.split()[:2] == ["quick", "1.50"] and quick.endswith("0.50x")
    assert slow.split()[:2] == ["slow", "6.00"] and slow.endswith("2.00x")
    assert ours.index("3.00") == quick.index("1.50") == slow.index("6.00")
    assert host == "  us until a call returns: cupy 7.0, 7.0 with out, 7.0 bound; torch 7.0, 7.0 with out, 7.0 bound"


def test_one_json_value_and_nothing_else(machine: FakeMachine, capsys: Capture) -> None:
    assert main([*CONV, "--json"]) == OK
    value = json.loads(capsys.readouterr().out)
    header = replace(HEADER, peers={"quick": "", "slow": ""})
    assert value["run"] == results.to_json(header) and value["missing"] == {"absent": "No module"}
    kernels = [row for row in value["rows"] if row["kind"] == "kernel"]
    assert [(row["library"], row["kernel_us"]["p50"]) for row in kernels] == [
        ("cuconv", pytest.approx(3.0)), ("quick", pytest.approx(1.5)), ("slow", pytest.approx(6.0))
    ]  # fmt: skip
    assert len(value["rows"]) == 3 + 6


def test_what_libraries_print_is_kept_apart(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def chatters(**arguments: Any) -> Any:
        print("hello from a library")
        return cuconv.causal_conv1d_fn(**arguments)

    monkeypatch.setattr(bench, "find", lambda names, functions: ([peer(chatters)], {}))
    assert main([*CONV, "--json"]) == OK
    out, err = capsys.readouterr()
    assert json.loads(out) and "hello from a library" in err


def test_results_are_added_to_a_file(machine: FakeMachine, tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    assert main([*CONV, "--output", str(path), "--peers", "none", "--no-host"]) == OK
    assert main([*CONV, "--output", str(path)]) == OK
    first, second = results.read(path)
    assert first.header == HEADER and second.header == replace(HEADER, peers={"quick": "", "slow": ""})
    assert [type(row) for row in first.rows] == [results.Kernel]
    assert len(second.rows) == 3 + 6
    assert machine.host_calls == [measure.HOST_CALLS] * 6


def test_host_times_alone(machine: FakeMachine, tmp_path: Path, capsys: Capture) -> None:
    path, shapes = tmp_path / "results.jsonl", ["--shape", "dim=16", "--shape", "dim=8", "--shape", "dim=32"]
    assert main(["bench", "--op", "causal_conv1d_update", *shapes, "--only-host", "--output", str(path)]) == OK
    (run,) = results.read(path)
    assert {type(row) for row in run.rows} == {results.Host} and len(run.rows) == 6
    smallest = MAKERS["causal_conv1d_update"](dim=8)
    assert all(row.sizes == smallest.sizes for row in run.rows if isinstance(row, results.Host))
    assert "us until a call returns: cupy 7.0" in capsys.readouterr().out.splitlines()[-1]


def test_calls_that_engines_make_have_no_host_times(machine: FakeMachine, tmp_path: Path) -> None:
    path, shape = tmp_path / "results.jsonl", "sequences=5+7,dim=16,blocks=4"
    words = ["--op", "causal_conv1d_varlen_fn", "--shape", shape, "--peers", "none", "--output", str(path)]
    assert main(["bench", *words]) == OK
    (run,) = results.read(path)
    (row,) = run.rows
    assert isinstance(row, results.Kernel) and row.is_right and row.sizes["blocks"] == 4


def test_wrong_numbers_are_said_though_host_times_are_wanted(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    broken(monkeypatch)
    assert main([*CONV, "--only-host"]) == WRONG
    out = capsys.readouterr().out
    assert "WRONG: out[" in out and "until a call" not in out


def test_a_file_that_cannot_be_written_ends_it_at_once(machine: FakeMachine, tmp_path: Path, capsys: Capture) -> None:
    assert main([*CONV, "--output", str(tmp_path / "none" / "results.jsonl")]) == CANNOT
    assert "results.jsonl" in capsys.readouterr().err and machine.timed == []


def test_wrong_numbers_are_said_and_have_no_time(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Capture
) -> None:
    broken(monkeypatch)
    path = tmp_path / "results.jsonl"
    words = ["--op", "causal_conv1d_fn", "--shape", "dim=8,seqlen=9", "--peers", "none", "--output", str(path)]
    assert main(["bench", *words]) == WRONG
    out = capsys.readouterr().out
    assert "dim=8 seqlen=9" in out and "WRONG: out[" in out and "until a call" not in out
    (row,) = results.read(path)[0].rows
    assert isinstance(row, results.Kernel) and row.kernel_us is None and not row.is_right


def test_one_wrong_workload_among_right_ones_is_enough(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch, "causal_conv1d_update")
    monkeypatch.setitem(REPORT, "causal_conv1d_update", ({"dim": 8},))
    monkeypatch.setitem(REPORT, "causal_conv1d_fn", ({"dim": 8, "seqlen": 9},))
    names = ["--op", "causal_conv1d_update", "--op", "causal_conv1d_fn"]
    assert main(["bench", *names, "--peers", "none"]) == WRONG
    assert machine.timed == [machine.needed]


def test_other_libraries_may_be_wrong(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def fails(**arguments: Any) -> Any:
        raise RuntimeError("no such kernel " + 40 * "long ")

    monkeypatch.setattr(bench, "find", lambda names, functions: ([peer(fails, "fails")], {}))
    assert main(CONV) == OK
    out = capsys.readouterr().out
    assert "failed: RuntimeError: no such kernel" in out and max(map(len, out.splitlines())) == 140


def test_what_is_too_large_is_neither_wrong_nor_the_end(machine: FakeMachine, capsys: Capture) -> None:
    machine.free = 100_000
    words = ["--op", "causal_conv1d_fn", "--shape", "dim=8,seqlen=100000", "--shape", "dim=8,seqlen=9"]
    assert main(["bench", *words]) == OK
    out = capsys.readouterr().out
    assert "too large: needs 0.0 GiB" in out and machine.timed == [machine.needed]


def test_a_lost_gpu_is_the_end(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def breaks(**arguments: Any) -> Any:
        machine.alive = False
        raise RuntimeError("illegal memory access")

    monkeypatch.setattr(bench, "find", lambda names, functions: ([peer(breaks, "breaks")], {}))
    monkeypatch.setitem(REPORT, "causal_conv1d_fn", ({"dim": 8, "seqlen": 9}, {"dim": 16, "seqlen": 9}))
    assert main(["bench", "--op", "causal_conv1d_fn", "--op", "causal_conv1d_update"]) == CANNOT
    out, err = capsys.readouterr()
    assert "breaks" in out and "dim=16" not in out and "causal_conv1d_update" not in out
    assert err.startswith("cuconv: the GPU was lost")


def test_a_library_that_is_asked_for_and_missing_ends_it(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(bench, "find", lambda names, functions: ([], {"fla": "No module named 'fla'"}))
    assert main([*CONV, "--peers", "fla"]) == CANNOT
    assert capsys.readouterr().err == "cuconv: --peers: fla cannot be used here (No module named 'fla')\n"
    assert main([*CONV, "--peers", "all"]) == OK


def test_quick_reaches_the_machine(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(bench, "Machine", lambda quick: asked.append(quick) or machine)
    main([*CONV, "--quick", "--peers", "none"])
    main([*CONV, "--peers", "none"])
    assert asked == [True, False]


@pytest.mark.parametrize("function", MAKERS)
def test_lines_are_no_wider_than_the_page(function: str) -> None:
    titles = list(bench.title(function))
    assert max(map(len, titles)) <= 140 and titles[0].startswith(function)
    for workload in (*workloads(REPORT, function), *(w for m in MODELS for w in of_model(m) if w.function == function)):
        row = results.Kernel(
            function, dict(workload.sizes), "cuconv", bench.measure.Percentiles(12345.67, 12345.67, 12345.67), 1.0,
            workload.bytes_moved, 4321.0, 0.95, 0, 0.5, 0.5, True, "a note",
        )  # fmt: skip
        lines = list(bench.lines(workload, [row]))
        assert max(map(len, lines)) <= 140
        columns = next(line for line in lines if "12345.67" in line)
        assert columns.index("12345.67") + len("12345.67") == bench.LABEL + 9


@pytest.mark.gpu
def test_on_a_gpu(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "results.jsonl"
    assert main([*CONV, "--quick", "--peers", "none", "--output", str(path)]) == OK
    (run,) = results.read(path)
    assert run.header.gpu and run.header.python.startswith(f"{sys.version_info.major}.{sys.version_info.minor}")
    assert run.header.gpu in capsys.readouterr().out
