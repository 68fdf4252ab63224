"""Memory of earlier calls, for the life of a process; all of it has the one limit below."""

from __future__ import annotations

import threading
from functools import lru_cache

MAX_REMEMBERED = 2048
"""Most entries of a memo. Prepared calls of all functions share one memo, and so do their sets of addresses. Together
the two take about 25 MB when full: up to 9 KB per prepared call, and 0.7 KB per set of addresses."""

remembered = lru_cache(maxsize=MAX_REMEMBERED)
"""Decorator: gives a function a memo, which drops its least recently used entries."""

remembered_by_type = lru_cache(maxsize=MAX_REMEMBERED, typed=True)
"""Decorator: `remembered` for arguments that have not been checked, because 2.0 equals 2, but is no size."""


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
