"""The child process in which emulated kernels run, a script. It is a child because a finding ends it.

The script runs twice: the first time it only sets up the environment and executes itself again, so that
AddressSanitizer is loaded before everything else. Then it runs the launch in a file, or those that come by standard
input.
"""

from __future__ import annotations

import ctypes
import functools
import os
import pickle
import resource
import signal
import struct
import sys
from typing import Any, NoReturn

SANITIZER = "EMULATOR_SANITIZER"
READY = b"."
"""What is replied first to a job: signals are handled now, and the time of the launch begins."""

_NO_RANDOM_ADDRESSES = 0x0040000
_PR_SET_PDEATHSIG = 1

_OPTIONS = {
    # Python does not free all its memory at its end. Two builds of a kernel have variables of the same name.
    "ASAN_OPTIONS": ":".join(
        [
            "detect_leaks=0",
            "detect_odr_violation=0",
            "detect_stack_use_after_return=0",
            "abort_on_error=1",
            "color=never",
        ]
    ),
    "UBSAN_OPTIONS": "print_stacktrace=1:abort_on_error=1:color=never",
}


def become_sanitized(library: str) -> NoReturn:
    # Without random addresses a failing launch is the same each time, and the addresses that GCC 12's AddressSanitizer
    # needs are never taken. Where a container forbids this setting, addresses stay random.
    ctypes.CDLL(None).personality(_NO_RANDOM_ADDRESSES)
    preloaded = ":".join(filter(None, [library, os.environ.get("LD_PRELOAD")]))
    environment = {**os.environ, **_OPTIONS, "LD_PRELOAD": preloaded}
    del environment[SANITIZER]
    os.execve(sys.executable, sys.orig_argv, environment)


@functools.cache
def load_runtime(path: str) -> ctypes.CDLL:
    """The runtime library, which has the functions that kernels call."""
    runtime = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    runtime.emulator_memory.restype = ctypes.c_void_p
    runtime.emulator_handle_signals()
    return runtime


@functools.cache
def load_kernels(path: str) -> ctypes.CDLL:
    """A library of kernels."""
    return ctypes.CDLL(path)


def launch(job: dict[str, Any]) -> bytes:
    """Run one launch and return the memory after it."""
    runtime = load_runtime(job["runtime"])
    entry = getattr(load_kernels(job["library"]), job["entry"])
    base: int = runtime.emulator_memory()
    print(f"memory at {base:#x}", file=sys.stderr, flush=True)
    windows = [(ctypes.c_void_p(base + begin), size) for begin, size in job["windows"]]
    at = 0
    for (window, size), ranges in zip(windows, job["open_ranges"], strict=True):
        runtime.emulator_begin_window(window, ctypes.c_size_t(size))
        ctypes.memmove(window, job["memory"][at : at + size], size)
        runtime.emulator_fence(window, ctypes.c_size_t(size), ranges, ctypes.c_size_t(len(ranges) // 16))
        at += size
    for (window, size), early, ranges in zip(windows, job["early_ranges"], job["open_ranges"], strict=False):
        counts = [ctypes.c_size_t(len(each) // 16) for each in (early, ranges)]
        runtime.emulator_expect_wait(window, ctypes.c_size_t(size), early, counts[0], ranges, counts[1])
    pointers = [0 if pointer is None else base + pointer for pointer in job["pointers"]]
    runtime.emulator_launch(
        ctypes.cast(entry, ctypes.c_void_p),
        struct.pack(f"={len(pointers)}Q", *pointers) + job["numbers"],
        (ctypes.c_uint * 3)(*job["grid"]),
        (ctypes.c_uint * 3)(*job["block"]),
        ctypes.c_uint(job["shared_mem"]),
        ctypes.c_ulonglong(job["seed"]),
    )
    written = b""
    for window, size in windows:
        runtime.emulator_unfence(window, ctypes.c_size_t(size))
        written += ctypes.string_at(window, size)
        runtime.emulator_end_window(window, ctypes.c_size_t(size))
    return written


def serve() -> None:
    """Run launches that come by standard input until it ends. Output of kernels goes to standard error."""
    with os.fdopen(os.dup(1), "wb") as replies:
        os.dup2(2, 1)
        while True:
            try:
                job = pickle.load(sys.stdin.buffer)
            except EOFError:
                return
            load_runtime(job["runtime"])
            load_kernels(job["library"])
            replies.write(READY)
            replies.flush()
            pickle.dump(launch(job), replies)
            replies.flush()


def main() -> None:
    if SANITIZER in os.environ:
        become_sanitized(os.environ[SANITIZER])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if len(sys.argv) > 1:
        with open(sys.argv[1], "rb") as file:
            launch(pickle.load(file))
    else:
        serve()


if __name__ == "__main__":
    main()
