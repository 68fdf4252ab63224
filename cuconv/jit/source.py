"""The device code: where it is, its text, and a digest that identifies it."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_INCLUDE = re.compile(r'^\s*#include "([^"]+)"', re.MULTILINE)
_PACKAGE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Source:
    """The texts of all .cu and .cuh files, by names relative to the folder such as "common/vec.cuh"."""

    files: Mapping[str, str]

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 over the names and texts of all files, in hexadecimal digits."""
        sha = hashlib.sha256()
        for name in sorted(self.files):
            for part in (name.encode(), self.files[name].encode()):
                # With its length in front, text that moves from one file to the next changes the digest.
                sha.update(len(part).to_bytes(8, "little") + part)
        return sha.hexdigest()

    def of(self, unit: str) -> Source:
        """A .cu file and all headers of this source that it includes, itself or by way of others."""
        if unit not in self.files:
            raise ValueError(f"unit is {unit!r}, want one of {', '.join(self.units())}")
        names = [unit]
        for name in names:
            names += [found for found in _INCLUDE.findall(self.files[name]) if found in self.files.keys() - {*names}]
        return Source({name: self.files[name] for name in names})

    @functools.cached_property
    def digests(self) -> frozenset[str]:
        """The digest of every .cu file with the headers that it includes."""
        return frozenset(self.of(unit).digest for unit in self.units())

    def units(self) -> list[str]:
        """The names of the .cu files."""
        return sorted(name for name in self.files if name.endswith(".cu"))

    def headers(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The names and the texts of the headers, for a compiler that reads them from memory."""
        names = tuple(sorted(name for name in self.files if name.endswith(".cuh")))
        return names, tuple(self.files[name] for name in names)


def folder() -> Path:
    """The folder cuda_src: inside an installed package, or beside the package in a source tree."""
    candidates = (_PACKAGE / "cuda_src", _PACKAGE.parent / "cuda_src")
    for candidate in candidates:
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(f"cuda_src, the device code of cuconv, is neither {candidates[0]} nor {candidates[1]}")


def read(root: Path) -> Source:
    paths = sorted(path for path in root.rglob("*") if path.suffix in (".cu", ".cuh"))
    # Editors leave hidden lock files and backups beside source files.
    visible = (path for path in paths if not path.name.startswith("."))
    return Source({path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in visible})


@functools.cache
def load() -> Source:
    """The device code of this installation, as it was at the first call of this function."""
    return read(folder())
