"""The command line where packages are missing, streams are closed or narrow, and arguments make no sense."""

from __future__ import annotations

import fcntl
import io
import json
import os
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest

from cuconv.bench import results
from cuconv.cli import main
from cuconv.cli.console import CANNOT, OK, READER_GONE, USAGE, WRONG, Console
from tests.support.bench_machine import HEADER
from tests.support.command_line import Capture, cuconv, error_of
from tests.support.findings import about

ASCII = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}


def environment(**variables: str) -> dict[str, str]:
    """The environment of a child that finds this package."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **variables}


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "cuconv", *words]


pytestmark = pytest.mark.usefixtures("folder")


def without(tmp_path: Path, *packages: str) -> str:
    """A folder that makes these packages look as if they were not installed, when it comes first on the path."""
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({packages!r}))\n")
    return str(tmp_path)


@pytest.mark.parametrize("absent", [("numpy",), ("ml_dtypes",), ("numpy", "ml_dtypes")], ids="+".join)
def test_the_doctor_names_packages_that_are_not_installed(absent: tuple[str, ...], tmp_path: Path) -> None:
    done = cuconv("doctor", "--json", path=without(tmp_path, *absent))
    assert (done.returncode, done.stderr) == (WRONG, "")
    findings = json.loads(done.stdout)["findings"]
    for name in absent:
        (finding,) = about(findings, name)
        assert (finding["status"], finding["fix"]) == ("missing", f"pip install {name}")
    assert [f["subject"] for f in findings if f["status"] in ("missing", "wrong")] == list(absent)
    assert about(findings, "cache", "ok") and about(findings, "compiling", "note")


@pytest.mark.parametrize("absent", ["numpy", "ml_dtypes"])
def test_the_version_names_packages_that_are_not_installed(absent: str, tmp_path: Path) -> None:
    done = cuconv("--version", path=without(tmp_path, absent))
    assert done.returncode == OK and done.stdout.startswith("cuconv ")
    assert done.stderr.count("\n") == 1 and f"pip install {absent}" in done.stderr


def test_other_commands_name_them_in_one_line(tmp_path: Path) -> None:
    done = cuconv("warmup", "--arch", "90", path=without(tmp_path, "numpy"))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (CANNOT, "", 1)
    assert "numpy" in done.stderr and "cuconv doctor" in done.stderr


def test_a_function_says_which_package_it_needs(tmp_path: Path) -> None:
    lines = ("import cuconv", "try: cuconv.nothing", "except AttributeError: print('no such name')",
             "try: cuconv.ReplayRings", "except ModuleNotFoundError: print('nor that')")  # fmt: skip
    program = "\n".join([*lines, "cuconv.causal_conv1d_fn"])
    env = environment(PYTHONPATH=os.pathsep.join([without(tmp_path, "ml_dtypes"), *sys.path]))
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout == "no such name\nnor that\n"
    assert done.stderr.splitlines()[-1].endswith("causal_conv1d_fn needs ml_dtypes: run pip install ml_dtypes")


def test_what_ascii_lacks_is_shown_in_ascii() -> None:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii")
    Console(False, out, out).line("8 × 16, 3 µs… in /tmp/ü\udcff")
    assert raw.getvalue() == b"8 x 16, 3 us... in /tmp/\\xfc\\udcff\n"


def test_a_file_name_that_no_encoding_has_is_shown() -> None:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="utf-8")
    Console(False, out, out).line("µ \udcff")
    assert raw.getvalue().endswith(b" \\udcff\n")


def test_a_folder_with_other_letters_is_shown_under_an_ascii_locale(tmp_path: Path) -> None:
    done = cuconv("cache", "info", CUCONV_CACHE_DIR=str(tmp_path / "größe"), **ASCII)
    assert (done.returncode, done.stderr) == (OK, "")
    assert "gr\\xf6\\xdfe" in done.stdout or "gr\\udcc3" in done.stdout


def test_tables_are_printed_under_an_ascii_locale(tmp_path: Path) -> None:
    from tests.support.measurements import hosts, kernels

    results.append(tmp_path / "a.jsonl", HEADER, *kernels(), *hosts())
    done = cuconv("report", "--results", str(tmp_path), **ASCII)
    assert (done.returncode, done.stderr) == (OK, "")
    assert "batch x dim x seqlen" in done.stdout


@pytest.mark.parametrize("closed", ["2>&-", ">&-", ">&- 2>&- <&-"])
def test_closed_streams_change_nothing_else(closed: str, tmp_path: Path) -> None:
    """Also the file that is opened first: it must not take the place of the closed stream."""
    calls = ("code = main(['cache'])", "print(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT))", "sys.exit(code)")
    program = "; ".join(["import os, sys", "from cuconv.cli import main", *calls])
    words = f'"{sys.executable}" -c "{program}" "{tmp_path}/file" {closed}'
    done = subprocess.run(["sh", "-c", words], env=environment(), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (OK, "")
    if "2" in closed and ">&- " not in closed:
        assert "0 kernels" in done.stdout and int(done.stdout.splitlines()[-1]) > 2


def test_an_error_without_a_standard_error_has_its_exit_code() -> None:
    done = subprocess.run(["sh", "-c", f'"{sys.executable}" -m cuconv cache burn 2>&-'], env=environment(), timeout=60)
    assert done.returncode == USAGE


@pytest.mark.parametrize("words", [("cache", "info"), ("--help",), ("doctor", "--help"), ("--version",)], ids=" ".join)
def test_a_reader_that_is_gone_ends_a_command_as_it_ends_others(words: tuple[str, ...]) -> None:
    """By the status that a shell shows of a program that SIGPIPE ended, and without a word."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(command(*words), stdout=write, stderr=subprocess.PIPE, env=environment(), text=True)
    os.close(write)
    assert (done.returncode, done.stderr) == (READER_GONE, "") and READER_GONE == 141


def test_the_first_line_of_the_doctor_can_be_taken() -> None:
    words = 'set -o pipefail; "$@" | head -1'
    done = subprocess.run(
        ["bash", "-c", words, "bash", *command("doctor")], env=environment(), capture_output=True, text=True
    )
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (141, "", 1)


def test_a_reader_of_errors_that_is_gone_changes_nothing(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        command("report", "--results", str(tmp_path)), stdout=subprocess.PIPE, stderr=write, env=environment()
    )
    os.close(write)
    assert (done.returncode, done.stdout) == (CANNOT, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_a_full_disk_is_said_once() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(command("cache"), stdout=full, stderr=subprocess.PIPE, env=environment(), text=True)
    assert done.returncode == CANNOT
    assert done.stderr == "cuconv: [Errno 28] No space left on device\n"


@pytest.mark.parametrize("columns", [1, 10, 40, 80, 200])
def test_progress_fits_into_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The terminal is that of standard error, whatever standard output is: a line that wraps is never wiped."""
    monkeypatch.setenv("COLUMNS", "300")
    ours, theirs = os.openpty()
    try:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
        with open(theirs, "w", closefd=False) as terminal:
            Console(False, io.StringIO(), terminal).progress(3, 4, "selective_scan_fn" * 9)
        shown = os.read(ours, 4096).decode().removeprefix("\r\033[K")
    finally:
        os.close(ours)
        os.close(theirs)
    assert len(shown) == min(columns - 1, 110)
    assert columns < 40 or f"{'#' * (min(30, (columns - 1) // 3) * 3 // 4)} " in shown


@pytest.mark.parametrize("name", ["", "doctor", "check", "warmup", "cache", "bench", "explain", "report", "tour"])
def test_help_fits_into_forty_columns(name: str) -> None:
    """But for what has no space in it."""
    done = cuconv(*filter(None, [name]), "--help", COLUMNS="40")
    assert (done.returncode, done.stderr) == (OK, "")
    assert all(len(line) <= 40 for line in done.stdout.splitlines() if len(line.split()) > 2)


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        (b"\x89PNG\r\n\x1a\n\xff\x00", "byte 0 that is not UTF-8"),
        (b"\0" * 50 + b"\n", "results.jsonl:1: "),
        (b"[" * 100_000 + b"\n", "results.jsonl:1: "),
        (b"7\n", "results.jsonl:1: kind: got None"),
    ],
    ids=["picture", "zeros", "nested", "number"],
)
def test_a_file_that_holds_no_results_is_named(content: bytes, wanted: str, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "results.jsonl").write_bytes(content)
    code, text = error_of(capsys, "report", "--results", str(tmp_path))
    assert code == USAGE and str(tmp_path / "results.jsonl") in text and wanted in text and text.count("\n") == 1


@pytest.mark.parametrize("content", [b"\x89PNG\r\n\x1a\n\xff\x00", b"notes", b"[1]\n"], ids=repr)
def test_results_are_not_added_to_a_file_of_something_else(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="first line"):
        results.append(path, HEADER)
    assert path.read_bytes() == content


def test_main_leaves_the_streams_of_its_caller_alone(capsys: Capture) -> None:
    before: tuple[Any, ...] = (sys.stdout, sys.stderr, os.fstat(1), os.fstat(2))
    assert main(["cache"]) == OK
    assert (sys.stdout, sys.stderr, os.fstat(1), os.fstat(2)) == before
