"""What is measured: times of right numbers only, figures from times, libraries apart from each other, memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cuconv
from cuconv.bench import measure
from cuconv.bench.makers import MAKERS
from cuconv.bench.peers.found import Loaded
from cuconv.bench.peers.peer import Peer
from cuconv.bench.results import OURS, Kernel
from cuconv.bench.timing import Percentiles
from cuconv.bench.workloads import SMALL, workloads
from tests.support.bench_machine import FakeMachine, peer

CONV = MAKERS["causal_conv1d_fn"](batch=2, dim=16, seqlen=40, dtype="float32")
STEP = MAKERS["causal_conv1d_update"](batch=3, dim=16, dtype="float32")
FIRST_OF_EACH = [next(workloads(SMALL, function)) for function in SMALL]


def ours(machine: FakeMachine, workload: Any = CONV, peers: Any = ()) -> Kernel:
    return measure.kernels(machine, workload, peers)[0]


def test_figures_come_from_the_median() -> None:
    machine = FakeMachine()
    row = ours(machine)
    assert row.kernel_us is not None
    assert (row.kernel_us.p20, row.kernel_us.p50, row.kernel_us.p80) == pytest.approx((1.8, 3.0, 4.2))
    assert row.copy_us == pytest.approx(1.5) and machine.copied == [CONV.bytes_moved]
    assert row.fraction_of_copy == pytest.approx(0.5)
    assert row.bytes_moved == CONV.bytes_moved
    assert row.gb_per_s == pytest.approx(CONV.bytes_moved / 3e-6 / 1e9)
    assert row.is_right and row.note == "" and row.library == OURS and row.sizes == CONV.sizes
    assert row.exponentials == 0 and row.fraction_of_exponentials is None


def test_the_error_is_in_tolerances() -> None:
    # The NumPy path against itself is only rounded to 16 bits, which is nearly all of the tolerance.
    error = ours(FakeMachine(), MAKERS["causal_conv1d_fn"](dim=64, seqlen=200)).error
    assert error is not None and 0.5 < error <= 1


def test_scans_have_another_bound() -> None:
    machine = FakeMachine()
    scan = MAKERS["selective_scan_fn"](dim=8, seqlen=30)
    row = ours(machine, scan)
    assert row.exponentials == 8 * 30 * 16
    assert row.fraction_of_exponentials == pytest.approx(8 * 30 * 16 / 1e12 / 3e-6)
    machine.exponentials_per_second = 0
    assert ours(machine, scan).fraction_of_exponentials is None


@pytest.mark.parametrize("workload", FIRST_OF_EACH, ids=lambda workload: workload.function)
def test_every_function_is_right_and_timed_on_as_many_sets_as_needed(workload: Any) -> None:
    machine = FakeMachine()
    assert ours(machine, workload).is_right
    assert machine.timed == [machine.needed]


@given(st.lists(st.floats(1e-9, 1.0), min_size=1, max_size=20))
def test_percentiles_are_of_the_unit_that_is_asked_for(seconds: list[float]) -> None:
    found = Percentiles.of(seconds, 1e-6)
    assert (found.p20, found.p50, found.p80) == pytest.approx(
        tuple(np.percentile(np.array(seconds) * 1e6, (20, 50, 80)))
    )


def off_by(amount: float, index: Any = ...) -> Any:
    """A convolution whose result is wrong."""
    right = cuconv.causal_conv1d_fn

    def function(**arguments: Any) -> Any:
        out = right(**arguments)
        out[index] += amount
        return out

    return function


def break_ours(monkeypatch: pytest.MonkeyPatch, name: str, function: Any) -> None:
    """Another function where results are given: the oracle, which gives none, stays as it is."""
    right = getattr(cuconv, name)
    monkeypatch.setattr(cuconv, name, lambda **given: function(**given) if "out" in given else right(**given))


def test_wrong_numbers_have_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = FakeMachine()
    break_ours(monkeypatch, "causal_conv1d_fn", off_by(0.01, (0, 0, 5)))
    row = ours(machine)
    assert machine.timed == [] and row.kernel_us is None and not row.is_right
    assert row.gb_per_s is None and row.fraction_of_copy is None
    assert row.error is not None and row.error > 100
    assert row.note.startswith("WRONG: out[0, 0, 5]: got ")


def test_what_is_not_written_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = FakeMachine()
    break_ours(monkeypatch, "causal_conv1d_fn", lambda **arguments: None)
    row = ours(machine)
    assert machine.timed == [] and not row.is_right and row.error is None and "inf times" in row.note


def test_a_state_that_is_not_updated_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, right = FakeMachine(), cuconv.causal_conv1d_update

    def forgets(conv_state: Any, **arguments: Any) -> Any:
        return right(conv_state=conv_state.copy(), **arguments)

    break_ours(monkeypatch, "causal_conv1d_update", forgets)
    row = ours(machine, STEP)
    assert machine.timed == [] and not row.is_right and row.note.startswith("WRONG: conv_state[")


def test_a_call_that_fails_is_said_to(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(**arguments: Any) -> Any:
        raise RuntimeError("no\nkernel")

    break_ours(monkeypatch, "causal_conv1d_fn", fails)
    row = ours(FakeMachine())
    assert (row.kernel_us, row.error, row.is_right, row.note) == (None, None, False, "failed: RuntimeError: no kernel")


def test_one_library_does_not_disturb_another() -> None:
    def overwrites(x: Any, **arguments: Any) -> Any:
        out = cuconv.causal_conv1d_fn(x, **arguments)
        x[...] = np.nan
        return out

    def fails(**arguments: Any) -> Any:
        raise OSError

    machine = FakeMachine()
    machine.torch_seconds[1] = ([4e-6] * 3, "by other means")
    functions = {"overwrites": overwrites, "fails": fails, "wrong": off_by(1.0), "good": cuconv.causal_conv1d_fn}
    rows = measure.kernels(machine, CONV, [peer(function, name) for name, function in functions.items()])
    assert [row.library for row in rows] == [OURS, *functions]
    assert [row.is_right for row in rows] == [True, True, False, False, True]
    assert rows[2].note == "failed: OSError"
    assert rows[3].note.startswith("WRONG: out") and rows[3].kernel_us is None
    assert rows[4].kernel_us is not None and rows[4].kernel_us.p50 == pytest.approx(4.0)
    assert rows[4].note == "a note; by other means" and rows[4].fraction_of_copy == pytest.approx(1.5 / 4)
    assert machine.torch_timed == 2
    assert measure.speed_up(rows) == pytest.approx(4 / 3)
    assert measure.speed_up(rows[:1]) is None and measure.speed_up(rows[1:]) is None


def test_others_may_round_more_often_but_not_be_wrong() -> None:
    # float32 rounds results of about 1 to 6e-8; eight tolerances are far from what a wrong tap does.
    nearly, wrong = measure.kernels(FakeMachine(), CONV, [peer(off_by(5e-7)), peer(off_by(2e-4))])[1:]
    assert nearly.is_right and nearly.error is not None and 1 < nearly.error < measure.PEER_SLACK
    assert not wrong.is_right


def test_results_of_another_library_do_not_pass_as_ones_own() -> None:
    def prepare(function: Any, workload: Any, tensors: Any, outs: Any) -> Any:
        return peer(function).peer.prepare(lambda **arguments: outs[0], workload, tensors, outs)

    lazy = Loaded(Peer("lazy", "causal_conv1d_fn", lambda: cuconv.causal_conv1d_fn, prepare), cuconv.causal_conv1d_fn)
    assert [row.is_right for row in measure.kernels(FakeMachine(), CONV, [lazy])] == [True, False]


def test_a_library_without_the_means_has_no_row_and_makes_no_more_arrays() -> None:
    machine = FakeMachine()
    other = peer(cuconv.causal_conv1d_fn)
    unable = Loaded(replace(other.peer, prepare=lambda *arguments: None), other.function)
    elsewhere = peer(cuconv.causal_conv1d_update, ours="causal_conv1d_update")
    machine.memory = machine.needed
    assert [row.library for row in measure.kernels(machine, CONV, [unable, elsewhere])] == [OURS]
    assert machine.memory == 0


def test_all_libraries_work_on_the_same_arrays() -> None:
    places: dict[str, list[int]] = {"one": [], "other": []}

    def noting(name: str) -> Any:
        def function(**arguments: Any) -> Any:
            places[name].append(arguments["x"].ctypes.data)
            return cuconv.causal_conv1d_fn(**arguments)

        return function

    machine = FakeMachine()
    machine.memory = machine.needed
    rows = measure.kernels(machine, CONV, [peer(noting(name), name) for name in places])
    assert all(row.is_right for row in rows) and machine.memory == 0
    assert places["one"] == places["other"] and len(set(places["one"])) == machine.needed


def test_libraries_find_the_same_index_arrays_with_every_set() -> None:
    seen: dict[str, list[Any]] = {"x": [], "conv_state_indices": []}

    def function(**arguments: Any) -> Any:
        for name, found in seen.items():
            found.append(arguments[name])
        return cuconv.causal_conv1d_update(**arguments)

    measure.kernels(FakeMachine(), STEP, [peer(function, ours="causal_conv1d_update")])
    assert len({id(array) for array in seen["conv_state_indices"]}) == 1
    assert len({id(array) for array in seen["x"]}) == 3


def test_nothing_is_asked_of_a_gpu_that_is_lost() -> None:
    machine = FakeMachine()

    def breaks(**arguments: Any) -> Any:
        machine.alive = False
        raise RuntimeError("illegal memory access")

    rows = measure.kernels(machine, CONV, [peer(breaks, "breaks"), peer(cuconv.causal_conv1d_fn, "good")])
    assert [row.library for row in rows] == [OURS, "breaks"]


@given(st.integers(2, 100), st.integers(1, 10**9), st.integers(0, 10**12))
def test_sets_take_seven_tenths_of_the_memory_at_most(needed: int, size: int, free: int) -> None:
    if 2 * size > 0.7 * free:
        with pytest.raises(measure.TooLarge, match=r"needs .* GiB of free memory"):
            measure.sets_that_fit(needed, size, free)
    else:
        count = measure.sets_that_fit(needed, size, free)
        assert 2 <= count <= needed and count * size <= 0.7 * free
        assert count == needed or (count + 1) * size > 0.7 * free - 1


def test_the_smallest_calls_have_no_more_sets_than_can_be_made() -> None:
    assert measure.sets_that_fit(10**6, 1, 10**12) == measure.MAX_SETS


@pytest.mark.parametrize("workload", FIRST_OF_EACH, ids=lambda workload: workload.function)
def test_the_memory_of_a_set_is_known_before_it_is_made(workload: Any) -> None:
    def spans(array: Any) -> int:
        return array.itemsize + sum((n - 1) * stride for n, stride in zip(array.shape, array.strides, strict=True))

    outs = [array.host(0) for array in workload.outs.values()]
    assert measure.held_bytes(workload) == sum(map(spans, [*workload.host().values(), *outs]))


def test_a_set_less_is_said() -> None:
    machine = FakeMachine()
    machine.free = int(2.5 * measure.held_bytes(CONV) / measure.SHARE)
    row = ours(machine)
    assert machine.timed == [2] and row.is_right
    assert row.note == "only 2 sets of arrays, so the L2 cache is not cold"


def test_what_does_not_fit_is_no_failure_of_ours() -> None:
    machine = FakeMachine()
    machine.free = int(1.9 * measure.held_bytes(CONV) / measure.SHARE)
    with pytest.raises(measure.TooLarge) as caught:
        ours(machine)
    row = measure.too_large(CONV, caught.value)
    assert row.kernel_us is None and not row.is_right and row.note.startswith("too large: needs 0.0 GiB")
    assert machine.timed == [] and machine.copied == []
    machine = FakeMachine()
    machine.memory = 1
    with pytest.raises(measure.TooLarge, match="used up"):
        ours(machine)


def test_host_times_of_both_kinds_of_arrays_with_and_without_out_and_bound() -> None:
    machine = FakeMachine()
    rows = list(measure.hosts(machine, STEP, kernel_us=1.0))
    kinds = [(False, False), (True, False), (True, True)]
    wanted = [(arrays, *kind) for arrays in ("cupy", "torch") for kind in kinds]
    assert [(row.arrays, row.out, row.bound) for row in rows] == wanted
    assert all(row.host_us == pytest.approx(7.0) and row.function == STEP.function for row in rows)
    machine.has_torch = False
    assert [row.arrays for row in measure.hosts(machine, STEP, kernel_us=1.0)] == ["cupy"] * 3


@pytest.mark.parametrize(("kernel_us", "calls"), [(1.0, 100), (2000.0, 50), (1e6, 20)])
def test_the_host_does_not_queue_up_seconds_of_work(kernel_us: float, calls: int) -> None:
    machine = FakeMachine()
    assert list(measure.hosts(machine, CONV, kernel_us))
    assert set(machine.host_calls) == {calls}


@pytest.mark.parametrize("blocks", [0, 16])
def test_what_is_no_public_function_is_not_bound(blocks: int) -> None:
    workload = MAKERS["selective_scan_varlen_fn"](sequences="7+3", dim=8, **({"blocks": blocks} if blocks else {}))
    rows = list(measure.hosts(FakeMachine(), workload, 1.0))
    assert any(row.bound for row in rows) is not bool(blocks) and not all(row.bound for row in rows)
