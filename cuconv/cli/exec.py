"""`cuconv exec`: a program that imports causal_conv1d or mamba_ssm, unchanged, with cuconv in their place.

Processes that the program starts find cuconv there, too.
"""

from __future__ import annotations

import argparse
import importlib.util
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from cuconv.cli.children.sitecustomize import pass_on
from cuconv.cli.console import OK, WRONG, CannotRun, Console

INTERRUPTED = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--replace", action="store_true", help="also in place of packages that are installed")
    parser.add_argument("-m", dest="module", metavar="module", help="run a module, as `python -m` does")
    parser.add_argument("program", nargs="?", help="a file; everything behind it, or behind the module, is for it")
    parser.set_defaults(words=[])


def own_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words of a command line up to the program, and those behind it, which are the program's."""
    for number, word in enumerate(words):
        if number and word == "-m":
            return list(words[: number + 2]), list(words[number + 2 :])
        if number and not word.startswith("-"):
            return list(words[: number + 1]), list(words[number + 1 :])
    return list(words), []


def run(options: argparse.Namespace, console: Console) -> int:
    """Run the program; returns its exit code."""
    if (options.module is None) == (options.program is None):
        raise ValueError("program: got none; wanted a file, or -m and a module")
    if options.program is not None and not Path(options.program).is_file():
        raise CannotRun(f"{options.program} is not a file")
    from cuconv.torch import install

    pass_on(install(replace=options.replace))
    if options.module is not None:
        sys.path.insert(0, "")
        package = options.module.partition(".")[0]
        if package not in sys.modules and importlib.util.find_spec(package) is None:
            raise CannotRun(f"there is no module {package}")
    sys.argv = [options.module or options.program, *options.words]
    try:
        if options.module is not None:
            runpy.run_module(options.module, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(options.program).resolve().parent))
            runpy.run_path(options.program, run_name="__main__")
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        # The program ends as under Python, and not as this command line ends for its own errors.
        sys.excepthook(type(error), error, error.__traceback__)
        return WRONG
    return OK
