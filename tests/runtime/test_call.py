"""What is remembered of calls, and that it is remembered right; launches from several threads."""

from __future__ import annotations

import ctypes
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from cuconv.runtime.call import MAX_APART, Call, Prepared
from cuconv.runtime.dtypes import FLOAT32
from cuconv.runtime.kernel import LoadedKernel, Params
from cuconv.runtime.launch import LaunchConfig
from cuconv.runtime.layout import Layout

X = Layout((2, 3), (3, 1), FLOAT32, 0, 0)


class Counted(Call):
    """A call that knows what it was prepared from."""

    def __init__(self, *what: Any) -> None:
        super().__init__(("x",), (X,), None)
        self.what = what


def prepared(made: list[Counted]) -> Prepared[Counted]:
    def prepare(*what: Any) -> Counted:
        made.append(Counted(*what))
        return made[-1]

    return Prepared(prepare)


def test_a_call_is_prepared_once_and_found_again_whatever_came_between() -> None:
    made: list[Counted] = []
    remembered = prepared(made)
    for options in ((1, "a"), (1, "a"), (2, "a"), (1, "a"), (1, "b"), (2, "a")):
        for facts in ([("x", 1), None], [("x", 2), None], [("x", 1), ("y", 1)], [("x", 1), None]):
            assert remembered(options, list(facts)).what == (*options, *facts)
    assert len(made) == 3 * 3 and len({call.what for call in made}) == 9


def test_facts_and_options_are_not_mistaken_for_each_other() -> None:
    made: list[Counted] = []
    remembered = prepared(made)
    assert remembered((1,), [(2,)]).what == (1, (2,))
    assert remembered((1, (2,)), []).what == (1, (2,))
    assert remembered((), [(1,), (2,)]).what == ((1,), (2,))


def test_an_error_is_not_remembered() -> None:
    made: list[Counted] = []

    def prepare(*what: Any) -> Counted:
        if "bad" in what:
            raise ValueError("bad")
        made.append(Counted(*what))
        return made[-1]

    remembered = Prepared(prepare)
    good = remembered(("good",), [])
    for _ in range(2):
        with pytest.raises(ValueError, match="bad"):
            remembered(("bad",), [])
    assert remembered(("good",), []) is good


def test_addresses_that_overlap_are_found_whatever_was_right_before() -> None:
    call = Call(("x", "out"), (X, X), None, written=[1])
    good, bad = [1000, 2000], [1000, 1020]
    for _ in range(3):
        call.check_overlap(good)
        with pytest.raises(ValueError, match="out"):
            call.check_overlap(bad)
    with pytest.raises(ValueError, match="out"):
        call.check_overlap([1000, 1000])
    Call(("x", "out"), (X, X), None, written=[1], in_place=(1, 0)).check_overlap([1000, 1000])


def test_what_is_only_read_may_overlap() -> None:
    Call(("x", "z"), (X, X), None).check_overlap([1000, 1020])


def test_only_so_many_addresses_are_remembered() -> None:
    call = Call(("x", "out"), (X, X), None, written=[1])
    for address in range(64, 3 * MAX_APART * 64, 64):
        call.check_overlap([address, address + 32])
        assert len(call._apart) <= MAX_APART
    with pytest.raises(ValueError, match="out"):
        call.check_overlap([64, 80])


class Device:
    """In the place of the driver and the runtime: what a thread launches, and on which device it is."""

    def __init__(self) -> None:
        self._thread = threading.local()
        self.launched: list[tuple[int, int, bytes]] = []

    def get(self) -> int:
        number: int = getattr(self._thread, "number", 0)
        return number

    def set(self, number: int) -> None:
        self._thread.number = number

    def launch(self, function: int, *config: int) -> None:
        *_, stream, arguments, _ = config
        address = ctypes.c_void_p.from_address(arguments).value
        assert address is not None
        before = ctypes.string_at(address, PARAMS.dtype.itemsize)
        time.sleep(1e-4)  # lets other threads launch
        after = ctypes.string_at(address, PARAMS.dtype.itemsize)
        assert before == after
        self.launched.append((self.get(), stream, after))


PARAMS = Params(("x", "out"), ("count", "i8"))


def loaded(number: int, device: Device) -> LoadedKernel:
    pytest.importorskip("cupy")
    kernel = LoadedKernel(None, 1, number, PARAMS)
    kernel._launch, kernel._get_device, kernel._set_device = device.launch, device.get, device.set
    return kernel


def test_threads_launch_with_arguments_of_their_own() -> None:
    device = Device()
    config = LaunchConfig((1, 1, 1), (32, 1, 1))
    shared = [loaded(number, device).bound(config, PARAMS.pack_numbers(count=number)) for number in range(2)]

    def work(thread: int) -> None:
        for i in range(20):
            shared[i % 2]((thread, i), thread)
            assert device.get() == 0, "the caller's device is left as it was"

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    wanted = [(i % 2, thread, struct.pack("=3Q", thread, i, i % 2)) for thread in range(8) for i in range(20)]
    assert sorted(device.launched) == sorted(wanted)
