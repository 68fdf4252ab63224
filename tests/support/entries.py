"""Calls that go the whole way through a function and its operation, for tests that look at what happens there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any
from unittest import mock

from cuconv.runtime import entry, machine
from cuconv.runtime.operation import Operation


@contextmanager
def the_whole_way() -> Iterator[None]:
    """Run no call of a public function at once."""
    for each in entry.entries:
        each.forget()
    with mock.patch.object(entry.Entry, "_enter", lambda *call: None):
        yield


@contextmanager
def replaced(module: ModuleType, name: str, operation: Any) -> Iterator[None]:
    """Let the public functions of a module call another operation by this name."""
    with the_whole_way(), mock.patch.object(module, name, operation):
        yield


@contextmanager
def counting(processors: int) -> Iterator[None]:
    """Plan calls for a GPU with this many multiprocessors, those on a GPU as well, and remember none of them."""
    ask = machine._asked

    def asked(device: int, attribute: str) -> int:
        return processors if attribute == "MultiProcessorCount" else ask(device, attribute)

    with ExitStack() as stack:
        stack.enter_context(the_whole_way())
        stack.enter_context(machine.assuming(processors))
        stack.enter_context(mock.patch.object(machine, "_asked", asked))
        for each in Operation.named.values():
            stack.enter_context(mock.patch.multiple(each, _remembered=each._prepare, recent=(), known=()))
        yield
