"""gdb on the last emulated launch."""

from __future__ import annotations

import pickle

from tests.emulator import last_launch, process


def arguments() -> list[str]:
    """The command line of gdb."""
    if not last_launch().exists():
        raise FileNotFoundError(f"no launch has been emulated yet: {last_launch()} is absent")
    with last_launch().open("rb") as file:
        job = pickle.load(file)
    commands = ("set breakpoint pending on", f"directory {job['source_folder']}")
    options = [option for command in commands for option in ("-ex", command)]
    return ["gdb", "-q", *options, "--args", *process.command(), str(last_launch())]
