"""`cuconv check`: right runners pass, broken ones are found and named, and nothing ends in a traceback."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cuconv
from cuconv.bench import compiling
from cuconv.bench.checking import DTYPES, MIXED, Case, DeviceLost, Row, cases, check
from cuconv.bench.compiling import compile_all, kernels_of
from cuconv.bench.copy import Copy
from cuconv.bench.gpus import KNOWN
from cuconv.cli import check as command
from cuconv.cli import main
from cuconv.cli.console import CANNOT, OK, USAGE, WRONG, Console
from cuconv.jit.cache import Artifact
from cuconv.runtime.dtypes import BFLOAT16, FLOAT32
from cuconv.runtime.workload import Workload
from tests.conftest import missing_gpu
from tests.support.command_line import Capture
from tests.support.placement import Array
from tests.support.workload_calls import numpy_path

Arrays = dict[str, Array]
Breakage = Callable[[Workload, Arrays], None]


def one(function: str, dtype: str = "bfloat16") -> Case:
    return list(cases([function], [dtype]))[-1]


def broken(breakage: Breakage) -> Callable[[Workload, Any], Arrays]:
    """The NumPy path, and then something goes wrong with what it left."""

    def run(workload: Workload, arrays: Any) -> Arrays:
        after = {name: array.copy() for name, array in numpy_path(workload, arrays).items()}
        breakage(workload, after)
        return after

    return run


@pytest.mark.parametrize("function", cuconv.OPERATORS)
def test_the_numpy_path_is_right(function: str) -> None:
    rows = [check(case, numpy_path) for case in cases([function], DTYPES)]
    assert rows and all(row.is_right and row.worst <= 1.0 and not row.reasons for row in rows)


def test_cases_are_of_all_functions_and_dtypes_and_few_kernels() -> None:
    chosen = list(cases(cuconv.OPERATORS, DTYPES))
    for function in cuconv.OPERATORS:
        own = [case for case in chosen if case.workload.function == function]
        assert {case.dtype for case in own} >= {*DTYPES} - {MIXED}
        for case in own:
            tokens = [array for name, array in case.workload.arrays.items() if name in ("x", "u", "x_ring")]
            # Cursors are integers whatever the dtype.
            assert bool(tokens) == (function != "selective_state_update_commit")
            for x in tokens:
                assert x.dtype.name == (BFLOAT16.name if case.dtype == MIXED else case.dtype)
    assert 100 < len(kernels_of(case.workload for case in chosen)) < 400


def test_mixed_cases_have_wider_filters_and_states() -> None:
    filters = list(cases(["causal_conv1d_fn", "causal_conv1d_update"], [MIXED]))
    states = list(cases(["selective_state_update"], [MIXED]))
    assert filters and states
    assert all(case.workload.arrays["weight"].dtype is FLOAT32 for case in filters)
    assert all(case.workload.arrays["state"].dtype is FLOAT32 for case in states)
    assert not list(cases(["causal_conv1d_varlen_states"], [MIXED]))


def _roll_out(workload: Workload, after: Arrays) -> None:
    after["out"] = np.roll(after["out"], 1, axis=-1)


def _swap_outs(workload: Workload, after: Arrays) -> None:
    after["out[1]"], after["out[2]"] = after["out[2]"], after["out[1]"]


def _stale(workload: Workload, after: Arrays) -> None:
    for name in workload.updated:
        after[name] = workload.host()[name]


def _nan(workload: Workload, after: Arrays) -> None:
    after["out"].flat[-1] = np.nan


def _overwrite(workload: Workload, after: Arrays) -> None:
    name = "delta" if "delta" in after else "x"
    after[name].flat[0] += 1


def _overwrite_index(workload: Workload, after: Arrays) -> None:
    next(array for name, array in after.items() if array.dtype == np.int32).flat[-1] += 1


@pytest.mark.parametrize(
    ("function", "breakage", "reason"),
    [
        ("causal_conv1d_fn", _roll_out, "out["),
        ("selective_scan_varlen_fn", _roll_out, "out["),
        ("causal_conv1d_split", _swap_outs, "out[1]["),
        ("causal_conv1d_update", _stale, "conv_state["),
        ("causal_conv1d_varlen_fn", _stale, "conv_states["),
        ("selective_state_update", _stale, "state["),
        ("selective_scan_varlen_fn", _stale, "ssm_states["),
        ("causal_conv1d_varlen_states", _nan, "out["),
        ("selective_scan_fn", _nan, "out["),
        ("selective_scan_fn", _overwrite, "delta was written to"),
        ("causal_conv1d_update_qkv_split", _overwrite, "x was written to"),
        ("causal_conv1d_varlen_states", _overwrite_index, "cu_seqlens was written to"),
    ],
)
def test_what_is_broken_is_named(function: str, breakage: Breakage, reason: str) -> None:
    row = check(one(function), broken(breakage))
    assert not row.is_right and row.reasons
    assert row.reasons[0].startswith(reason)


def failing(error: Exception, function: str) -> Callable[[Workload, Any], Any]:
    """The NumPy path, but for calls of one function."""

    def run(workload: Workload, arrays: Any) -> Any:
        if workload.function == function:
            raise error
        return numpy_path(workload, arrays)

    return run


CHOSEN = [one("causal_conv1d_varlen_states"), one("causal_conv1d_update"), one("causal_conv1d_split")]


def test_a_call_that_fails_is_wrong_and_the_others_go_on() -> None:
    error = RuntimeError("does not compile\nline 2")
    rows, lost = command.check_all(CHOSEN, failing(error, "causal_conv1d_update"), Console(True))
    assert lost is None and [row.is_right for row in rows] == [True, False, True]
    assert rows[1].reasons == ["RuntimeError: does not compile"]


def test_after_a_lost_device_nothing_is_checked() -> None:
    rows, lost = command.check_all(
        CHOSEN, failing(DeviceLost("illegal address"), "causal_conv1d_update"), Console(True)
    )
    assert lost == "illegal address" and [row.is_right for row in rows] == [True, False]


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """A machine with an H200, whose calls another runner makes; nothing is compiled."""

    def use(runner: Any) -> None:
        for name, value in {
            "present": lambda number: KNOWN["H200"],
            "on_gpu": lambda number: runner,
            "compile_all": lambda kernels, capability, done: {},
            "_devices": lambda asked: [0],
            "_machine": lambda number: {"gpu": "H200", "driver": "580"},
        }.items():
            monkeypatch.setattr(command, name, value)
        monkeypatch.setattr(command.device, "missing", lambda: None)

    return use


STEPS = len(list(cases(["causal_conv1d_update"], ["float16"])))
ARGUMENTS = ["check", "--op", "causal_conv1d_update", "--op", "causal_conv1d_varlen_states", "--dtype", "float16"]


def test_what_is_right(on_a_gpu: Any, capsys: Capture) -> None:
    on_a_gpu(numpy_path)
    assert main(ARGUMENTS) == OK
    lines = capsys.readouterr().out.splitlines()
    (update,) = [line.split() for line in lines if line.startswith("causal_conv1d_update ")]
    assert update[1] == str(STEPS) and 0.5 < float(update[2]) <= 1.0 and update[3] == "right"
    assert not [line for line in lines if "WRONG" in line]


def test_what_is_wrong(on_a_gpu: Any, capsys: Capture) -> None:
    on_a_gpu(broken(_stale))
    assert main(ARGUMENTS) == WRONG
    text = capsys.readouterr().out
    assert f"{STEPS} WRONG" in text and " on sm_90" in text
    assert "WRONG: causal_conv1d_update batch=5 dim=136 tokens=1 " in text
    assert "  conv_state[" in text and ", to the bit" in text
    assert "`cuconv check --op causal_conv1d_update --dtype float16`" in text
    assert [line.split()[-1] for line in text.splitlines() if line.startswith("causal_conv1d_varlen_states ")] == [
        "right"
    ]


@pytest.mark.parametrize(("runner", "code"), [(numpy_path, OK), (broken(_nan), WRONG)], ids=["right", "nan"])
def test_json(on_a_gpu: Any, capsys: Capture, runner: Any, code: int) -> None:
    on_a_gpu(runner)
    assert main([*ARGUMENTS, "--json"]) == code

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    value = json.loads(capsys.readouterr().out, parse_constant=refuse)
    (on_device,) = value["devices"]
    assert value["is_right"] == (code == OK) and on_device["driver"] == "580" and on_device["lost"] is None
    rows = on_device["rows"]
    assert len(rows) == len(list(cases(["causal_conv1d_update", "causal_conv1d_varlen_states"], ["float16"])))
    assert {row["is_right"] for row in rows} == {code == OK}
    assert all(result["error"] is None for row in rows for result in row["results"][:1] if code == WRONG)


def test_a_lost_device_ends_the_check(on_a_gpu: Any, capsys: Capture) -> None:
    on_a_gpu(failing(DeviceLost("cudaErrorIllegalAddress"), "causal_conv1d_varlen_states"))
    assert main(ARGUMENTS) == WRONG
    text = capsys.readouterr().out
    assert "The GPU was lost in the last of these calls (cudaErrorIllegalAddress)" in text


def test_there_is_an_end_to_what_is_listed() -> None:
    out = io.StringIO()
    row = Row(one("causal_conv1d_fn"), error="some error")
    command.report([row] * 33, None, KNOWN["H200"], Console(False, out))
    assert out.getvalue().count("WRONG: ") == command.MOST_LISTED
    assert "and 13 more" in out.getvalue()


@pytest.mark.skipif(missing_gpu() is None, reason="there is a GPU")
def test_without_a_gpu_nothing_is_said_to_be_right(capsys: Capture) -> None:
    assert main(["check", "--json"]) == CANNOT
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("cuconv: no GPU can be used (") and "nothing was checked" in err


def test_kernels_are_compiled_and_failures_kept(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUCONV_CACHE_DIR", str(tmp_path))
    good, bad = Copy(), Copy(vec=3)
    told: list[tuple[int, int, str]] = []

    def build(file: str, expression: str, capability: int) -> Artifact:
        if expression == bad.expression:
            raise RuntimeError("does not compile")
        return original(file, expression, capability)

    original = compiling.build
    monkeypatch.setattr(compiling, "build", build)
    found = compile_all([bad, good], 90, lambda *what: told.append(what))
    assert list(found) == [bad, good] and str(found[bad]) == "does not compile"
    artifact = found[good]
    assert isinstance(artifact, Artifact) and artifact.path.is_file() and artifact.path.is_relative_to(tmp_path)
    assert told == [(1, 2, "copy"), (2, 2, "copy")]


@pytest.mark.gpu
def test_on_a_gpu(capsys: Capture) -> None:
    assert main(["check", "--json", "--device", "0"]) == OK
    (found,) = json.loads(capsys.readouterr().out)["devices"]
    assert {row["function"] for row in found["rows"]} == {*cuconv.OPERATORS}


@pytest.mark.gpu
def test_a_device_that_is_not_there(capsys: Capture) -> None:
    assert main(["check", "--device", "4096"]) == USAGE
    assert capsys.readouterr().err.startswith("cuconv: device: got 4096; wanted 0 to ")
