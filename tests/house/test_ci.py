"""What CI runs is what a user runs: the same checks, then the same tests, with examples that are new each time."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from tests.support.discovery import ROOT

PROGRAM = """
import json, tests.conftest
from hypothesis import settings
print(json.dumps([settings.default.derandomize, settings.default.print_blob]))
"""


def test_property_tests_draw_anew_in_ci_and_print_what_reproduces_a_failure() -> None:
    env = {**os.environ, "CI": "true", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [False, True]


def test_ci_checks_and_then_tests() -> None:
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert lines[-2:] == ["make check", "make test"]
    assert not any("CI=" in line for line in lines)
