"""What is in a cache folder, for people who ask; other processes may go on reading and writing it meanwhile.

Whatever is not named as the cache names its files is not ours: it is neither listed nor removed.
"""

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cuconv.jit import cache

UNFINISHED = 3600.0
"""Seconds after which a file that a writer has not finished is taken to be left over from one that died."""

_SECOND_LOOKS = 2
_BETWEEN_LOOKS = 0.1


@dataclass(frozen=True)
class Entry:
    """A kernel on disk; what is damaged, a reader takes for absent, and it is compiled again."""

    path: Path
    """Of the image; the record is the .json beside it."""
    nbytes: int
    """Of both files."""
    source_digest: str
    """Of the device code that it was compiled from; empty when it is damaged."""
    problem: str
    """What is damaged; empty when nothing is."""

    @property
    def arch(self) -> str:
        return self.path.parent.name

    @property
    def files(self) -> tuple[Path, Path]:
        """In the order to remove them: without its record nobody believes an image."""
        return self.path.with_suffix(".json"), self.path

    @property
    def kernel(self) -> str:
        return self.path.stem.rpartition("-")[0]


@dataclass(frozen=True)
class Contents:
    """Entries, and files that dead writers have left."""

    entries: tuple[Entry, ...]
    leftovers: tuple[Path, ...]

    @property
    def damaged(self) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if entry.problem)


def contents(root: Path) -> Contents:
    """Everything of ours under a cache folder, read and verified; a folder that is not there is empty."""
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
    # What a writer was in the middle of replacing is whole a moment later.
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
    """The entry of an image, verified; None when there is no record, for then there is no entry."""
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
    """Remove files, if they are still there; not their folder, for another process may be about to write into it."""
    for path in files:
        path.unlink(missing_ok=True)


def _folders(root: Path) -> list[tuple[Path, set[str]]]:
    """The folders of architectures, and the names of our files in each."""
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
        # Moved into its place, or removed.
        return False
