"""The command line, in a process of its own and in this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from cuconv.cli import main

Capture = pytest.CaptureFixture[str]


def cuconv(*words: str, path: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """`python -m cuconv` and these words; the folder `path` comes first where modules are looked for."""
    paths = os.pathsep.join(filter(None, [path, *sys.path]))
    return subprocess.run(
        [sys.executable, "-m", "cuconv", *words],
        env={**os.environ, "PYTHONPATH": paths, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def value_of(capsys: Capture, *words: str) -> tuple[int, Any]:
    """The exit code of a command in this process, and its JSON value."""
    capsys.readouterr()
    code = main([*words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def text_of(capsys: Capture, *words: str) -> tuple[int, str]:
    """The exit code of a command in this process, and what it prints."""
    capsys.readouterr()
    code = main(words)
    return code, capsys.readouterr().out


def error_of(capsys: Capture, *words: str) -> tuple[int, str]:
    """The exit code of a command that prints nothing but why it failed."""
    capsys.readouterr()
    try:
        code = main(words)
    except SystemExit as left:
        code = int(left.code or 0)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "Traceback" not in printed.err
    return code, printed.err
