"""Plants one bug in a copy of the device code, and runs the tests that must find it, with builds of their own."""

from __future__ import annotations

import contextlib
import functools
import io
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from tests import emulator
from tests.emulator import compiler
from tests.families import test_numerics_emulated as numerics
from tests.mutants import Mutant, device_code

TESTS = Path(__file__).resolve().parents[1]

TIME_LIMIT = 30.0
"""Seconds that a launch may take: a bug may make it endless."""


class Verdict(NamedTuple):
    """What became of a mutant."""

    is_killed: bool
    text: str
    """The first line of the finding, or what went wrong."""
    seconds: float


@functools.cache
def _cases() -> dict[str, tuple[ModuleType, Any]]:
    return {str(each.id).partition("-")[2]: each.values for each in numerics.UNIT}


def find_case(test: str) -> tuple[ModuleType, Any] | Path:
    """The small case that a test's id names, or the file of a test that is pytest's to run."""
    if "::" in test:
        file = TESTS / test.partition("::")[0]
        if not file.is_file() or f"def {test.partition('::')[2].partition('[')[0]}(" not in file.read_text():
            raise LookupError(f"there is no test {test}")
        return file
    if test not in _cases():
        raise LookupError(f"there is no small case {test}")
    return _cases()[test]


def run_test(test: str) -> str | None:
    """Run one test on the device code of the moment. What it finds, in a line, or None."""
    found = find_case(test)
    if isinstance(found, Path):
        report = io.StringIO()
        with contextlib.redirect_stdout(report):
            code = pytest.main(["-q", "-x", "-p", "no:cacheprovider", "--tb=line", f"{TESTS}/{test}"])
        if code == pytest.ExitCode.OK:
            return None
        if code != pytest.ExitCode.TESTS_FAILED or "BuildError" in report.getvalue():
            raise RuntimeError(report.getvalue())
        return next((line for line in report.getvalue().splitlines() if "Error" in line), "failed")
    try:
        numerics.test_emulated(*found)
    except AssertionError as error:
        # The first line of a finding of the emulator is the kernel's name.
        lines = str(error).splitlines() or ["an assertion"]
        return lines[1] if isinstance(error, emulator.EmulationError) and len(lines) > 1 else lines[0]
    return None


@contextlib.contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """The emulator builds from device code with the bug in it, until the end of the `with`."""
    files = mutant.apply(device_code())
    with tempfile.TemporaryDirectory(prefix="cuconv-mutant-") as folder, pytest.MonkeyPatch.context() as patch:
        root, builds = Path(folder, "cuda_src"), Path(folder, "builds")
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")
        patch.setattr(compiler, "source_folder", lambda kernel: root)
        # The runtime is the same for all of them. Their own builds would push those of the tree out.
        runtime = compiler.runtime()
        patch.setattr(compiler, "runtime", lambda: runtime)
        patch.setattr(compiler, "root", lambda: builds)
        builds.mkdir()
        yield
        shutil.rmtree(builds, ignore_errors=True)


def judge(mutant: Mutant) -> Verdict:
    """Run a mutant's tests until one finds it."""
    begin = time.monotonic()
    assert emulator.run.__kwdefaults__ is not None
    emulator.run.__kwdefaults__["time_limit"] = TIME_LIMIT
    try:
        with planted(mutant):
            for test in mutant.tests:
                if finding := run_test(test):
                    return Verdict(True, finding, time.monotonic() - begin)
        text = "no test has found it"
    except Exception as error:
        # One that cannot be built, or that breaks the test instead of failing it, shows nothing.
        text = f"{type(error).__name__}: {error}"
    return Verdict(False, text, time.monotonic() - begin)


def check_whole(test: str) -> Verdict:
    """Run a test on the device code as it is, which must pass: else it would find any bug."""
    begin = time.monotonic()
    finding = run_test(test)
    return Verdict(finding is None, finding or "", time.monotonic() - begin)
