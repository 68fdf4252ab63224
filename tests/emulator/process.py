"""The child process that runs launches: started when first needed, and again after each finding."""

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
"""Seconds that a launch may take: a thread that spins for another block never ends."""

TIMES_TO_REPORT = (1.0, 10.0)
"""Seconds in which a launch that is told to end, and told again, says where it is."""


class Crash(Exception):
    """The child ended during a launch; the text is what it wrote to its standard error."""


class Process:
    """At most one child at a time."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._runtime = ""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115, it lives as long as this
        atexit.register(self.stop)

    def run(self, job: dict[str, Any], time_limit: float) -> bytes:
        """The memory after one launch."""
        # Two runtimes in one process would take each other's variables.
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
            for limit in (time_limit, *TIMES_TO_REPORT):
                if select.select([child.stdout], [], [], limit)[0]:
                    break
                child.send_signal(signal.SIGUSR1)
            else:
                child.kill()
            memory: bytes = pickle.load(child.stdout)
            # The first line is the worker's own; others are a kernel's printf.
            print(self._read_log().partition("\n")[2], end="")
            return memory
        except (EOFError, BrokenPipeError):
            self.stop()
            raise Crash(
                self._read_log() or f"emulator: the child ended without a word: status {child.returncode}"
            ) from None
        except BaseException:
            # Interrupted: what it would reply is not the next launch's.
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
    """How the child is started; with a file as one more argument it runs the launch in there."""
    return [sys.executable, "-I", "-S", worker.__file__]


def environment() -> dict[str, str]:
    """The child's environment."""
    return {**os.environ, worker.SANITIZER: str(compiler.sanitizer())}
