"""Which of very many combinations a run tries. With CUCONV_EVERY=1 in the environment it tries all of them."""

from __future__ import annotations

import heapq
import os
import random
import secrets
from collections.abc import Hashable, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from cuconv.runtime.plan import Launch

Item = TypeVar("Item")

EVERY = os.environ.get("CUCONV_EVERY", "") not in ("", "0")

_SEED = os.environ.get("PYTEST_XDIST_TESTRUNUID") or secrets.token_hex()
"""The same in all processes of one run, for they must collect the same tests."""


def drawn(items: Sequence[Item], share: int) -> list[Item]:
    """One in `share` of these, others in every run, in their order."""
    choose = random.Random(f"{_SEED} {len(items)}")
    chosen = sorted(choose.sample(range(len(items)), len(items) // share))
    return [items[index] for index in chosen]


def needed(launches: Sequence[Sequence[Launch]]) -> list[int]:
    """Numbers of few of these calls that together run every kernel with every value of every axis.

    Each time the one is chosen that has most of what is still missing for the specialisations that it adds and the
    threads that it runs.
    """
    facts = [{fact for launch in each for fact in _facts(launch.kernel)} for each in launches]
    kernels = [{launch.kernel for launch in each} for each in launches]
    threads = [sum(launch.config.grid[0] * launch.config.block[0] for launch in each) for each in launches]
    missing, built = set[Hashable]().union(*facts), set[Any]()

    def worth(call: int) -> float:
        return len(facts[call] & missing) / (1 + len(kernels[call] - built) + threads[call] / 4096)

    best = [(-worth(call), call) for call in range(len(launches))]
    heapq.heapify(best)
    chosen = []
    while missing:
        _, call = heapq.heappop(best)
        now = worth(call)
        if best and now < -best[0][0]:
            # It was worth more before others were chosen.
            heapq.heappush(best, (-now, call))
            continue
        chosen.append(call)
        missing -= facts[call]
        built |= kernels[call]
    return sorted(chosen)


def _facts(kernel: Any) -> list[Hashable]:
    axes = [(type(kernel), field.name, getattr(kernel, field.name)) for field in fields(kernel)]
    return axes or [(type(kernel),)]
