"""The command line, `python -m cuconv` or `cuconv`. Each command is a module of this folder."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import logging
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from cuconv.cli.console import (
    CANNOT,
    OK,
    READER_GONE,
    USAGE,
    WRONG,
    CannotRun,
    Console,
    Log,
    flush_or_discard,
    open_closed_streams,
)
from cuconv.cli.finding import absent_packages, pip_install

COMMANDS = {
    "doctor": "what this machine has, what is missing, and the command that fixes it",
    "check": "every function against the oracle, on this machine",
    "warmup": "compile kernels ahead, also where there is no GPU",
    "cache": "the kernels on disk: info, clear, verify",
    "bench": "time functions beside a copy and beside other libraries",
    "exec": "run a program with cuconv in the place of causal_conv1d and mamba_ssm",
    "explain": "what a call would launch, and what it costs",
    "report": "tables and pictures of what bench has measured",
    "tour": "doctor, check and a short bench: what runs when no command is named",
}
"""Commands and what they do. Each is a module of this folder with add_arguments(parser) and run(options, console).

The latter returns the exit code.
"""

if importlib.util.find_spec("cuconv.cli.report") is None:
    # It makes the tables and pictures of the source tree, and is not installed.
    del COMMANDS["report"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    open_closed_streams()
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] not in (*COMMANDS, "-h", "--help", "--version"):
        # Options alone are those of the tour.
        words = words if words and not words[0].startswith("-") else ["tour", *words]
    console = Console(is_json=False)
    try:
        try:
            if words[0] == "--version":
                for package in absent_packages():
                    fix = pip_install(package)
                    console.error(f"{package} is not installed, and every function needs it: run {fix}")
            options = options_for(words)
            console = Console(options.json)
            with _logged(console, logging.INFO if options.verbose else logging.WARNING):
                return int(options.run(options, console))
        finally:
            # A write that fails is noticed here, where the error can still be told.
            sys.stdout.flush()
    except CannotRun as error:
        console.error(str(error))
        return CANNOT
    except ValueError as error:
        # The error is a check's message about an argument.
        console.error(str(error))
        return USAGE
    except ImportError as error:
        console.error(f"{error}; `cuconv doctor` says what is missing")
        return CANNOT
    except BrokenPipeError:
        return READER_GONE
    except OSError as error:
        console.error(str(error))
        return CANNOT
    except KeyboardInterrupt:
        console.error("interrupted")
        return 130
    finally:
        flush_or_discard(sys.stdout)
        flush_or_discard(sys.stderr)


def options_for(words: Sequence[str]) -> argparse.Namespace:
    """The options of a command line, whose first word is the command."""
    if words[0] != "exec":
        return _parser(words).parse_args(words)
    from cuconv.cli.exec import own_words

    own, programs = own_words(words)
    options = _parser(own).parse_args(own)
    options.words = programs
    return options


@contextlib.contextmanager
def _logged(console: Console, level: int) -> Iterator[None]:
    """Show what the package logs from this level on."""
    logger, handler = logging.getLogger("cuconv"), Log(console)
    before = logger.level
    logger.setLevel(level)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


class _Parser(argparse.ArgumentParser):
    """A parser that prints as commands do, in letters that the stream has, and notices a reader that is gone."""

    def _print_message(self, message: str, file: Any = None) -> None:
        # argparse itself passes over all errors of standard output.
        console = Console(is_json=False)
        if file is sys.stdout:
            console.line(message.rstrip("\n"))
        else:
            console.note(message.rstrip("\n"))


def _parser(words: Sequence[str]) -> argparse.ArgumentParser:
    from cuconv.runtime import distribution

    parser = _Parser(
        prog="cuconv",
        description="Short convolutions and state-space operators for NVIDIA GPUs, compiled on demand.",
        epilog=f"Exit codes: {OK} all is well; {WRONG} something is wrong or missing; {USAGE} the command line makes "
        f"no sense; {CANNOT} this machine cannot do it.",
    )
    version = distribution.version() or "not installed, run from its source tree"
    parser.add_argument("--version", action="version", version=f"cuconv {version}")
    commands = parser.add_subparsers(metavar="command", required=True)
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        command.add_argument("--json", action="store_true", help="print one JSON value instead of text")
        command.add_argument("--verbose", action="store_true", help="log what is compiled")
        if words and words[0] == name:
            # Only this command's module: some take a while to import.
            module = importlib.import_module(f"cuconv.cli.{name}")
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    return parser
