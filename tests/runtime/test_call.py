"""How an operation's calls travel: what is checked and planned once, what is launched with which pointers, overlap."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cuconv.runtime import arrays
from cuconv.runtime.abstract import AbstractArray, AbstractFamily
from cuconv.runtime.arrays import Maker
from cuconv.runtime.call import Call
from cuconv.runtime.dtypes import BYTE, FLOAT32, INT32, DType
from cuconv.runtime.kernel import Params
from cuconv.runtime.launch import LaunchConfig
from cuconv.runtime.layout import Layout, dense
from cuconv.runtime.memo import MAX_REMEMBERED
from cuconv.runtime.operation import RECENT, Operation
from cuconv.runtime.plan import Arrays, Checked, Launch, Layouts, Plan
from tests.support.foreign import StandardForeign

CONFIG = LaunchConfig((1, 1, 1), (32, 1, 1))
SHAPE = (2, 3)
BYTES = 24
"""The size of an array of this shape in float32."""


class Recorded(AbstractArray):
    """An array on a GPU that only takes notes."""


class RecordingFamily(AbstractFamily):
    """Notes what is made, loaded and launched."""

    name = "recorded"

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.launched: list[tuple[str, list[int], int]] = []
        self.numbers: list[bytes] = []
        self.loaded: list[str] = []
        self.made: list[tuple[Layout, int]] = []
        self.kept: list[Any] = []

    def layout(self, argument: str, facts: Any) -> Layout:
        return Layout(*facts)

    def maker(self, layout: Layout) -> Maker:
        def make() -> tuple[Any, int]:
            assert isinstance(layout.dtype, DType)
            array = Recorded(layout.shape, layout.strides, layout.dtype)
            self.made.append((layout, array.pointer))
            return array, array.pointer

        return make

    def keep_if_captured(self, array: Any, device: int) -> None:
        self.kept.append(array)

    def checks_contents(self) -> bool:
        return arrays.Family.checks_contents(self)

    def to_host(self, array: Any) -> Any:
        return f"contents of {array.pointer}"

    def stream(self, device: int) -> int:
        return 77

    def load(self, kernel: Any, device: int) -> Any:
        self.loaded.append(kernel.unit)

        def bound(config: LaunchConfig, numbers: bytes) -> Callable[..., None]:
            def enqueue(pointers: Sequence[int], stream: int, numbers: bytes = numbers) -> None:
                self.launched.append((kernel.unit, list(pointers), stream))
                self.numbers.append(numbers)

            return enqueue

        return SimpleNamespace(bound=bound)


arrays.register(Recorded, RecordingFamily)


@pytest.fixture(autouse=True)
def gpu() -> RecordingFamily:
    """The notes, which are empty when a test begins."""
    family = arrays.family(array())
    assert isinstance(family, RecordingFamily)
    family.forget()
    return family


_addresses = count(2**40, 2**20)


def array(address: int | None = None, *, dtype: DType = FLOAT32, strides: tuple[int, int] = (3, 1)) -> Recorded:
    return Recorded(SHAPE, strides, dtype, address=next(_addresses) if address is None else address)


def kernel(unit: str, params: Params) -> Any:
    return SimpleNamespace(unit=unit, params=params)


def launch(unit: str, *pointers: str) -> Launch:
    return Launch(kernel(unit, Params(pointers, ("count", "i8"))), CONFIG, bytes(8))


@dataclass
class Toy:
    """A family's functions, which count how often they are asked."""

    launches: tuple[Launch, ...] = ()
    scratch: int = 0
    regions: dict[str, int] = field(default_factory=dict)
    updated: tuple[str, ...] = ()
    in_place: tuple[str, ...] = ()
    new: dict[str, DType] = field(default_factory=dict)
    """The dtypes of the results; every name that is here is wanted."""
    checked: list[tuple[Layouts, Any]] = field(default_factory=list)
    planned: list[Any] = field(default_factory=list)
    computed: list[tuple[Any, Arrays]] = field(default_factory=list)
    contents: list[tuple[Any, Any]] = field(default_factory=list)

    def check(self, given: Layouts, *options: Any) -> Checked[Any]:
        if "bad" in options:
            raise ValueError("bad")
        self.checked.append((given, options))
        first = next(layout for layout in given.values() if layout is not None)
        outputs = {
            name: given[name] or dense(SHAPE, (0, 1), first._replace(dtype=dtype)) for name, dtype in self.new.items()
        }
        return Checked(options, outputs, self.updated, self.in_place)

    def plan(self, operands: Any) -> Plan:
        self.planned.append(operands)
        return Plan(self.launches, self.scratch, self.regions)

    def compute(self, operands: Any, given: Arrays) -> None:
        self.computed.append((operands, given))
        for name in self.new:
            given[name][...] = 5

    def check_contents(self, operands: Any, read: Callable[[str], Any]) -> None:
        self.contents.append((operands, {name: read(name) for name in ("x", "bias")}))

    def operation(self, inputs: tuple[str, ...], outputs: tuple[str, ...] = (), **more: Any) -> Operation[Any]:
        return Operation(inputs, outputs, check=self.check, plan=self.plan, reference=self.compute, **more)


def test_kernels_take_their_pointers_by_name_in_any_order(gpu: RecordingFamily) -> None:
    toy = Toy(
        launches=(
            launch("first", "weight", "x", "scratch"),
            launch("second", "final_states", "scratch", "out"),
            launch("third", "x", "weight", "bias", "out", "final_states"),
            launch("fourth", "bias", "x", "out[0]", "out[1]", "out[2]"),
        ),
        scratch=12,
        new={"out": FLOAT32, "final_states_out": FLOAT32},
    )
    operation = toy.operation(("x", "weight", "bias"), ("out", "final_states_out"))
    x, weight, out, states = (array() for _ in range(4))
    assert operation((x, weight, None, out, states)) == [out, states]
    ((layout, scratch),) = gpu.made
    assert (layout.shape, layout.dtype) == ((12,), BYTE)
    assert gpu.launched == [
        ("first", [weight.pointer, x.pointer, scratch], 77),
        ("second", [states.pointer, scratch, out.pointer], 77),
        # Even where these are the call's own in order, the scratch is not among them.
        ("third", [x.pointer, weight.pointer, 0, out.pointer, states.pointer], 77),
        # The room for further results is null: it need not be given.
        ("fourth", [0, x.pointer, out.pointer], 77),
    ]


def test_a_launch_may_name_what_its_pointers_take(gpu: RecordingFamily) -> None:
    copying = launch("copy", "from", "to")._replace(named={"from": "weight", "to": "copy of weight"})
    working = launch("work", "x", "weight", "out", "scratch")._replace(named={"weight": "copy of weight"})
    toy = Toy(launches=(copying, working), scratch=40, regions={"copy of weight": 16}, new={"out": FLOAT32})
    x, weight, out = (array() for _ in range(3))
    toy.operation(("x", "weight"), ("out",))((x, weight, out))
    (_, scratch) = gpu.made[0]
    assert gpu.launched == [
        ("copy", [weight.pointer, scratch + 16], 77),
        ("work", [x.pointer, scratch + 16, out.pointer, scratch], 77),
    ]


def test_results_of_a_calls_own_are_known_by_their_names(gpu: RecordingFamily) -> None:
    names = ("out[0]", "out[1]")
    toy = Toy(launches=(launch("split", "x", "out[0]", "out[1]", "out[2]"),), new=dict.fromkeys(names, FLOAT32))
    x, second = array(), array()
    first, given = toy.operation(("x",))((x, None, second), outputs=names)
    assert given is second
    assert gpu.launched == [("split", [x.pointer, first.pointer, second.pointer], 77)]


def test_a_pointer_that_no_argument_has_is_an_error_before_anything_is_launched(gpu: RecordingFamily) -> None:
    toy = Toy(launches=(launch("toy", "x", "weights", "out"),), new={"out": FLOAT32})
    with pytest.raises(TypeError, match=r"^toy has a pointer weights, which is none of x, weight, out$"):
        toy.operation(("x", "weight"), ("out",))((array(), array(), None))
    assert not gpu.launched and not gpu.loaded


def test_a_new_result_has_the_dtype_that_the_family_says(gpu: RecordingFamily) -> None:
    toy = Toy(launches=(launch("toy", "x", "y"),), new={"same": FLOAT32, "indices": INT32, "other": BYTE})
    x, y = array(), array(dtype=INT32)
    results = toy.operation(("x", "y"), ("same", "indices", "other"))((x, y, None, None, None))
    assert [result.dtype for result in results] == [FLOAT32, INT32, BYTE]


def test_a_result_that_is_not_wanted_is_none(gpu: RecordingFamily) -> None:
    toy = Toy(launches=(launch("toy", "x", "out", "extra"),), new={"out": FLOAT32})
    x = array()
    out, extra = toy.operation(("x",), ("out", "extra"))((x, None, None))
    assert extra is None and gpu.launched == [("toy", [x.pointer, out.pointer], 77)]


def test_every_call_has_scratch_of_its_own_which_a_captured_graph_keeps(gpu: RecordingFamily) -> None:
    toy = Toy(launches=(launch("toy", "x", "scratch"),), scratch=4)
    operation, x = toy.operation(("x",)), array()
    operation((x,))
    operation((x,))
    pointers = [address for _, address in gpu.made]
    assert len(set(pointers)) == 2 and [each.pointer for each in gpu.kept] == pointers
    assert [given for _, given, _ in gpu.launched] == [[x.pointer, pointer] for pointer in pointers]


def test_scratch_that_a_plan_does_not_ask_for_is_null(gpu: RecordingFamily) -> None:
    toy = Toy(launches=(launch("toy", "scratch", "x"),))
    x = array()
    toy.operation(("x",))((x,))
    assert gpu.launched == [("toy", [0, x.pointer], 77)] and not gpu.made and not gpu.kept


def test_results_are_made_where_there_is_nothing_to_launch(gpu: RecordingFamily) -> None:
    (out,) = Toy(new={"out": FLOAT32}).operation(("x",), ("out",))((array(), None))
    assert out.shape == SHAPE and not gpu.launched and not gpu.loaded


def test_a_call_is_prepared_once_and_found_again_whatever_came_between(gpu: RecordingFamily) -> None:
    toy = Toy(launches=(launch("toy", "x", "out"),), new={"out": FLOAT32})
    operation = toy.operation(("x", "bias"), ("out",))
    kinds: Any = ((array(), None), (array(dtype=INT32), None), (array(), array()), (array(strides=(4, 1)), None))
    for options in ((1, "a"), (1, "a"), (2, "a"), (1, "a"), (1, "b"), (2, "a")):
        for x, bias in (*kinds, kinds[0]):
            operation((x, bias, None), options)
            unit, pointers, _ = gpu.launched[-1]
            assert (unit, pointers[0]) == ("toy", x.pointer), "what is remembered has the addresses of each call"
    assert len(toy.checked) == len(toy.planned) == len(gpu.loaded) == 3 * len(kinds)
    assert {options for _, options in toy.checked} == {(1, "a"), (2, "a"), (1, "b")}


def test_facts_options_and_names_are_not_mistaken_for_each_other() -> None:
    toy = Toy()
    operation = toy.operation(("x",))
    x = array()
    for options, outputs in (((), ()), ((("out",),), ()), ((), ("out",)), ((1,), ("out",)), ((1,), ("other",))):
        operation((x, *[None] * len(outputs)), options, outputs)
    assert [tuple(given) for given, _ in toy.checked] == [("x",), ("x",), ("x", "out"), ("x", "out"), ("x", "other")]
    assert [options for _, options in toy.checked] == [(), (("out",),), (), (1,), (1,)]


def test_an_error_is_not_remembered() -> None:
    toy = Toy()
    operation, x = toy.operation(("x",)), array()
    operation((x,), ("good",))
    for _ in range(2):
        with pytest.raises(ValueError, match=r"^bad$"):
            operation((x,), ("bad",))
    operation((x,), ("good",))
    assert len(toy.checked) == 1


WRITTEN = launch("toy", "x", "out")


def writer(**what: Any) -> Operation[Any]:
    return Toy(launches=(WRITTEN,), new={"out": FLOAT32}, **what).operation(("x", "z"), ("out",))


def test_addresses_that_overlap_are_found_whatever_was_right_before(gpu: RecordingFamily) -> None:
    operation = writer()
    for _ in range(3):
        operation((array(1000), None, array(1000 + BYTES)))
        for out in (1000, 1004, 1000 + BYTES - 4, 1000 - BYTES + 4):
            with pytest.raises(ValueError, match=r"^out: got memory that overlaps x; wanted memory of its own$"):
                operation((array(1000), None, array(out)))
    assert len(gpu.launched) == 3


def test_what_is_updated_may_overlap_no_other_argument() -> None:
    operation = Toy(updated=("state", "absent")).operation(("x", "state", "absent"))
    operation((array(1000), array(2000), None))
    with pytest.raises(ValueError, match=r"^state: got memory that overlaps x; wanted memory of its own$"):
        operation((array(1000), array(1008), None))


def test_two_results_may_not_overlap() -> None:
    operation = Toy(new={"out": FLOAT32, "other": FLOAT32}).operation(("x",), ("out", "other"))
    operation((array(), array(1000), array(2000)))
    with pytest.raises(ValueError, match=r"^out: got memory that overlaps other; wanted memory of its own$"):
        operation((array(), array(1000), array(1008)))


def test_elements_that_lie_between_anothers_are_no_overlap() -> None:
    operation = writer()
    operation((array(1000, strides=(6, 2)), None, array(1004, strides=(6, 2))))
    with pytest.raises(ValueError, match="overlaps x"):
        operation((array(1000, strides=(6, 2)), None, array(1008, strides=(6, 2))))


def test_an_output_may_be_the_input_that_it_may_replace() -> None:
    operation = writer(in_place=("out", "x"))
    operation((array(1000), None, array(1000)))
    for out, strides in ((1004, (3, 1)), (1000, (1, 2))):
        with pytest.raises(ValueError, match="overlaps x"):
            operation((array(1000), None, array(out, strides=strides)))
    with pytest.raises(ValueError, match="overlaps z"):
        operation((array(1000), array(1000), array(1000)))


def test_what_is_only_read_may_overlap() -> None:
    writer()((array(1000), array(1008), array(2000)))


def test_what_is_written_has_an_address_for_every_element() -> None:
    with pytest.raises(ValueError, match=r"^out: got strides \(0, 1\) for shape \(2, 3\); wanted an address"):
        writer()((array(), None, array(strides=(0, 1))))
    writer()((array(strides=(0, 1)), None, array()))


def test_all_calls_together_remember_only_so_many_addresses() -> None:
    operations = [writer() for _ in range(3)]
    calls: dict[int, Call[Any]] = {}
    for address in range(64, 3 * MAX_REMEMBERED * 64, 64):
        operation = operations[address // 64 % 3]
        operation((array(address), None, array(address + 32)))
        calls[id(operation)] = operation.recent[0]
    assert 0 < sum(len(call.apart) for call in calls.values()) <= MAX_REMEMBERED
    for operation in operations:
        with pytest.raises(ValueError, match="overlaps x"):
            operation((array(64), None, array(80)))


def test_all_operations_together_remember_only_so_many_calls() -> None:
    made: list[weakref.ref[Any]] = []
    for number in range(3):
        toy = Toy()
        operation = toy.operation(("x",))
        for option in range(MAX_REMEMBERED // 2):
            operation((array(),), (number, option))
            made.append(weakref.ref(operation.recent[0]))
    assert len(made) == 3 * (MAX_REMEMBERED // 2)
    assert sum(each() is not None for each in made) <= MAX_REMEMBERED + 3 * RECENT


def test_numbers_that_come_late_are_no_part_of_what_is_remembered(gpu: RecordingFamily) -> None:
    launches = tuple(
        Launch(kernel(unit, params), CONFIG, params.pack_numbers(**values))
        for unit, params, values in (
            (
                "seeded",
                Params(("x",), ("count", "i4"), ("seed", "i8"), ("last", "i4")),
                {"count": 3, "seed": 0, "last": 5},
            ),
            ("other", Params(("x",), ("count", "i8")), {"count": 7}),
        )
    )
    toy = Toy(launches=launches)
    operation, x = toy.operation(("x",)), array()
    for seed in (1, 2**63 + 9, 2**64 - 1, 0):
        gpu.numbers.clear()
        operation((x,), late={"seed": seed})
        record = np.frombuffer(gpu.numbers[0], launches[0].kernel.params.numbers)[0]
        assert (record["count"], int(record["seed"]) % 2**64, record["last"]) == (3, seed, 5)
        assert gpu.numbers[1] == launches[1].numbers
    assert len(toy.checked) == len(toy.planned) == 1 and gpu.loaded == ["seeded", "other"]


@pytest.mark.parametrize(("value", "asked"), [("", 0), ("0", 0), ("1", 1)])
def test_contents_are_read_when_asked_for(value: str, asked: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUCONV_CHECK", value)
    toy = Toy()
    x = array()
    toy.operation(("x", "bias"), contents=toy.check_contents)((x, None), ("option",))
    assert toy.contents == [(("option",), {"x": f"contents of {x.pointer}", "bias": None})] * asked


def test_bad_contents_are_found_before_anything_is_made_or_launched(
    gpu: RecordingFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUCONV_CHECK", "1")

    def refuse(operands: Any, read: Any) -> None:
        raise ValueError("contents")

    toy = Toy(launches=(WRITTEN,), new={"out": FLOAT32})
    with pytest.raises(ValueError, match=r"^contents$"):
        toy.operation(("x",), ("out",), contents=refuse)((array(), None))
    assert not gpu.launched and not gpu.made


def test_the_leader_says_of_which_kind_all_are() -> None:
    operation = Toy().operation(("state", "x"), leader="x")
    operation((None, array()))
    with pytest.raises(TypeError, match=r"^state: got a NumPy array; wanted a recorded array, as the first is$"):
        operation((np.zeros(SHAPE, np.float32), array()))
    with pytest.raises(TypeError, match=r"^x: got a NoneType; wanted "):
        operation((None, None))


def numpy_toy() -> tuple[Toy, Operation[Any]]:
    toy = Toy(launches=(WRITTEN,), new={"out": FLOAT32})
    return toy, toy.operation(("x", "z"), ("out",))


def test_numpy_arrays_are_computed_by_the_reference() -> None:
    toy, operation = numpy_toy()
    x, given = np.zeros(SHAPE, np.float32), np.zeros(SHAPE, np.float32)
    (out,) = operation((x, None, None), ("option",))
    assert type(out) is np.ndarray and out.dtype == np.float32 and (out == 5).all()
    ((operands, named),) = toy.computed
    assert operands == ("option",) and tuple(named) == ("x", "z", "out")
    assert named["x"] is x and named["z"] is None and named["out"] is out
    (returned,) = operation((x, None, given), ("option",))
    assert returned is given and (given == 5).all() and not toy.planned


def test_dlpack_arrays_are_the_same_memory_and_results_go_back_to_their_library() -> None:
    toy, operation = numpy_toy()
    x, given = np.zeros(SHAPE, np.float32), np.zeros(SHAPE, np.float32)
    (out,) = operation((StandardForeign(x), None, None), ("option",))
    assert type(out) is StandardForeign and (out.array == 5).all()
    ((operands, named),) = toy.computed
    assert operands == ("option",) and np.shares_memory(named["x"], x) and named["z"] is None
    target = StandardForeign(given)
    assert operation((StandardForeign(x), None, target))[0] is target and (given == 5).all()
    with pytest.raises(ValueError, match="overlaps x"):
        operation((StandardForeign(x), None, StandardForeign(x)))
