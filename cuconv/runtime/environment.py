"""Environment variables: a quick look-up for every call, and the values that they take."""

from __future__ import annotations

import os
from collections.abc import Callable

from cuconv.runtime.errors import message, one_of


def _getenv() -> Callable[[bytes], bytes | None]:
    """A quick look-up of an environment variable, for every call.

    os.environ raises and catches two exceptions for a variable that is not set, which takes 0.5 us. Where names are
    bytes, it keeps them in a dict, and a look-up there takes 0.04 us.
    """
    kept = getattr(os.environ, "_data", None)
    if os.name == "posix" and isinstance(kept, dict):
        return kept.get
    return lambda name: os.environ.get(name.decode(), "").encode()


variable = _getenv()
"""The bytes of an environment variable; None or empty where it is not set."""

CHECK = b"CUCONV_CHECK"
"""The variable that asks for index arrays to be read back and checked."""

OFF = ("", "0", "false", "no", "off")
ON = ("1", "true", "yes", "on")
"""The values, in upper or lower case, by which CUCONV_CHECK is on."""


def contents_are_checked(word: str | None) -> bool:
    """Whether a value of CUCONV_CHECK asks for index arrays to be read back and checked; None where it is not set."""
    if word is None or word.lower() in OFF:
        return False
    if word.lower() in ON:
        return True
    raise ValueError(message("CUCONV_CHECK", repr(word), one_of([repr(each) for each in OFF + ON])))
