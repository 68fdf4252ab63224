"""python -m tests.emulator: gdb on the last emulated launch."""

import os
import shutil
import sys

from tests.emulator import debugger, process


def main() -> None:
    if shutil.which("gdb") is None:
        sys.exit("gdb is not installed")
    try:
        arguments = debugger.arguments()
    except FileNotFoundError as error:
        sys.exit(str(error))
    os.execvpe(arguments[0], arguments, process.environment())


if __name__ == "__main__":
    main()
