"""Every planted bug still applies to the device code, and names tests that exist."""

from __future__ import annotations

import argparse
import subprocess
import sys

import pytest

from tests.mutants import Mutant, device_code
from tests.mutants.__main__ import choose, share
from tests.mutants.planted import MUTANTS
from tests.mutants.run import TESTS, find_case
from tests.support.discovery import op_kernels

FEWEST = 60


def test_there_are_many() -> None:
    assert len({mutant.what for mutant in MUTANTS}) == len(MUTANTS) >= FEWEST


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.what)
def test_it_applies_once(mutant: Mutant) -> None:
    files = device_code()
    changed = mutant.apply(files)
    assert changed.keys() == files.keys() and changed != files


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.what)
def test_its_tests_exist(mutant: Mutant) -> None:
    assert mutant.tests
    for test in mutant.tests:
        find_case(test)


def test_the_tests_that_are_pytest_s_to_run_have_the_parameters_that_are_named() -> None:
    named = dict.fromkeys(f"{TESTS}/{test}" for mutant in MUTANTS for test in mutant.tests if "::" in test)
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *named]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def test_every_kernel_has_one_in_its_own_file() -> None:
    """A bug in a header may show in another kernel."""
    assert {kernel.file for kernel in op_kernels()} <= {mutant.file for mutant in MUTANTS}


def test_a_text_that_occurs_twice_is_refused() -> None:
    with pytest.raises(ValueError, match=r"occurs 2 times in a\.cu, not once"):
        Mutant("Bug.", "a.cu", "x", "y", ("some",)).apply({"a.cu": "xx"})


def test_shares_have_every_mutant_once() -> None:
    parts = [choose([], *share(f"{number}/7")) for number in range(1, 8)]
    assert sorted(mutant.what for part in parts for mutant in part) == sorted(mutant.what for mutant in MUTANTS)


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/2", "-1/2"])
def test_a_share_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="wanted such as 2/8"):
        share(text)
