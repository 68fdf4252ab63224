"""`cuconv cache`: counts, verifies and removes the kernels on disk."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

from cuconv.cli.console import OK, WRONG, Console, size_text
from cuconv.jit import cache, contents, source
from cuconv.jit.contents import Contents, Entry
from cuconv.runtime.errors import message

REPAIR = "cuconv cache verify --repair"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action", nargs="?", choices=list(ACTIONS), default="info",
        help="info: how many kernels there are, unless said otherwise; verify: read them all back; clear: remove them",
    )  # fmt: skip
    parser.add_argument("--repair", action="store_true", help="of verify: remove what is damaged or left over")
    parser.add_argument("--stale", action="store_true", help="of clear: only kernels of another version's device code")
    parser.add_argument(
        "--arch", action="append", type=_arch, metavar="SM", help="of clear: only of this, such as sm_90; repeatable"
    )


def run(options: argparse.Namespace, console: Console) -> int:
    """Perform one action on the cache folder that the library uses."""
    owner = {"repair": "verify", "stale": "clear", "arch": "clear"}
    for option, action in owner.items():
        if getattr(options, option) and options.action != action:
            raise ValueError(message(f"the action of --{option}", options.action, action))
    root = cache.folder()
    return ACTIONS[options.action](root, contents.contents(root), options, console)


def _arch(text: str) -> str:
    name = f"sm_{text}" if text.isascii() and text.isdecimal() else text
    if not cache.ARCH_FOLDER.fullmatch(name):
        raise argparse.ArgumentTypeError(f"got {text!r}; wanted an architecture such as sm_90 or compute_90")
    return name


def _info(root: Path, found: Contents, options: argparse.Namespace, console: Console) -> int:
    rows = tally(found.entries)
    stale = [entry for entry in found.entries if is_stale(entry)]
    nbytes = sum(entry.nbytes for entry in found.entries)
    console.line(str(root) if root.is_dir() else f"{root}, which is not there yet")
    show(rows, console)
    console.line(f"{len(found.entries)} kernels, {size_text(nbytes)}")
    if stale:
        size = size_text(sum(entry.nbytes for entry in stale))
        console.line(f"of another version's device code: {len(stale)}, {size} (cuconv cache clear --stale)")
    _tell_damage(found, console)
    console.finish(
        {
            "folder": str(root),
            "count": len(found.entries),
            "bytes": nbytes,
            "kernels": rows,
            "stale": {"count": len(stale), "bytes": sum(entry.nbytes for entry in stale)},
            "damaged": [str(entry.path) for entry in found.damaged],
            "leftovers": [str(path) for path in found.leftovers],
        }
    )
    return OK


def _verify(root: Path, found: Contents, options: argparse.Namespace, console: Console) -> int:
    damaged = {str(entry.path): entry.problem for entry in found.damaged}
    removed: list[str] = []
    failed: dict[str, str] = {}
    console.line(f"{len(found.entries)} kernels in {root}: {len(damaged)} damaged")
    for name, problem in damaged.items():
        console.line(f"  {name}: {problem}")
    if options.repair:
        for entry in found.damaged:
            # Another process may have compiled the kernel again since.
            if (now := contents.inspect(entry.path)) is not None and now.problem:
                _remove(now.path, now.files, removed, failed)
        for path in found.leftovers:
            _remove(path, [path], removed, failed)
        _tell_removed(removed, failed, console)
    else:
        _tell_damage(found, console)
    console.finish(
        {
            "folder": str(root),
            "count": len(found.entries),
            "damaged": damaged,
            "leftovers": [str(path) for path in found.leftovers],
            "removed": removed,
            "failed": failed,
        }
    )
    return WRONG if failed or (damaged and not options.repair) else OK


def _clear(root: Path, found: Contents, options: argparse.Namespace, console: Console) -> int:
    def is_meant(path: Path) -> bool:
        return options.arch is None or path.parent.name in options.arch

    entries = [entry for entry in found.entries if is_meant(entry.path) and (is_stale(entry) or not options.stale)]
    leftovers = [path for path in found.leftovers if is_meant(path) and not options.stale]
    removed: list[str] = []
    failed: dict[str, str] = {}
    for entry in entries:
        _remove(entry.path, entry.files, removed, failed)
    gone = [entry for entry in entries if str(entry.path) not in failed]
    for path in leftovers:
        _remove(path, [path], removed, failed)
    rows, nbytes = tally(gone), sum(entry.nbytes for entry in gone)
    show(rows, console)
    console.line(f"removed from {root}: {len(gone)} kernels, {size_text(nbytes)}")
    _tell_removed(removed[len(gone) :], failed, console)
    console.finish(
        {
            "folder": str(root),
            "count": len(gone),
            "bytes": nbytes,
            "kernels": rows,
            "removed": removed,
            "failed": failed,
        }
    )
    return WRONG if failed else OK


ACTIONS: dict[str, Callable[[Path, Contents, argparse.Namespace, Console], int]] = {
    "info": _info,
    "clear": _clear,
    "verify": _verify,
}


def is_stale(entry: Entry) -> bool:
    """Whether an entry was compiled from another version's device code, so that no lookup finds it."""
    return not entry.problem and entry.source_digest not in source.load().digests


def tally(entries: Collection[Entry]) -> list[dict[str, Any]]:
    """The number of entries and their bytes, by architecture and kernel."""
    groups: dict[tuple[str, str], list[int]] = {}
    for entry in entries:
        groups.setdefault((entry.arch, entry.kernel), []).append(entry.nbytes)
    return [
        {"arch": arch, "kernel": kernel, "count": len(sizes), "bytes": sum(sizes)}
        for (arch, kernel), sizes in sorted(groups.items())
    ]


def show(rows: list[dict[str, Any]], console: Console) -> None:
    for row in rows:
        console.line(f"  {row['arch']:<12}{row['kernel']:<44}{row['count']:>6}{size_text(row['bytes']):>12}")


def _remove(name: Path, files: Iterable[Path], removed: list[str], failed: dict[str, str]) -> None:
    try:
        contents.remove(files)
        removed.append(str(name))
    except OSError as error:
        failed[str(name)] = error.strerror or str(error)


def _tell_damage(found: Contents, console: Console) -> None:
    if found.damaged:
        console.line(f"damaged: {len(found.damaged)}; they are compiled again when they are needed ({REPAIR})")
    if found.leftovers:
        console.line(f"left by writers that died: {len(found.leftovers)} files ({REPAIR})")


def _tell_removed(removed: list[str], failed: dict[str, str], console: Console) -> None:
    for name in removed:
        console.line(f"  removed {name}")
    for name, reason in failed.items():
        console.line(f"  not removed: {name}: {reason}")
