"""The frame of the command line: which command runs, how it ends, and what it and the library print."""

from __future__ import annotations

import ast
import io
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from cuconv.cli import COMMANDS, main
from cuconv.cli.console import CANNOT, OK, USAGE, WRONG, CannotRun, Console, size_text
from tests.support.command_line import Capture, cuconv, error_of
from tests.support.discovery import ROOT


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., int]], None]:
    """Put a command of our own in the tour's place."""

    def put(run: Callable[..., int]) -> None:
        module = SimpleNamespace(add_arguments=lambda parser: parser.add_argument("--count", type=int), run=run)
        monkeypatch.setitem(sys.modules, "cuconv.cli.tour", module)  # type: ignore[arg-type]

    return put


@pytest.mark.parametrize("words", [[], ["--count", "3"], ["--json", "--verbose"], ["tour", "--count", "3"]], ids=str)
def test_without_a_command_it_is_the_tour(words: list[str], command: Callable[..., None]) -> None:
    seen = []
    command(lambda options, console: seen.append((options, console)) or WRONG)
    assert main(words) == WRONG
    ((options, console),) = seen
    assert options.count == (3 if "3" in words else None)
    assert console.is_json == ("--json" in words)


def test_an_unknown_command_is_named(capsys: Capture) -> None:
    code, text = error_of(capsys, "docter")
    assert code == USAGE
    assert "'docter'" in text and all(name in text for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as left:
        main([name, "--help"])
    assert left.value.code == OK
    text = capsys.readouterr().out
    assert "--json" in text and "--verbose" in text and f"cuconv {name}" in text


def test_help_names_commands_and_exit_codes() -> None:
    done = cuconv("--help")
    assert (done.returncode, done.stderr) == (OK, "")
    assert all(name in done.stdout for name in COMMANDS)
    assert f"{CANNOT} this machine cannot" in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (CannotRun("no GPU"), CANNOT, "cuconv: no GPU\n"),
        (ValueError("dim: got 0; wanted 1"), USAGE, "cuconv: dim: got 0; wanted 1\n"),
        (ModuleNotFoundError("No module named 'cupy'"), CANNOT, "cuconv: No module named 'cupy'; `cuconv doctor` says"),
        (PermissionError(13, "Permission denied", "/c"), CANNOT, "cuconv: [Errno 13] Permission denied: '/c'\n"),
        (KeyboardInterrupt(), 130, "cuconv: interrupted\n"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_an_error_is_one_line(
    error: BaseException, code: int, text: str, command: Callable[..., None], capsys: Capture
) -> None:
    def run(options: object, console: Console) -> int:
        raise error

    command(run)
    found = error_of(capsys)
    assert found[0] == code
    assert found[1].startswith(text) and found[1].count("\n") == 1


def test_a_mistake_of_our_own_is_not_hidden(command: Callable[..., None]) -> None:
    command(lambda options, console: {}["missing"])
    with pytest.raises(KeyError):
        main([])


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_seen_on_terminals_only() -> None:
    out, terminal, file = io.StringIO(), Terminal(), io.StringIO()
    for err in (terminal, file):
        Console(True, out, err).progress(2, 4, "half")
    assert "] 2/4 half" in terminal.getvalue() and "\n" not in terminal.getvalue()
    assert (out.getvalue(), file.getvalue()) == ("", "")


@pytest.mark.parametrize("write", [lambda c: c.line("x"), lambda c: c.finish({}), lambda c: c.note("x")])
def test_whatever_is_written_next_wipes_the_progress(write: Callable[[Console], None]) -> None:
    terminal = Terminal()
    console = Console(False, terminal, terminal)
    console.progress(1, 2, "half")
    write(console)
    console.progress(2, 2, "all")
    wiped, _, after = terminal.getvalue().partition("half")[2].partition("\r\033[K")
    assert wiped == "" and "\r\033[K[" in after


def test_in_json_there_are_no_lines() -> None:
    out, err = io.StringIO(), io.StringIO()
    console = Console(True, out, err)
    console.line("for people")
    console.note("for logs")
    console.finish({"value": [1, None]})
    assert json.loads(out.getvalue()) == {"value": [1, None]}
    assert err.getvalue() == "for logs\n"


def test_sizes_are_short() -> None:
    texts = [size_text(n) for n in (0, 999, 1000, 1_234_567, 5_300_000_000, 7_000_000_000_000)]
    assert texts == ["0 bytes", "999 bytes", "1.0 kB", "1.2 MB", "5.3 GB", "7000.0 GB"]


@pytest.mark.parametrize("is_verbose", [False, True])
def test_what_is_logged_goes_beside_the_results(
    is_verbose: bool, command: Callable[..., None], capsys: Capture
) -> None:
    logger = logging.getLogger("cuconv")
    before = (logger.level, list(logger.handlers))

    def run(options: object, console: Console) -> int:
        logger.info("compiled %s", "a kernel")
        logger.warning("slow")
        console.finish({})
        return OK

    command(run)
    assert main(["--json", "--verbose"] if is_verbose else ["--json"]) == OK
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {}
    assert printed.err == ("cuconv: compiled a kernel\n" if is_verbose else "") + "cuconv: slow\n"
    assert (logger.level, list(logger.handlers)) == before


LIBRARY = """
import logging, sys
if "loud" in sys.argv:
    logging.basicConfig(level=logging.INFO, format="%(name)s %(levelname)s %(message)s")
from cuconv.jit.build import build
build("bench/copy.cu", "copy_kernel<4>", 90)
build("bench/copy.cu", "copy_kernel<4>", 90)
"""


@pytest.mark.parametrize("words", [[], ["loud"]], ids=str)
def test_the_library_says_what_it_compiles_to_loggers_alone(words: list[str], tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "CUCONV_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", LIBRARY, *words], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == ""
    assert done.stderr.count("cuconv INFO compiled copy_kernel<4> for sm_90") == len(words)
    assert done.stderr.count("\n") == len(words)


def test_nothing_is_printed_but_by_the_console() -> None:
    """No module outside of the command line uses standard output or standard error either."""
    printing, streams = set(), set()
    for path in sorted((ROOT / "cuconv").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Name) and node.id == "print":
                printing.add(path.relative_to(ROOT).as_posix())
            elif isinstance(node, ast.Attribute) and node.attr.strip("_") in ("stdout", "stderr"):
                streams |= {path} if isinstance(node.value, ast.Name) and node.value.id == "sys" else set()
    # The example that trains is a program of its own.
    example = "cuconv/torch/train.py"
    assert printing == {"cuconv/cli/console.py", example}
    assert not [path for path in streams if path.parent != ROOT / "cuconv" / "cli" and path != ROOT / example]
