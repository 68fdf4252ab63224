"""How many things a test may do at a time."""

from __future__ import annotations

import os


def processors() -> int:
    """The processors that this process may use: its share, where pytest-xdist runs several."""
    return max(1, len(os.sched_getaffinity(0)) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
