"""The contents of a cache folder, for people who ask. Other processes may read and write it meanwhile.

A file that is not named as the cache names its files is neither listed nor removed.
"""

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cuconv.jit import cache

UNFINISHED = 3600.0
"""Seconds after which an unfinished file is taken to be left by a writer that has died."""

_SECOND_LOOKS = 2
_BETWEEN_LOOKS = 0.1


@dataclass(frozen=True)
class Entry:
    """A kernel on disk. A damaged one counts as absent when it is looked up, and is compiled again."""

    path: Path
    """The path of the image. Its record is the .json file beside it."""
    nbytes: int
    """Bytes of the image and its record together."""
    source_digest: str
    """Digest of the files that the kernel was compiled from; empty when the entry is damaged."""
    problem: str
    """A description of the damage; empty when there is none."""

    @property
    def arch(self) -> str:
        return self.path.parent.name

    @property
    def files(self) -> tuple[Path, Path]:
        """The files in the order in which to remove them: an image without its record is never used."""
        return self.path.with_suffix(".json"), self.path

    @property
    def kernel(self) -> str:
        return self.path.stem.rpartition("-")[0]


@dataclass(frozen=True)
class Contents:
    """The entries of a folder, and files left by writers that have died."""

    entries: tuple[Entry, ...]
    leftovers: tuple[Path, ...]

    @property
    def damaged(self) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if entry.problem)


def contents(root: Path) -> Contents:
    """The entries under a cache folder, read and verified, and leftovers. A folder that does not exist is empty."""
    found: dict[Path, Entry] = {}
    leftovers: list[Path] = []
    for folder, names in _folders(root):
        for name in sorted(names):
            path = folder / name
            image = path.with_suffix(f".{cache.kind_of(folder.name)}")
            if path.suffix == ".json":
                if (entry := inspect(image)) is not None:
                    found[image] = entry
            elif (path != image or image.with_suffix(".json").name not in names) and _is_old(path):
                leftovers.append(path)
    # An entry that a writer is just replacing is whole a moment later.
    for _ in range(_SECOND_LOOKS):
        if damaged := [path for path, entry in found.items() if entry.problem]:
            time.sleep(_BETWEEN_LOOKS)
            for path in damaged:
                if (entry := inspect(path)) is None:
                    del found[path]
                else:
                    found[path] = entry
    return Contents(tuple(found.values()), tuple(leftovers))


def inspect(image: Path) -> Entry | None:
    """The entry of an image, verified. None if the image has no record, and so there is no entry."""
    digest, problem = "", ""
    try:
        digest = cache.read_record(image, image.stem.rpartition("-")[2])["source_digest"]
    except OSError as error:
        problem = f"{Path(error.filename or image).name}: {error.strerror}"
    except cache.MISSES as error:
        problem = str(error) if type(error) is ValueError else "the record is damaged"
    try:
        nbytes = os.stat(image.with_suffix(".json")).st_size
    except FileNotFoundError:
        return None
    except OSError:
        nbytes = 0
    try:
        nbytes += os.stat(image).st_size
    except OSError as error:
        problem = problem or f"{image.name}: {error.strerror}"
    return Entry(image, nbytes, "" if problem else digest, problem)


def remove(files: Iterable[Path]) -> None:
    """Remove files that still exist. Their folder stays, for another process may be about to write into it."""
    for path in files:
        path.unlink(missing_ok=True)


def _folders(root: Path) -> list[tuple[Path, set[str]]]:
    """The folders of architectures, each with the names of the files in it that belong to the cache."""
    try:
        names = sorted(os.listdir(root))
    except FileNotFoundError:
        return []
    folders = [root / name for name in names if cache.ARCH_FOLDER.fullmatch(name) and (root / name).is_dir()]
    return [(folder, _files(folder)) for folder in folders]


def _files(folder: Path) -> set[str]:
    is_ours = (cache.ENTRY_FILE, cache.TEMPORARY_FILE)
    with os.scandir(folder) as found:
        files = (file.name for file in found if file.is_file(follow_symlinks=False))
        return {name for name in files if any(pattern.fullmatch(name) for pattern in is_ours)}


def _is_old(path: Path) -> bool:
    try:
        return time.time() - os.stat(path).st_mtime > UNFINISHED
    except FileNotFoundError:
        # The file was moved into its place, or removed.
        return False
