"""Times of functions beside a copy and beside other libraries, on one GPU in one run. Wrong results get no time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import cuconv
from cuconv.bench.machine import Machine
from cuconv.bench.makers import called
from cuconv.bench.numerics import Difference, compare
from cuconv.bench.peers.found import Loaded
from cuconv.bench.peers.peer import Ready
from cuconv.bench.results import OURS, Host, Kernel
from cuconv.bench.timing import Call, Percentiles
from cuconv.runtime.workload import Workload

SHARE = 0.7
"""The fraction of the free memory that arrays may take: calls allocate from the rest."""

MIN_SETS, MAX_SETS = 2, 2**16
"""The fewest and the most sets of arrays: more sets for the smallest calls would take minutes to make."""

PEER_SLACK = 32.0
"""The largest error of a peer, in tolerances. Other libraries round between steps (torch's convolution in float16
before the activation: 13) or compute fast exponentials; wrong results are off by hundreds.
"""

HOST_CALLS, MIN_HOST_CALLS = 100, 20
HOST_SECONDS = 0.1
"""Calls per round: so few that their launches, up to ten per call, never fill the GPU's queue of 1024, for which the
host would wait. With long kernels there are fewer calls."""


class TooLarge(Exception):
    """Raised for a workload that this GPU has no memory for; the text says what it needs."""


class Set(NamedTuple):
    """The arrays of one call and those for its results."""

    arrays: dict[str, Any]
    outs: list[Any]


class Case(NamedTuple):
    """A workload on a GPU."""

    machine: Machine
    workload: Workload
    set_count: int
    copy_s: float
    is_cold: bool
    sets: list[Set]
    """The arrays, which all libraries share, because a kernel's time varies by up to a sixth with their addresses."""


def kernels(machine: Machine, workload: Workload, peers: Iterable[Loaded]) -> list[Kernel]:
    """Rows for one workload, cuconv's first. TooLarge if it does not fit."""
    case = on_machine(machine, workload)
    rows = [_ours(case)]
    for peer in peers:
        if not rows[-1].is_right and not machine.is_alive():
            break
        if peer.peer.function == workload.function and (row := _theirs(case, peer)) is not None:
            rows.append(row)
    return rows


def sets_that_fit(needed: int, set_bytes: int, free_bytes: int) -> int:
    """The number of sets of arrays to make: enough to find the L2 cache cold, if they fit, and at most MAX_SETS."""
    fit = int(free_bytes * SHARE) // set_bytes
    if fit < MIN_SETS:
        wanted, free = MIN_SETS * set_bytes / SHARE * 2**-30, free_bytes * 2**-30
        raise TooLarge(f"needs {wanted:.1f} GiB of free memory, of which there are {free:.1f}")
    return min(needed, fit, MAX_SETS)


def held_bytes(workload: Workload) -> int:
    """Bytes of a set's arrays. Calls need not touch all of them."""
    return sum(array.nbytes for array in (*workload.arrays.values(), *workload.outs.values()))


def on_machine(machine: Machine, workload: Workload) -> Case:
    """A workload with as many sets as fit. TooLarge if too few do."""
    machine.release()
    needed = machine.sets_needed(workload.bytes_moved)
    count = sets_that_fit(needed, held_bytes(workload), machine.free_bytes())
    try:
        # This comes before sets are made, because the copy has separate arrays.
        copy_s = machine.copy_time(workload.bytes_moved)
    except MemoryError:
        raise TooLarge("there is no memory for a copy of as many bytes") from None
    return Case(machine, workload, count, copy_s, count == needed, [])


def _sets(case: Case) -> Iterator[Set]:
    """The sets with their first contents, so that no library works on the results of another one, or returns them as
    its own."""
    machine, workload = case.machine, case.workload
    machine.release()
    for number in range(case.set_count):
        if number < len(case.sets):
            machine.renew(workload, number, *case.sets[number])
        else:
            case.sets.append(Set(machine.arrays(workload, number), machine.outs(workload)))
        yield case.sets[number]


def our_calls(case: Case) -> tuple[list[Call], list[Difference]]:
    """Calls of cuconv, each on a separate set, and the errors of the first call's results."""
    function = called(case.workload)
    sets = list(_sets(case))
    first = sets[0]
    outs = dict(zip(case.workload.outs, first.outs, strict=True))
    written = outs | {name: first.arrays[name] for name in case.workload.updated}
    calls: list[Call] = [partial(function, **case.workload.call(*each)) for each in sets]
    return calls, _differences(case, first, calls[0], lambda result: written)


def _ours(case: Case) -> Kernel:
    try:
        calls, differences = our_calls(case)
        if not all(difference.is_right for difference in differences):
            return _wrong(case, OURS, differences)
        return _right(case, OURS, case.machine.times(calls), differences)
    except MemoryError:
        raise TooLarge("the GPU's memory was used up in the middle") from None
    except Exception as error:
        return _failed(case, OURS, error)


def _theirs(case: Case, peer: Loaded) -> Kernel | None:
    """The row of another library; None for a workload that the library cannot compute."""
    library = peer.peer.library
    if not case.workload.is_common:
        return None
    try:
        ready = list(_ready(case, peer))
        if not ready:
            return None
        first, check = ready[0]
        differences = _differences(case, first, check.call, check.read)
        if not max(map(tolerances, differences)) <= PEER_SLACK:
            return _wrong(case, library, differences)
        times, note = case.machine.torch_times([each.call for _, each in ready])
        return _right(case, library, times, differences, check.note, note)
    except Exception as error:
        return _failed(case, library, error)


def _ready(case: Case, peer: Loaded) -> Iterator[tuple[Set, Ready]]:
    """Sets of arrays and the library's calls on them; none if it cannot compute the workload."""
    shared: dict[str, Any] = {}
    for given in _sets(case):
        tensors = case.machine.tensors(given.arrays)
        # Libraries remember, for the last few tensors, what they have found out about indices.
        shared = shared or {name: tensors[name] for name, array in case.workload.arrays.items() if array.values}
        outs = case.machine.tensors(dict(enumerate(given.outs)))
        prepared = peer.peer.prepare(peer.function, case.workload, tensors | shared, list(outs.values()))
        if prepared is None:
            return
        yield given, prepared


def _differences(case: Case, given: Set, call: Call, read: Callable[[Any], Mapping[str, Any]]) -> list[Difference]:
    """The errors of a call on a set."""
    machine, parts = case.machine, case.workload.compared
    # These are copied before the call, which may update some.
    inputs = [{name: machine.cut(part, name, array) for name, array in given.arrays.items()} for part, _ in parts]
    results = read(call())
    found = []
    for (part, names), arrays in zip(parts, inputs, strict=True):
        got = {name: machine.cut(part, name, results[name]) for name in names}
        found += compare(part, arrays, got, part.cut_options)
    return found


def tolerances(difference: Difference) -> float:
    """The error in tolerances; infinite for NaN."""
    return math.inf if math.isnan(difference.used) else float(difference.used)


def _right(case: Case, library: str, times: Sequence[float], differences: list[Difference], *notes: str) -> Kernel:
    kernel_us = Percentiles.of(times, 1e-6)
    seconds = kernel_us.p50 * 1e-6
    rate = case.machine.exponentials_per_second
    cold = "" if case.is_cold else f"only {case.set_count} sets of arrays, so the L2 cache is not cold"
    return _row(
        case, library, "; ".join(filter(None, (*notes, cold))), differences, kernel_us,
        case.workload.bytes_moved / seconds * 1e-9, case.copy_s / seconds,
        case.workload.exponentials / rate / seconds if rate and case.workload.exponentials else None,
    )  # fmt: skip


def _wrong(case: Case, library: str, differences: list[Difference]) -> Kernel:
    worst = max(differences, key=tolerances)
    return _row(case, library, f"WRONG: {worst.detail}, {tolerances(worst):.3g} times the tolerance", differences)


def _failed(case: Case, library: str, error: Exception) -> Kernel:
    text = " ".join(str(error).split())
    return _row(case, library, f"failed: {type(error).__name__}: {text}".removesuffix(": "))


def _row(
    case: Case,
    library: str,
    note: str,
    differences: Sequence[Difference] = (),
    kernel_us: Percentiles | None = None,
    gb_per_s: float | None = None,
    fraction_of_copy: float | None = None,
    fraction_of_exponentials: float | None = None,
) -> Kernel:
    workload = case.workload
    error = max(map(tolerances, differences), default=math.inf)
    return Kernel(
        workload.function, dict(workload.sizes), library, kernel_us, case.copy_s * 1e6, workload.bytes_moved, gb_per_s,
        fraction_of_copy, workload.exponentials, fraction_of_exponentials,
        error if math.isfinite(error) else None, kernel_us is not None, note,
    )  # fmt: skip


def too_large(workload: Workload, error: TooLarge) -> Kernel:
    """The row of a workload that does not fit."""
    return Kernel(
        workload.function, dict(workload.sizes), OURS, None, None, workload.bytes_moved, None, None,
        workload.exponentials, None, None, False, f"too large: {error}",
    )  # fmt: skip


def speed_up(rows: Sequence[Kernel]) -> float | None:
    """The time of the best other library divided by cuconv's, from the rows of one workload."""
    times = {row.library: row.kernel_us.p50 for row in rows if row.kernel_us is not None}
    ours = times.pop(OURS, None)
    return min(times.values()) / ours if ours and times else None


def hosts(machine: Machine, workload: Workload, kernel_us: float) -> Iterator[Host]:
    """Host times until a call returns: with CuPy arrays and, where torch is installed, tensors; without `out`, with it,
    and bound.

    Only public functions can be bound.
    """
    machine.release()
    function = called(workload)
    arrays, outs = machine.arrays(workload, 0), machine.outs(workload)
    calls = round(max(MIN_HOST_CALLS, min(HOST_CALLS, HOST_SECONDS / (kernel_us * 1e-6))))
    for library in ("cupy", "torch"):
        if library == "torch":
            try:
                arrays = machine.tensors(arrays)
                outs = list(machine.tensors(dict(enumerate(outs))).values())
            except ImportError:
                return
        for given in (None, outs):
            seconds = machine.host_time(partial(function, **workload.call(arrays, given)), calls)
            yield Host(workload.function, dict(workload.sizes), library, given is not None, seconds * 1e6)
        if workload.through is None:
            seconds = machine.host_time(cuconv.bind(function, **workload.call(arrays, outs)), calls)
            yield Host(workload.function, dict(workload.sizes), library, True, seconds * 1e6, bound=True)
