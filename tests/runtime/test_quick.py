"""Calls on arrays that are recognised launch what the first of their kind does, and what is not usual is noticed."""

from __future__ import annotations

import ctypes
import inspect
import pickle
import struct
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import pytest

import cuconv
from cuconv.bench.makers import MAKERS
from cuconv.bench.workloads import SMALL, workloads
from cuconv.runtime import arrays, entry
from cuconv.runtime.abstract import AbstractArray, AbstractFamily
from cuconv.runtime.arrays import Maker
from cuconv.runtime.call import Call
from cuconv.runtime.dtypes import INT32
from cuconv.runtime.kernel import Kernel, LoadedKernel
from cuconv.runtime.layout import Layout
from cuconv.runtime.operation import Operation, _prepared
from cuconv.runtime.recogniser import Recogniser
from cuconv.runtime.workload import Workload

pytest.importorskip("cupy")


class Quick(AbstractArray):
    """An array on a GPU, in the place of which stands what a launch would get."""


class Launched(NamedTuple):
    """A launch."""

    function: int
    config: tuple[int, ...]
    stream: int
    arguments: bytes


class QuickFamily(AbstractFamily):
    """Recognises arrays and notes what is launched."""

    name = "quick"

    def __init__(self) -> None:
        self.kernels: dict[Kernel, LoadedKernel] = {}
        self.current, self.number = 0, 5
        self.launched: list[Launched] = []
        self.made: list[int] = []
        self.inspected = 0
        self.set_devices: list[int] = []
        self.written: list[Any] | None = None
        self.uncounted: frozenset[int] = frozenset()

    def _place(self, array: Any) -> tuple[int, int]:
        return array.pointer, 0

    def inspect(self, *call: Any) -> Any:
        self.inspected += 1
        return super().inspect(*call)

    def recogniser(self, given: Sequence[Any]) -> Recogniser:  # type: ignore[override]
        return Recogniser(given, self._recognise, self.address, self.mark_written, uncounted=self.uncounted)

    def _recognise(self, given: Mapping[int, Any]) -> tuple[list[str], dict[str, Any]]:
        lines, values = [], {}
        for place, array in given.items():
            lines.append(f"if not like(a{place}, t{place}): return None")
            lines.append(f"p{place} = a{place}.pointer")
            values[f"t{place}"] = facts(array)
        return lines, {**values, "like": lambda array, known: isinstance(array, Quick) and facts(array) == known}

    def maker(self, layout: Layout) -> Maker:
        make = self.maker_here(layout)

        def made() -> tuple[Any, int]:
            array = make()
            return array, array.pointer

        return made

    def maker_here(self, layout: Layout) -> Callable[[], Any]:
        def make() -> Any:
            array = Quick(layout.shape, layout.strides, layout.dtype)  # type: ignore[arg-type]
            self.made.append(array.pointer)
            return array

        return make

    def stream(self, device: int) -> int:
        return 77

    def load(self, kernel: Kernel, device: int, defined: tuple[str, ...] = ()) -> Any:
        if kernel not in self.kernels:
            self.kernels[kernel] = found = LoadedKernel(None, next(_functions), device, kernel.params)
            found._launch = partial(self.launch, kernel)
            found.get_device, found._set_device = lambda: self.current, self.set_device
        return self.kernels[kernel]

    def set_device(self, device: int) -> None:
        self.current = device
        self.set_devices.append(device)

    def launch(self, kernel: Kernel, function: int, *call: int) -> None:
        *config, stream, arguments, _ = call
        address = ctypes.c_void_p.from_address(arguments).value
        assert address is not None and self.current == 0
        taken = ctypes.string_at(address, kernel.params.dtype.itemsize)
        size = kernel.params.pointers.size
        # Addresses in new arrays differ from call to call.
        pointers = (self.alike(pointer) for (pointer,) in struct.iter_unpack("<Q", taken[:size]))
        alike = b"".join(pointer.to_bytes(8, "little") for pointer in pointers)
        self.launched.append(Launched(function, tuple(config), stream, alike + taken[size:]))

    def alike(self, pointer: int) -> int:
        """A pointer; for one into a new array the number of that and how far in it is, which no pointer is."""
        places = ((number, pointer - made) for number, made in enumerate(self.made))
        return next((number << 32 | at for number, at in places if 0 <= at < 2**32), pointer)

    def mark_written(self, written: Sequence[Any]) -> None:
        self.written = list(written)


_functions = count(1)
arrays.register(Quick, QuickFamily)


def facts(array: Quick) -> tuple[Any, ...]:
    return array.shape, array.strides, array.dtype, array.pointer % 16


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> QuickFamily:
    known = {"MultiProcessorCount": 132, "MaxSharedMemoryPerBlockOptin": 227 * 1024}
    monkeypatch.setattr("cuconv.runtime.machine._asked", lambda device, attribute: known[attribute])
    monkeypatch.setattr("cuconv.runtime.machine.has_one_device", lambda: False)
    found = arrays.family(Quick((1,), (1,), None))  # type: ignore[arg-type]
    assert isinstance(found, QuickFamily)
    found.__init__()  # type: ignore[misc]
    forget()
    return found


def forget() -> None:
    """Let the next call be the first one of all."""
    _prepared.cache_clear()
    for operation in Operation.named.values():
        operation.recent = operation.known = ()
    for each in entry.entries:
        each.forget()


@pytest.fixture
def operated(monkeypatch: pytest.MonkeyPatch) -> list[Operation[Any]]:
    """The operations that are called, one for each call."""
    made: list[Operation[Any]] = []
    call = Operation.__call__

    def counted(self: Operation[Any], *given: Any, **more: Any) -> Any:
        made.append(self)
        return call(self, *given, **more)

    monkeypatch.setattr(Operation, "__call__", counted)
    return made


def forms() -> list[Any]:
    return [
        pytest.param(workload, given, id=f"{workload.function} {workload.title} {'out' if given else 'new'}")
        for function in SMALL
        for workload in workloads(SMALL, function)
        # What engines call makes arrays of its own for the launch in front, other ones each time.
        if workload.through is None
        for given in (False, True)
    ]


def called(workload: Workload, given: bool) -> dict[str, Any]:
    made = {name: Quick(each.shape, each.strides, each.dtype) for name, each in workload.arrays.items()}
    outs = [Quick(each.shape, each.strides, each.dtype) for each in workload.outs.values()]
    return workload.call(made, outs if given else None)


def run(gpu: QuickFamily, function: Callable[..., Any], arguments: Mapping[str, Any]) -> tuple[list[Launched], Any]:
    gpu.launched.clear()
    gpu.made.clear()
    results = function(**arguments)
    return list(gpu.launched), results


@pytest.mark.parametrize(("workload", "given"), forms())
def test_a_call_that_is_recognised_launches_the_same(
    workload: Workload, given: bool, gpu: QuickFamily, operated: list[Operation[Any]]
) -> None:
    function, arguments = getattr(cuconv, workload.function), called(workload, given)
    wanted, results = run(gpu, function, arguments)
    assert wanted
    for _ in range(3):
        before = gpu.inspected
        launched, again = run(gpu, function, arguments)
        assert launched == wanted
    assert gpu.inspected == before, "it was recognised"
    assert type(again) is type(results)
    for one, other in zip(*(each if isinstance(each, tuple) else (each,) for each in (results, again)), strict=True):
        assert one is other if given or one is None else facts(one)[:3] == facts(other)[:3], "new ones are alike"
    moved = called(workload, given)
    operated.clear()
    launched, _ = run(gpu, function, moved)
    assert not operated, "it has gone from its arguments to its launches"
    assert gpu.inspected == before and launched != wanted and len(launched) == len(wanted)


def step(**more: Any) -> dict[str, Any]:
    (workload,) = list(workloads(SMALL, "causal_conv1d_update"))[:1]
    return called(workload, False) | more


def known_step(gpu: QuickFamily) -> dict[str, Any]:
    """Arguments of a call that is recognised."""
    arguments = step()
    for _ in range(3):
        wanted, _ = run(gpu, cuconv.causal_conv1d_update, arguments)
    before = gpu.inspected
    assert run(gpu, cuconv.causal_conv1d_update, arguments)[0] == wanted and gpu.inspected == before
    return arguments


def test_overlap_is_found_before_anything_is_made_or_launched(gpu: QuickFamily) -> None:
    arguments = known_step(gpu)
    inspected = gpu.inspected
    arguments["conv_state"] = Quick(*facts(arguments["conv_state"])[:3], address=arguments["weight"].pointer)
    with pytest.raises(ValueError, match=r"^conv_state: got memory that overlaps weight"):
        run(gpu, cuconv.causal_conv1d_update, arguments)
    assert gpu.inspected == inspected and not gpu.launched and not gpu.made


def test_another_current_device_is_left_as_it_was(gpu: QuickFamily) -> None:
    arguments = known_step(gpu)
    wanted, _ = run(gpu, cuconv.causal_conv1d_update, arguments)
    gpu.current = 1
    gpu.set_devices.clear()
    inspected = gpu.inspected
    assert run(gpu, cuconv.causal_conv1d_update, arguments)[0] == wanted
    assert gpu.set_devices == [0, 1] and gpu.inspected == inspected


def test_the_only_device_is_not_asked_for(gpu: QuickFamily, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr("cuconv.runtime.machine.has_one_device", lambda: True)
    wanted = outcome(gpu, cuconv.causal_conv1d_update, **known_step(gpu))
    forget()
    gpu.__init__()  # type: ignore[misc]
    for _ in range(4):
        assert outcome(gpu, cuconv.causal_conv1d_update, **step())[1:] == wanted[1:]
    for each in gpu.kernels.values():
        each.get_device = lambda: asked.append(True) or 0
    before = gpu.inspected
    outcome(gpu, cuconv.causal_conv1d_update, **step())
    assert gpu.inspected == before and not asked


def test_a_thread_makes_the_device_its_own_first(gpu: QuickFamily) -> None:
    arguments = known_step(gpu)
    gpu.set_devices.clear()

    def work() -> tuple[list[Launched], list[Launched]]:
        return tuple(run(gpu, cuconv.causal_conv1d_update, arguments)[0] for _ in range(2))  # type: ignore[return-value]

    with ThreadPoolExecutor(1) as pool:
        first, second = pool.submit(work).result()
    assert first == second == run(gpu, cuconv.causal_conv1d_update, arguments)[0]
    assert gpu.set_devices == [0], "once"


def test_contents_are_checked_from_when_it_is_asked_for(gpu: QuickFamily, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = known_step(gpu)
    monkeypatch.setenv("CUCONV_CHECK", "maybe")
    monkeypatch.setattr(gpu, "checks_contents", partial(arrays.Family.checks_contents, gpu))
    with pytest.raises(ValueError, match="CUCONV_CHECK"):
        run(gpu, cuconv.causal_conv1d_update, arguments)
    assert not gpu.launched and not gpu.made


def test_numbers_that_come_late_are_launched(gpu: QuickFamily) -> None:
    arguments = called(MAKERS["selective_state_update"](batch=2, state_dtype="bfloat16"), False) | {"rand_seed": 5}
    for _ in range(3):
        run(gpu, cuconv.selective_state_update, arguments)
    inspected = gpu.inspected
    one, _ = run(gpu, cuconv.selective_state_update, arguments | {"rand_seed": 1})
    two, _ = run(gpu, cuconv.selective_state_update, arguments | {"rand_seed": 2})
    again, _ = run(gpu, cuconv.selective_state_update, arguments | {"rand_seed": 1})
    assert one == again != two and gpu.inspected == inspected


def test_a_library_that_counts_writes_is_told_of_them(gpu: QuickFamily) -> None:
    gpu.counts_writes = True
    arguments = step()
    for _ in range(4):
        gpu.written = None
        run(gpu, cuconv.causal_conv1d_update, arguments)
        assert gpu.written == [arguments["conv_state"]]


def test_a_library_is_not_told_of_writes_that_it_does_not_count(gpu: QuickFamily) -> None:
    gpu.counts_writes = True
    # The second argument of the operation is conv_state.
    gpu.uncounted = frozenset({1})
    known_step(gpu)
    gpu.written = None
    run(gpu, cuconv.causal_conv1d_update, step())
    assert gpu.written is None


def test_a_dependent_launch_is_noticed(gpu: QuickFamily, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = known_step(gpu)
    early = []
    monkeypatch.setattr(Call, "launch_early", lambda self, *given: early.append(given))
    with cuconv.dependent_launch():
        run(gpu, cuconv.causal_conv1d_update, arguments)
    assert len(early) == 1 and not gpu.launched
    run(gpu, cuconv.causal_conv1d_update, arguments)
    assert len(early) == 1 and gpu.launched


def outcome(gpu: QuickFamily, function: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """What a call launches and returns, or how it fails."""
    try:
        launched, results = run(gpu, partial(function, *given), named)
    except (TypeError, ValueError) as error:
        return repr(error)
    made = results if isinstance(results, tuple) else (results,)
    return launched, type(results), [None if each is None else facts(each)[:3] for each in made]


def assert_told_apart(
    gpu: QuickFamily, function: Callable[..., Any], known: dict[str, Any], changed: dict[str, Any]
) -> None:
    """Changed arguments do the same after calls with known ones as without any call before."""
    wanted = outcome(gpu, function, **changed)
    forget()
    for _ in range(4):
        outcome(gpu, function, **known)
    for _ in range(4):
        assert outcome(gpu, function, **changed) == wanted


CHANGES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "another activation": lambda known: {"activation": None},
    "an equal activation": lambda known: {"activation": "swish"},
    "no activation at all": lambda known: {"activation": known["x"]},
    "an array that was absent": lambda known: {"cache_seqlens": Quick((3,), (1,), INT32)},
    "an array in a place of its own": lambda known: {"conv_state_indices": Quick((3,), (1,), INT32)},
    "no bias": lambda known: {"bias": None},
    "a number for an array": lambda known: {"bias": 3},
    "a result that is given": lambda known: {"out": Quick(*facts(known["x"])[:3])},
    "the result over x": lambda known: {"out": known["x"]},
    "the state as x": lambda known: {"x": known["conv_state"]},
    "a flag": lambda known: {"disable_state_update": True},
    "a flag as a number": lambda known: {"disable_state_update": 0},
    "no flag": lambda known: {"disable_state_update": "no"},
    "another slot for padding": lambda known: {"pad_slot_id": 5},
    "the same slot for padding": lambda known: {"pad_slot_id": -1},
    "a slot that is no integer": lambda known: {"pad_slot_id": -1.0},
    "an argument that there is not": lambda known: {"silu": True},
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("usual", [{}, {"pad_slot_id": -1, "disable_state_update": False, "out": None}], ids=len)
def test_what_differs_goes_its_own_way(change: str, usual: dict[str, Any], gpu: QuickFamily) -> None:
    known = step(**usual)
    changed = known | CHANGES[change](known)
    assert_told_apart(gpu, cuconv.causal_conv1d_update, known, changed)


def test_a_result_over_an_argument_is_told_from_one_beside_it(gpu: QuickFamily) -> None:
    made = MAKERS["causal_conv1d_varlen_fn"](sequences="16x64", dim=256)
    beside = called(made, True)
    over = beside | {"out": beside["x"]}
    wanted = outcome(gpu, cuconv.causal_conv1d_varlen_fn, **over)
    forget()
    apart = [outcome(gpu, cuconv.causal_conv1d_varlen_fn, **beside) for _ in range(4)]
    assert wanted[0] and all(each == apart[0] for each in apart) and len(wanted[0]) != len(apart[0][0])
    for _ in range(4):
        assert outcome(gpu, cuconv.causal_conv1d_varlen_fn, **over) == wanted
        assert outcome(gpu, cuconv.causal_conv1d_varlen_fn, **beside) == apart[0]


@pytest.mark.parametrize("usual", [1, 2, 3, 4])
def test_a_result_over_an_argument_takes_turns_with_one_beside_it(usual: int, gpu: QuickFamily) -> None:
    """Where both are the same call, which of them is recognised first and which is entered first may differ."""
    beside = called(MAKERS["selective_scan_varlen_fn"](sequences="16x64", dim=256), True)
    over = beside | {"delta": Quick(*facts(beside["out"])[:3])}
    over["out"] = over["delta"]
    calls = [*[beside] * usual, *[over] * 4, *[beside, over] * 4]
    for arguments in (*calls, *reversed(calls)):
        _, result = run(gpu, cuconv.selective_scan_varlen_fn, arguments)
        assert result is arguments["out"]


@pytest.mark.parametrize("change", [lambda out: out[:-1], lambda out: (*out, None), list, lambda out: (None, *out[1:])])
def test_results_in_a_tuple_are_told_from_others(change: Callable[[Any], Any], gpu: QuickFamily) -> None:
    known = called(MAKERS["causal_conv1d_update_split"](batch=2), True)
    changed = known | {"out": change(known["out"])}
    assert_told_apart(gpu, cuconv.causal_conv1d_update_split, known, changed)


@pytest.mark.parametrize("change", [lambda size: float(size), lambda size: np.int64(size)], ids=["float", "int64"])
def test_sizes_in_a_tuple_are_told_from_equal_numbers(change: Callable[[int], Any], gpu: QuickFamily) -> None:
    known = called(MAKERS["causal_conv1d_update_split"](batch=2), False)
    changed = known | {"sizes": tuple(map(change, known["sizes"]))}
    assert_told_apart(gpu, cuconv.causal_conv1d_update_split, known, changed)


def test_arguments_by_place_and_by_name_are_the_same(gpu: QuickFamily, operated: list[Operation[Any]]) -> None:
    arguments = known_step(gpu)
    wanted = outcome(gpu, cuconv.causal_conv1d_update, **arguments)
    operated.clear()
    places = ("x", "conv_state", "weight", "bias", "activation", "cache_seqlens", "conv_state_indices")
    in_order = [arguments.get(name) for name in places]
    assert outcome(gpu, cuconv.causal_conv1d_update, *in_order) == wanted and not operated
    backwards = dict(reversed(arguments.items()))
    assert outcome(gpu, cuconv.causal_conv1d_update, **backwards) == wanted and not operated
    wrong = outcome(gpu, cuconv.causal_conv1d_update, *in_order, None)
    assert wrong.startswith("TypeError") and "causal_conv1d_update()" in wrong


def test_calls_of_several_forms_take_turns(gpu: QuickFamily, operated: list[Operation[Any]]) -> None:
    several = [called(workload, False) for workload in list(workloads(SMALL, "causal_conv1d_update"))[:4]]
    wanted = [outcome(gpu, cuconv.causal_conv1d_update, **each) for each in several]
    for _ in range(4):
        operated.clear()
        assert [outcome(gpu, cuconv.causal_conv1d_update, **each) for each in several] == wanted
    assert not operated


def test_shapes_that_never_come_again_are_not_compared(gpu: QuickFamily) -> None:
    several = [called(MAKERS["causal_conv1d_update"](batch=batch), False) for batch in range(1, 14)]
    arguments = known_step(gpu)
    (mine,) = [each for each in entry.entries if each.first is not entry.never]
    for each in several:
        run(gpu, cuconv.causal_conv1d_update, each)
    assert mine.first is entry.never
    for _ in range(12):
        wanted = outcome(gpu, cuconv.causal_conv1d_update, **arguments)
    assert mine.first is not entry.never and outcome(gpu, cuconv.causal_conv1d_update, **arguments) == wanted


def scaled(x: Any, conv_state: Any, weight: Any) -> Any:
    return cuconv.causal_conv1d_update(x, conv_state, weight), 2.0


def twice(x: Any, conv_state: Any, weight: Any) -> Any:
    first = cuconv.causal_conv1d_update(x, conv_state, weight)
    cuconv.causal_conv1d_update(x, conv_state, weight)
    return first


def doubled(x: Any, conv_state: Any, weight: Any) -> Any:
    return cuconv.causal_conv1d_update(x, conv_state, weight, residual=x)


def plain(x: Any, conv_state: Any, weight: Any) -> Any:
    return cuconv.causal_conv1d_update(x, conv_state, weight)


def biased(x: Any, conv_state: Any, weight: Any) -> Any:
    return cuconv.causal_conv1d_update(x, conv_state, weight, Quick((weight.shape[0],), (1,), weight.dtype))


@pytest.mark.parametrize("function", [scaled, twice, biased, doubled, plain])
def test_a_function_that_does_more_is_called_every_time(function: Callable[..., Any], gpu: QuickFamily) -> None:
    calls = []

    @entry.quick
    def counted(x: Any, conv_state: Any, weight: Any, unused: Any = None) -> Any:
        calls.append(x)
        return function(x, conv_state, weight)

    arguments = {name: each for name, each in step().items() if name in ("x", "conv_state", "weight")}
    if function is plain:
        # An array that does not get to the operation.
        arguments["unused"] = Quick((1,), (1,), INT32)
    count = 0
    for _ in range(6):
        counted(**arguments)
        # One more is with stand-ins, to see what it does.
        count += sum(each is arguments["x"] for each in calls)
        calls.clear()
    entry.entries.pop()
    assert count == 6


def test_a_function_is_known_by_what_it_is(gpu: QuickFamily) -> None:
    function = cuconv.causal_conv1d_update
    assert pickle.loads(pickle.dumps(function)) is function
    parameters = inspect.signature(function).parameters
    assert parameters["out"].kind is inspect.Parameter.KEYWORD_ONLY and parameters["pad_slot_id"].default == -1
    assert function.__name__ == "causal_conv1d_update" and "conv_state:" in (function.__doc__ or "")


class Memory(NamedTuple):
    """What CuPy knows of an array's memory."""

    ptr: int
    device_id: int


class CupyLike:
    """What calls ask of a CuPy array."""

    def __init__(self, shape: Sequence[int], dtype: Any, memory: Any = None, strides: Sequence[int] = ()) -> None:
        self.shape, self.dtype, self.strides = tuple(shape), np.dtype(dtype), tuple(strides)
        self.data = Memory(next(_functions) << 44, 0)


class CupyLikeFamily(arrays.CupyFamily):
    """CuPy's family without a GPU: nothing is launched."""

    def __init__(self) -> None:
        self._ndarray: Any = CupyLike
        self._get_device, self._alloc = (lambda: 0), lambda nbytes: None

    def load(self, kernel: Kernel, device: int, defined: tuple[str, ...] = ()) -> Any:
        found = LoadedKernel(None, 1, device, kernel.params)
        found._launch, found.get_device, found._set_device = (lambda *call: None), (lambda: 0), lambda number: None
        return found

    def stream(self, device: int) -> int:
        return 0

    def keep_if_captured(self, array: Any, device: int) -> None:
        pass


@pytest.mark.parametrize("function", SMALL)
def test_calls_on_arrays_of_cupy_are_run_at_once(
    function: str, gpu: QuickFamily, operated: list[Operation[Any]]
) -> None:
    arrays.register(CupyLike, CupyLikeFamily)
    workload = next(iter(workloads(SMALL, function)))
    for _ in range(4):
        made = {
            name: CupyLike(each.shape, each.dtype.numpy, None, [n * each.dtype.itemsize for n in each.strides])
            for name, each in workload.arrays.items()
        }
        operated.clear()
        getattr(cuconv, function)(**workload.call(made, None))
    assert not operated
