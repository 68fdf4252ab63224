"""Device code with bugs planted in it, one at a time: the tests that are named for each must find it.

A mutant that survives is a hole in the tests. `python -m tests.mutants` plants them all, which takes half an hour on
two cores and is not part of the test suite; the suite only checks that every mutant still applies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cuconv.jit import source


@dataclass(frozen=True)
class Mutant:
    """One bug: a text of a file of cuda_src that occurs there once, what it is replaced by, and who must notice."""

    what: str
    """The bug in one sentence."""
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    """Ids of tests: of a small case as in test_numerics_emulated.py, or those of pytest with the name of the file."""

    def apply(self, files: Mapping[str, str]) -> dict[str, str]:
        """All files of the device code with the bug in. ValueError where its text is not there exactly once."""
        count = files[self.file].count(self.old) if self.file in files else 0
        if count != 1:
            raise ValueError(f"{self.what} The text to be replaced occurs {count} times in {self.file}, not once")
        return {**files, self.file: files[self.file].replace(self.old, self.new)}


def device_code() -> dict[str, str]:
    """The files of cuda_src by name."""
    return dict(source.load().files)
