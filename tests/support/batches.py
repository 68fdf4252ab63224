"""Batches of packed sequences, by names that say what they are made of."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from cuconv.runtime.batches import lengths


@dataclass(frozen=True)
class Batch:
    """Where sequences begin in how many tokens; no starts when query_start_loc is not given."""

    total: int
    starts: tuple[int, ...] | None

    @property
    def count(self) -> int:
        """How many sequences there are."""
        return 1 if self.starts is None else len(self.starts) - 1

    @property
    def bounds(self) -> tuple[int, ...]:
        """The starts, given or not."""
        return (0, self.total) if self.starts is None else self.starts


@cache
def batch(spec: str) -> Batch:
    """The batch that a case names.

    "5+0+3x1" has sequences of 5, 0, 1, 1 and 1 tokens, "9in100" nine random ones of 100 tokens, "off2+5+off3" tokens
    of no sequence before and behind one of 5, "all7" one sequence that query_start_loc is not needed for.
    """
    if spec.startswith("all"):
        return Batch(int(spec.removeprefix("all")), None)
    starts: list[int] = []
    token = 0
    for term in spec.split("+"):
        if term.startswith("off"):
            token += int(term.removeprefix("off"))
            continue
        starts = starts or [token]
        for length in lengths(term):
            token += length
            starts.append(token)
    return Batch(token, tuple(starts or [token]))
