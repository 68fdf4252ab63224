"""Output of commands, as lines for people or as one JSON value for programs, and their exit codes."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import sys
from typing import Any, TextIO

OK, WRONG, USAGE, CANNOT = 0, 1, 2, 3
"""Exit codes, in this order: all is well; a result or a file is wrong, or something is missing; the command line is
invalid; this machine cannot run the command.
"""

READER_GONE = 128 + 13
"""Exit code of a command when the reader of its output is gone: the one that a shell shows for a program that SIGPIPE
has ended.
"""

_ASCII = str.maketrans({"…": "...", "×": "x", "–": "-", "·": "-", "µ": "u"})
"""Replacements for what an ASCII terminal cannot show."""

_MOST_COLUMNS, _BAR = 110, 30
"""Characters of a line of progress, and of the bar in it, on a wide terminal."""


class CannotRun(Exception):
    """Raised when a command cannot run on this machine. The text says why, and what would help."""


def open_closed_streams() -> None:
    """Open the standard streams that were closed when the process began: what is written to them is lost.

    Otherwise the next file that is opened would take the number of such a stream, and get what libraries write to it.
    """
    if sys.stdin is None or sys.stdout is None or sys.stderr is None:
        number = os.open(os.devnull, os.O_RDWR)
        while number <= 2:
            os.set_inheritable(number, True)
            number = os.open(os.devnull, os.O_RDWR)
        os.close(number)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)


def discard(stream: TextIO) -> None:
    """Discard what a stream still holds and what follows. Otherwise Python, which flushes it at exit, would
    complain."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


def flush_or_discard(stream: TextIO) -> None:
    """Write what a stream still holds, or lose it where it cannot be written."""
    try:
        stream.flush()
    except OSError:
        discard(stream)


class Console:
    """Standard output for results, in one of two forms, and standard error for all else."""

    def __init__(self, is_json: bool, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self.is_json = is_json
        self._out, self._err = out or sys.stdout, err or sys.stderr
        self._bar = False

    def line(self, text: str = "") -> None:
        """Print a line for people; nothing in the JSON form."""
        if not self.is_json:
            self._clear()
            print(_shown(text, self._out), file=self._out, flush=True)

    def progress(self, done: int, total: int, what: str) -> None:
        """Show the progress of a long command in one line that is overwritten, only where standard error is a
        terminal."""
        if self._err.isatty():
            # A line that wraps could not be wiped. The last column stays free, where some terminals wrap already.
            columns = min(_MOST_COLUMNS, _columns(self._err) - 1)
            bar = min(_BAR, columns // 3)
            filled = bar * done // max(1, total)
            text = f"[{'#' * filled}{' ' * (bar - filled)}] {done}/{total} {what}"
            self._tell(f"\r\033[K{text[:columns]}", end="")
            self._bar = True

    def _clear(self) -> None:
        if self._bar:
            self._tell("\r\033[K", end="")
            self._bar = False

    def _tell(self, text: str, end: str = "\n") -> None:
        # Whether anyone reads standard error must not change what a command does.
        try:
            print(_shown(text, self._err), end=end, file=self._err, flush=True)
        except OSError:
            discard(self._err)

    def finish(self, value: Any) -> None:
        """Print the command's one JSON value; nothing in the form for people."""
        self._clear()
        if self.is_json:
            print(json.dumps(value, indent=1), file=self._out, flush=True)

    def note(self, text: str) -> None:
        """Print a line that is no result, such as a log message, on standard error."""
        self._clear()
        self._tell(text)

    def error(self, text: str) -> None:
        """Print the reason why the command failed, on standard error."""
        self.note(f"cuconv: {text}")


def _columns(terminal: TextIO) -> int:
    """The width of a terminal in characters, which need not be standard output's."""
    try:
        return os.get_terminal_size(terminal.fileno()).columns or shutil.get_terminal_size().columns
    except (OSError, ValueError):
        return shutil.get_terminal_size().columns


def _shown(text: str, stream: TextIO) -> str:
    """A text in characters that the stream can encode."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_ASCII).encode(encoding, "backslashreplace").decode(encoding)
    return text


class Log(logging.Handler):
    """Shows what the package logs as notes."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        self._console.note(f"{record.name}: {record.getMessage()}")


def size_text(nbytes: float) -> str:
    """A number of bytes with three or four digits and a decimal unit, such as "5.3 GB"."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if nbytes < 1000 or unit == "GB":
            break
        nbytes /= 1000
    return f"{nbytes:.0f} {unit}" if unit == "bytes" else f"{nbytes:.1f} {unit}"
