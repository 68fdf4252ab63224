"""`cuconv report`: results of `bench` as tables, printed or put into a text, and as pictures."""

from __future__ import annotations

import argparse
import difflib
from pathlib import Path
from typing import Any

from cuconv.bench.results import latest
from cuconv.cli.arguments import path
from cuconv.cli.console import OK, WRONG, CannotRun, Console
from cuconv.cli.report import pictures, tables
from cuconv.cli.report.measured import Measured
from cuconv.runtime.errors import message

RESULTS = Path(__file__).resolve().parents[3] / "tests" / "benchmarks" / "results"
"""The folder of results in a source tree; an installed package has none."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--results", metavar="DIR", type=path, help="a folder of .jsonl files (the source tree's own)")
    parser.add_argument("--readme", metavar="FILE", type=path, help="write the tables between the markers of a text")
    parser.add_argument("--check", action="store_true", help="leave the text alone and say where it disagrees")
    parser.add_argument("--pictures", metavar="DIR", type=path, help="draw PNG files into this folder")


def run(options: argparse.Namespace, console: Console) -> int:
    """Print, write or draw the results. Returns WRONG when a text that is to be checked disagrees with them."""
    if options.check and options.readme is None:
        raise ValueError(message("--readme", "nothing", "the text to check"))
    measured = Measured(latest(result_files(options.results)))
    code = OK
    value: dict[str, Any] = {}
    if options.readme is not None:
        value["readme"] = _readme(options.readme, measured, options.check, console)
        code = WRONG if options.check and value["readme"]["diff"] else OK
    if options.pictures is not None:
        value["pictures"] = _pictures(options.pictures, measured, console)
    if not value:
        value["tables"] = {name: make(measured) for name, make in tables.TABLES.items()}
        console.line("\n\n".join(value["tables"].values()))
    console.finish(value)
    return code


def result_files(folder: Path | None) -> list[Path]:
    """The files of results in a folder, by default the source tree's. CannotRun if there are none."""
    if folder is None and not RESULTS.is_dir():
        raise CannotRun("no results are here: name a folder of .jsonl files with --results")
    files = sorted((folder or RESULTS).glob("*.jsonl"))
    if not files:
        raise CannotRun(f"{folder or RESULTS} holds no .jsonl files: `cuconv bench --output FILE` writes them")
    return files


def _readme(path: Path, measured: Measured, is_check: bool, console: Console) -> dict[str, Any]:
    before = path.read_text(encoding="utf-8")
    after = tables.render(before, measured)
    diff = list(difflib.unified_diff(before.splitlines(), after.splitlines(), str(path), "results", lineterm="", n=1))
    if diff and not is_check:
        path.write_text(after, encoding="utf-8", newline="\n")
    for line in diff if is_check else ():
        console.line(line)
    if not diff or not is_check:
        console.line(f"{path}: {'written' if diff else 'agrees with the results'}")
    return {"path": str(path), "diff": diff}


def _pictures(folder: Path, measured: Measured, console: Console) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    try:
        drawn = [str(picture) for picture in pictures.draw(folder, measured)]
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        raise CannotRun("pictures need matplotlib: pip install matplotlib") from None
    for name in drawn:
        console.line(f"{name}: drawn")
    return drawn
