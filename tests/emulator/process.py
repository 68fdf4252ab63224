"""The child process that runs launches. It starts when it is first needed, and again after each finding."""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
from typing import Any

from tests.emulator import compiler, worker

TIME_LIMIT = 120.0
"""Seconds that a launch may take. Without a limit a thread that spins for another block would never end."""

TIMES_TO_REPORT = (1.0, 10.0)
"""Seconds that a launch has to report where it is, after the first and after the second signal."""


class Crash(Exception):
    """The child ended during a launch. The text is what it wrote to its standard error."""


class Process:
    """The child process, of which there is at most one at a time."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._runtime = ""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115, it lives as long as this
        atexit.register(self.stop)

    def run(self, job: dict[str, Any], time_limit: float) -> bytes:
        """Run one launch and return the memory after it. Crash if the child ends."""
        # Two runtimes in one process would use each other's variables.
        if self._child is None or self._child.poll() is not None or self._runtime != job["runtime"]:
            self.stop()
            self._runtime = job["runtime"]
            self._child = subprocess.Popen(
                command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, env=environment()
            )
        child = self._child
        assert child.stdin is not None and child.stdout is not None
        self._log.seek(0)
        self._log.truncate()
        try:
            pickle.dump(job, child.stdin)
            child.stdin.flush()
            # The child starts before the clock: on a busy machine that takes longer than a short limit. The byte is
            # read past the buffer, so that select() sees all that follows.
            if os.read(child.stdout.fileno(), 1) != worker.READY:
                raise EOFError
            for limit in (time_limit, *TIMES_TO_REPORT):
                if select.select([child.stdout], [], [], limit)[0]:
                    break
                child.send_signal(signal.SIGUSR1)
            else:
                child.kill()
            memory: bytes = pickle.load(child.stdout)
            # The worker writes the first line, and printf of a kernel the others.
            print(self._read_log().partition("\n")[2], end="")
            return memory
        except (EOFError, BrokenPipeError):
            self.stop()
            raise Crash(
                self._read_log() or f"emulator: the child ended without a word: status {child.returncode}"
            ) from None
        except BaseException:
            # After an interruption the child's reply would be taken for that of the next launch.
            child.kill()
            self.stop()
            raise

    def _read_log(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def stop(self) -> None:
        """End the child."""
        child, self._child = self._child, None
        if child is None:
            return
        assert child.stdin is not None and child.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            child.stdin.close()
        child.stdout.close()
        child.wait()


def command() -> list[str]:
    """The command that starts the child. With a file as one more argument it runs the launch in that file."""
    return [sys.executable, "-I", "-S", worker.__file__]


def environment() -> dict[str, str]:
    """The child's environment."""
    return {**os.environ, worker.SANITIZER: str(compiler.sanitizer())}
