"""What is remembered from call to call: everything has the one limit below, for the life of a process."""

from __future__ import annotations

import threading
from functools import lru_cache

MAX_REMEMBERED = 2048
"""Most entries of a memo. Prepared calls of all functions share one memo, and so do their sets of addresses. Both full,
they take about 25 MB together: up to 9 KB per prepared call, and 0.7 KB per set of addresses."""

remembered = lru_cache(maxsize=MAX_REMEMBERED)
"""Gives a function a memo of its own, which drops what was not used for the longest time."""

remembered_by_type = lru_cache(maxsize=MAX_REMEMBERED, typed=True)
"""The same for arguments that nothing has checked: 2.0 equals 2, but is no size."""


class SharedLimit:
    """Sets that together hold at most MAX_REMEMBERED entries: beyond that, all of them are emptied."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sets: list[set[tuple[int, ...]]] = []
        self._entries = 0

    def add(self, entries: set[tuple[int, ...]], entry: tuple[int, ...]) -> None:
        """Add an entry to one of the sets."""
        with self._lock:
            if self._entries == MAX_REMEMBERED:
                for each in self._sets:
                    each.clear()
                self._sets.clear()
                self._entries = 0
            if not entries:
                self._sets.append(entries)
            entries.add(entry)
            self._entries += 1
