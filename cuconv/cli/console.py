"""What commands write to: lines for people, or one JSON value for programs; and how they end."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any, TextIO

OK, WRONG, USAGE, CANNOT = 0, 1, 2, 3
"""Exit codes: all is well · a result or a file is wrong, or something is missing · the command line makes no sense ·
this machine cannot do it.
"""


class CannotRun(Exception):
    """A command's work is impossible on this machine; the text says why and what would help."""


class Console:
    """Standard output in one of two forms."""

    def __init__(self, is_json: bool, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self.is_json = is_json
        self._out, self._err = out or sys.stdout, err or sys.stderr
        self._bar = False

    def line(self, text: str = "") -> None:
        """A line for people."""
        if not self.is_json:
            self._clear()
            print(text, file=self._out, flush=True)

    def progress(self, done: int, total: int, what: str) -> None:
        """How far a long command is: one line that is written over, on a terminal's standard error only."""
        if self._err.isatty():
            filled = 30 * done // max(1, total)
            print(f"\r\033[K[{'#' * filled}{' ' * (30 - filled)}] {done}/{total} {what}"[:110], end="", file=self._err)
            self._err.flush()
            self._bar = True

    def _clear(self) -> None:
        if self._bar:
            print("\r\033[K", end="", file=self._err, flush=True)
            self._bar = False

    def finish(self, value: Any) -> None:
        """The command's one JSON value."""
        self._clear()
        if self.is_json:
            print(json.dumps(value, indent=1), file=self._out, flush=True)

    def note(self, text: str) -> None:
        """A line that is no result, such as what is logged: on standard error in both forms."""
        self._clear()
        print(text, file=self._err, flush=True)

    def error(self, text: str) -> None:
        """Why the command failed."""
        self.note(f"cuconv: {text}")


class Log(logging.Handler):
    """What the package logs, as notes."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        self._console.note(f"{record.name}: {record.getMessage()}")


def size_text(nbytes: float) -> str:
    """Bytes as people count them."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if nbytes < 1000 or unit == "GB":
            break
        nbytes /= 1000
    return f"{nbytes:.0f} {unit}" if unit == "bytes" else f"{nbytes:.1f} {unit}"
