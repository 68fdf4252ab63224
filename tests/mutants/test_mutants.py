"""Every planted bug still applies to the device code, and names tests that exist."""

from __future__ import annotations

import pytest

from cuconv.runtime.kernel import Kernel
from tests.mutants import Mutant, device_code
from tests.mutants.planted import MUTANTS
from tests.mutants.run import find_case
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


@pytest.mark.parametrize("cls", op_kernels())
def test_every_kernel_has_one(cls: type[Kernel]) -> None:
    """In its own file: a bug in a header may show in another kernel."""
    assert any(mutant.file == cls.file for mutant in MUTANTS)


def test_a_text_that_occurs_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="occurs 2 times in a.cu, not once"):
        Mutant("Bug.", "a.cu", "x", "y", ("some",)).apply({"a.cu": "xx"})
