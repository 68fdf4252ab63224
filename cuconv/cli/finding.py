"""Findings of `cuconv doctor`, and probes that work even if other parts are broken."""

from __future__ import annotations

import importlib.util
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Status = Literal["ok", "note", "missing", "wrong"]


@dataclass(frozen=True)
class Finding:
    """One fact about this machine. The user has to put right what is missing or wrong."""

    subject: str
    status: Status
    text: str
    fix: str = ""
    """A shell command that puts it right, empty when none is known."""
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_bad(self) -> bool:
        return self.status in ("missing", "wrong")

    @property
    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def lines(self) -> list[str]:
        """The finding as lines for people."""
        fix = [f"{'':10}{'':16}fix: {self.fix}"] if self.fix else []
        return [f"{self.status:<10}{self.subject:<16}{self.text}", *fix]


Probe = Callable[[], Iterator[Finding]]


def isolated(subject: str, probe: Probe) -> Iterator[Finding]:
    """The findings of a probe. An exception that ends it is a finding, too."""
    try:
        yield from probe()
    except Exception as error:
        # A broken library may raise any kind of exception.
        yield Finding(subject, "wrong", f"this could not be found out: {reason_of(error)}")


NEEDED_PACKAGES = ("numpy", "ml_dtypes")
"""Packages without which not even NumPy arrays can be computed."""


def absent_packages() -> list[str]:
    """The needed packages that are not installed."""
    return [name for name in NEEDED_PACKAGES if importlib.util.find_spec(name) is None]


def reason_of(error: BaseException) -> str:
    """An exception in one line."""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def pip_install(*requirements: str) -> str:
    return shlex.join(["pip", "install", *requirements])
