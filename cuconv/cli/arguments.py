"""Types of options. Each refuses an invalid value with an error that shows the value and says what is wanted."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path


def whole(least: int) -> Callable[[str], int]:
    """The type of whole numbers from `least` on, in ASCII digits."""

    def number(text: str) -> int:
        if not (text.isascii() and text.isdecimal()) or int(text) < least:
            raise argparse.ArgumentTypeError(f"got {text!r}; wanted a whole number of at least {least}")
        return int(text)

    return number


def capability(text: str) -> int:
    """A compute capability, 90 for "90", "9.0" or "sm_90"."""
    if not (match := re.fullmatch(r"(?:sm_)?([0-9]{1,2})\.?([0-9])", text)):
        raise argparse.ArgumentTypeError(f"got {text!r}; wanted a compute capability such as 90 or sm_90")
    return int(match[1] + match[2])


def path(text: str) -> Path:
    """A file or folder; an empty text, such as that of a shell variable that is not set, names none."""
    if not text:
        raise argparse.ArgumentTypeError("got ''; wanted the name of a file or folder")
    return Path(text)
