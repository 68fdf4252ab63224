"""Reports of the sanitizers and the runtime, reduced to what the author of a kernel needs."""

from __future__ import annotations

import re

from tests.emulator.memory import Memory

_BASE = re.compile(r"^memory at (0x[0-9a-f]+)$")
_ADDRESS_SANITIZER = re.compile(r"ERROR: (AddressSanitizer: .+?)(?: at pc .*)?$")
_UNDEFINED_BEHAVIOUR = re.compile(r"runtime error: (.+)$")
_OWN = re.compile(r"^(?:emulator: |threads |and |Traceback|\w+Error: )")
_ACCESS = re.compile(r"^((?:READ|WRITE) of size \d+) at ")
_FRAME = re.compile(r"^\s*#\d+ (?:0x[0-9a-f]+ )?in (?P<function>.+) (?P<place>\S+?:\d+)(?::\d+)?$")
_DEVICE_CODE = re.compile(r"(?:^|.*/)((?:common/)?\w+\.cuh?:\d+)$")
_ADDRESS = re.compile(r"\baddress (0x[0-9a-f]+)")

REACH = 64 << 30
"""Bytes before and behind the tensors in which nothing else is mapped."""


def summary(log: str, memory: Memory) -> str:
    """A finding in lines: the error, the nearest tensor, the stack frames in device code, the block and the thread."""
    base = 0
    shown: list[str] = []
    is_in_first_stack = True
    for line in log.splitlines():
        if match := _BASE.match(line):
            base = int(match[1], 16)
        elif match := _ADDRESS_SANITIZER.search(line) or _UNDEFINED_BEHAVIOUR.search(line):
            shown.append(match[1])
            if address := _ADDRESS.search(match[1]):
                shown.append("    " + _place(int(address[1], 16) - base, memory))
        elif match := _ACCESS.match(line):
            shown.append(f"    {match[1]}")
        elif match := _FRAME.match(line):
            if is_in_first_stack and (place := _DEVICE_CODE.match(match["place"])):
                shown.append(f"    {place[1]} in {_function(match['function'])}")
        elif _OWN.match(line) or "<==" in line:  # "located in stack" names the local variable
            shown.append(line.rstrip())
        elif not line.strip() and shown:
            # The lines that follow say where the memory was allocated, which is always in the emulator.
            is_in_first_stack = False
    return "\n".join(shown) or log


def _place(offset: int, memory: Memory) -> str:
    if abs(offset) < REACH:
        return memory.describe(offset)
    return "not near any tensor: in shared memory, a local variable or no memory at all"


def _function(signature: str) -> str:
    """The bare name of a function, such as f_kernel for "void f_kernel<4, float>(FParams)"."""
    depth, kept = 0, ""
    for character in signature.partition("(")[0]:
        depth += {"<": 1, ">": -1}.get(character, 0)
        kept += character if depth == 0 and character != ">" else ""
    return kept.split()[-1] if kept.split() else signature
