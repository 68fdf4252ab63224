"""Words on the command line that make no sense: what is wrong is said, and nothing is done."""

from __future__ import annotations

from pathlib import Path

import pytest

from cuconv.cli.console import USAGE
from tests.jit.test_jit_cache import store
from tests.support.command_line import Capture, error_of

CONV, SCAN, STEP = "causal_conv1d_fn", "selective_scan_fn", "causal_conv1d_update_qkv_split"
BENCH: list[tuple[list[str], str]] = [
    (["--shape", "dim=8"], "--shape: got no function"),
    (["--op", CONV, "--op", "causal_conv1d_split", "--shape", "dim=8"], "--shape: got no function"),
    (["--op", CONV, "--model", "lfm2-1.2b", "--shape", "dim=8"], "--shape: got no function"),
    (["--op", CONV, "--shape", "dims=8"], "shape: got 'dims'; wanted one of batch"),
    (["--op", CONV, "--dtype", "float16"], "--dtype: got float16; wanted a --model"),
    (["--op", SCAN, "--model", "lfm2-1.2b"], "--op: got selective_scan_fn; wanted what lfm2-1.2b"),
    (["--peers", "tensorflow"], "peers: got 'tensorflow'; wanted one of none, all, causal_conv1d"),
    (["--op", "conv"], "invalid choice: 'conv'"),
    (["--model", "gpt"], "invalid choice: 'gpt'"),
]
WARMUP: list[tuple[list[str], str]] = [
    (["--op", "causal_conv1d"], "invalid choice: 'causal_conv1d'"),
    (["--model", "gpt-2"], "invalid choice: 'gpt-2'"),
    (["--dtype", "float64"], "invalid choice: 'float64'"),
    (["--arch", "hopper"], "--arch: got 'hopper'; wanted a compute capability such as 90 or sm_90"),
    (["--arch", "9"], "--arch: got '9'; wanted"),
    (["--jobs", "0"], "--jobs: got '0'; wanted a whole number of at least 1"),
    (["--shape", "dim=64"], "options: got --shape and 0 --op; wanted the one --op"),
    (["--shape", "dim=64", "--op", STEP, "--op", CONV], "options: got --shape and 2 --op"),
    (["--model", "lfm2-1.2b", "--width", "3"], "options: got --model beside --width"),
    (["--model", "lfm2-1.2b", "--op", SCAN], "op: got selective_scan_fn; wanted a function that"),
    (["--op", CONV, "--shape", "dims=4"], "shape: got 'dims'; wanted one of batch, dim"),
    (["--op", CONV, "--width", "99"], "width of weight: got 99; wanted 1 to 16"),
    (["--width", "٤"], "got '٤'; wanted"),
    (["--width", "0"], "got '0'; wanted"),
    (["--jobs", "٢"], "got '٢'; wanted"),
    (["--arch", "٩١"], "got '٩١'; wanted"),
]
CACHE: list[tuple[list[str], str]] = [
    (["info", "--repair"], "the action of --repair: got info; wanted verify"),
    (["verify", "--stale"], "the action of --stale: got verify; wanted clear"),
    (["--arch", "sm_90"], "the action of --arch: got info; wanted clear"),
    (["clear", "--arch", "hopper"], "--arch: got 'hopper'; wanted an architecture such as sm_90"),
    (["clear", "--arch", "../sm_90"], "--arch: got '../sm_90'; wanted"),
    (["clear", "--arch", "sm_٩١"], "got 'sm_٩١'; wanted"),
    (["clear", "--arch", "٩١"], "got '٩١'; wanted"),
]
CHECK: list[tuple[list[str], str]] = [
    (["--op", "causal_conv1d"], "'causal_conv1d'"),
    (["--dtype", "float64"], "'float64'"),
    (["--device", "x"], "'x'"),
    (["--device", "٣"], "got '٣'; wanted"),
    (["--device", "-1"], "got '-1'; wanted"),
]
EXPLAIN: list[tuple[list[str], str]] = [
    (["causal_conv1d_varlen_fn", "--shape", "dims=3"], "cuconv: shape: got 'dims'; wanted one of sequences, dim"),
    (["causal_conv1d_varlen_fn", "--shape", "dtype=float64"], "cuconv: dtype: got 'float64'; wanted one of float32, "),
    (["causal_conv1d_varlen_fn", "--shape", f"dim={2**40}"], f"cuconv: dim of x: got {2**40}; wanted 0 to 2147483647"),
    (["causal_conv1d_varlen_fn", "--arch", "91"], "cuconv: arch: got 91; wanted one of "),
    ([CONV, "--arch", "٩١"], "got '٩١'; wanted"),
    ([CONV, "--arch", "9_0"], "got '9_0'; wanted"),
]
FILES = [("report", "--pictures"), ("report", "--results"), ("report", "--readme"), ("bench", "--output")]
SHAPES = {
    **{
        shape: f"cuconv: shape: got {shape!r}; wanted name=value, or several of these between commas\n"
        for shape in ("", "batch=8,", ",batch=8", "batch=8,,dim=16", "8")
    },
    "batch=8,dim=16,batch=4": "shape: got batch twice in 'batch=8,dim=16,batch=4'; wanted every size once",
    "batch=8,batch=8": "shape: got batch twice",
    "batch=٨": "shape: got 'batch=٨'; wanted ASCII",
    "bätch=8": "shape: got 'bätch=8'; wanted ASCII",
    "batch=+8": "batch: got '+8'; wanted a whole number",
    "batch=1_0": "batch: got '1_0'; wanted a whole number",
    "batch=": "batch: got ''; wanted a whole number",
}
COMMANDS = {"bench": BENCH, "warmup": WARMUP, "cache": CACHE, "check": CHECK, "explain": EXPLAIN}
ROWS = [
    *((("docter",), "'docter'"), (("cache", "burn"), ""), (("warmup", "--arch"), ""), (("--verbose", "cache"), "")),
    (("doctor", "--color"), ""),
    *(((name, *words), text) for name, rows in COMMANDS.items() for words, text in rows),
    *((words, f"argument {words[-1]}: got ''; wanted the name of a file or folder") for words in FILES),
    *(
        ((name, *op, "--shape", shape), text)
        for shape, text in SHAPES.items()
        for name, *op in (("explain", CONV), ("bench", "--op", CONV), ("warmup", "--op", CONV))
    ),
]


@pytest.mark.parametrize(("words", "text"), ROWS, ids=lambda value: " ".join(value) if isinstance(value, tuple) else "")
def test_what_makes_no_sense_is_said_and_nothing_is_done(
    words: tuple[str, ...], text: str, folder: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store()
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    code, error = error_of(capsys, *words, *([""] if words in FILES else []))
    assert code == USAGE and text in error
    assert error.startswith("usage: ") or error.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before
