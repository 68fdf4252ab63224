"""The command line, `python -m cuconv` or `cuconv`: a module a command."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import logging
import os
import sys
from collections.abc import Iterator, Sequence

from cuconv.cli.console import CANNOT, OK, USAGE, WRONG, CannotRun, Console, Log

COMMANDS = {
    "doctor": "what this machine has, what is missing, and the command that fixes it",
    "check": "every function against the oracle, on this machine",
    "warmup": "compile kernels ahead, also where there is no GPU",
    "cache": "the kernels on disk: info, clear, verify",
    "bench": "time functions beside a copy and beside other libraries",
    "explain": "what a call would launch, and what it costs",
    "report": "tables and pictures of what bench has measured",
    "tour": "doctor, check and a short bench: what runs when no command is named",
}
"""Each is a module of this folder with add_arguments(parser) and run(options, console) -> the exit code."""

if importlib.util.find_spec("cuconv.cli.report") is None:
    # It makes the tables and pictures of the source tree, and is not installed.
    del COMMANDS["report"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] not in (*COMMANDS, "-h", "--help", "--version"):
        # Options alone are the tour's.
        words = words if words and not words[0].startswith("-") else ["tour", *words]
    options = options_for(words)
    console = Console(options.json)
    try:
        with _logged(console, logging.INFO if options.verbose else logging.WARNING):
            return int(options.run(options, console))
    except CannotRun as error:
        console.error(str(error))
        return CANNOT
    except ValueError as error:
        # What is wrong with an argument, in the words of the check that found it.
        console.error(str(error))
        return USAGE
    except ImportError as error:
        console.error(f"{error}; `cuconv doctor` says what is missing")
        return CANNOT
    except BrokenPipeError:
        # The reader has seen enough. Python flushes at its end, and would complain then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CANNOT
    except OSError as error:
        console.error(str(error))
        return CANNOT
    except KeyboardInterrupt:
        console.error("interrupted")
        return 130


def options_for(words: Sequence[str]) -> argparse.Namespace:
    """What a command line of these words means: a command first, then its options."""
    return _parser(words).parse_args(words)


@contextlib.contextmanager
def _logged(console: Console, level: int) -> Iterator[None]:
    """What the package logs, shown from this level on."""
    logger, handler = logging.getLogger("cuconv"), Log(console)
    before = logger.level
    logger.setLevel(level)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


def _parser(words: Sequence[str]) -> argparse.ArgumentParser:
    from importlib import metadata

    parser = argparse.ArgumentParser(
        prog="cuconv",
        description="Short convolutions and state-space operators for NVIDIA GPUs, compiled on demand.",
        epilog=f"Exit codes: {OK} all is well; {WRONG} something is wrong or missing; {USAGE} the command line makes "
        f"no sense; {CANNOT} this machine cannot do it.",
    )
    try:
        version = metadata.version("cuconv")
    except metadata.PackageNotFoundError:
        version = "not installed, run from its source tree"
    parser.add_argument("--version", action="version", version=f"cuconv {version}")
    commands = parser.add_subparsers(metavar="command", required=True)
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        command.add_argument("--json", action="store_true", help="print one JSON value instead of text")
        command.add_argument("--verbose", action="store_true", help="log what is compiled")
        if words and words[0] == name:
            # The others' modules are not needed, and some take a while to import.
            module = importlib.import_module(f"cuconv.cli.{name}")
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    return parser
