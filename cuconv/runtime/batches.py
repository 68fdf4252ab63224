"""Lengths of packed sequences, from a specification that is short enough for a command line."""

from __future__ import annotations

import zlib
from itertools import chain

import numpy as np


def lengths(spec: str) -> list[int]:
    """The lengths of a specification, in order.

    "5+0+3x1" stands for sequences of 5, 0, 1, 1 and 1 tokens, "9in100" for nine random lengths that add up to 100.
    """
    return list(chain.from_iterable(map(_term, spec.split("+"))))


def _term(term: str) -> list[int]:
    try:
        if "in" in term:
            count, total = map(int, term.split("in"))
            # The term is the seed: a specification stands for the same lengths on every machine.
            cuts = np.random.default_rng(zlib.crc32(term.encode())).integers(0, total + 1, count - 1)
            return [int(n) for n in np.diff(np.sort(np.array([0, *cuts, total])))]
        times, _, length = term.rpartition("x")
        found = [int(length)] * int(times or 1)
    except ValueError:
        found = [-1]
    if min(found, default=0) < 0:
        raise ValueError(f"sequences: got {term!r}; wanted terms such as 512, 16x512 or 9in100, joined by +") from None
    return found
