"""Threads that should have waited for each other, or that wait in vain: the emulator must find both."""

from __future__ import annotations

import numpy as np
import pytest

from tests import emulator
from tests.emulator import broken, compiler
from tests.emulator.broken import finding, frame, row, run

pytestmark = pytest.mark.skipif(emulator.available() is not None, reason=str(emulator.available()))

OPPOSITE_SEEDS = (0, 1)
TURNS, FIXED_PRIORITY, BURSTS = ([seed for seed in range(24) if seed // 2 % 3 == manner] for manner in range(3))


@pytest.fixture(scope="module", autouse=True)
def prebuilt() -> None:
    emulator.prebuild(broken.KERNELS)


def test_a_missing_barrier_gives_wrong_numbers() -> None:
    """Each thread is too early in one of two opposite orders."""
    first, second = (run(broken.kernel("barrier_missing"), row(64), row(64), seed=seed) for seed in OPPOSITE_SEEDS)
    assert (np.isnan(first) != np.isnan(second)).all()


def test_a_missing_barrier_between_rounds_gives_wrong_numbers() -> None:
    expected = (row(64) + 2) % 64
    for seed in OPPOSITE_SEEDS:
        assert (run(broken.kernel("second_barrier_missing"), row(64), row(64), seed=seed) != expected).any()


def test_a_warp_that_trusts_in_lockstep_gives_wrong_numbers() -> None:
    kernel = broken.kernel("syncwarp_missing", 32)
    first, second = (run(kernel, row(32), row(32), shared_mem=128, seed=seed) for seed in OPPOSITE_SEEDS)
    assert (np.isnan(first) != np.isnan(second)).all()


def test_warps_that_trust_in_lockstep_give_wrong_numbers() -> None:
    """By turns all warps read the first tile before one of them writes the second, whatever the seed."""

    def is_wrong(seed: int) -> bool:
        out = run(broken.kernel("warps_in_lockstep"), row(64), row(64) * 0, seed=seed)
        # Thread i sums x + round of thread 63 - (i ^ 1) over both rounds.
        return bool((out != 2 * (63 - (np.arange(64) ^ 1)) + 1).any())

    assert not any(map(is_wrong, TURNS))
    assert all(map(is_wrong, FIXED_PRIORITY))
    assert sum(map(is_wrong, BURSTS)) >= len(BURSTS) / 2


def test_blocks_that_trust_in_an_order_give_wrong_numbers() -> None:
    for seed in OPPOSITE_SEEDS:
        out = run(broken.kernel("block_order"), np.ones(9, np.float32), np.zeros(9, np.float32), blocks=9, seed=seed)
        assert (out != row(9) + 1).any()


def test_a_seed_decides_the_order() -> None:
    first, again, other = (run(broken.kernel("barrier_missing"), row(64), row(64), seed=seed) for seed in (7, 7, 9))
    assert np.array_equal(first, again, equal_nan=True)
    assert not np.array_equal(first, other, equal_nan=True)


def test_unwritten_shared_memory_is_nan() -> None:
    """Shared memory holds NaN also where an earlier block or launch has written."""
    for seed in OPPOSITE_SEEDS:
        out = run(broken.kernel("shared_unwritten"), row(64), row(128), blocks=2, seed=seed).reshape(2, 64)
        assert np.array_equal(out[:, :63], np.broadcast_to(row(64)[1:], (2, 63)))
        assert out[0, 63] == 0 and np.isnan(out[1, 63])


def test_shared_memory_holds_nan_until_its_copy_is_waited_for() -> None:
    kernel = broken.kernel("copy_awaited_late")
    for seed in OPPOSITE_SEEDS:
        assert np.isnan(run(kernel, row(64), row(64), step=1, seed=seed)).all()
        assert np.array_equal(run(kernel, row(64), row(64), step=0, seed=seed), row(64)[::-1])


@pytest.mark.skipif(
    emulator.available() is None and not compiler.fills_locals(), reason="g++ fills variables from version 12 on"
)
def test_an_unwritten_register_gives_wrong_numbers() -> None:
    kernel = broken.kernel("local_unwritten")
    assert np.array_equal(run(kernel, row(64), row(64), length=4), row(64) * 4)
    assert (np.abs(run(kernel, row(64), row(64), length=3)) > 1e30).all()


def test_threads_that_leave_before_a_barrier_are_found() -> None:
    kernel = broken.kernel("left_before_barrier")
    assert finding(kernel, row(64), row(64), length=40) == [
        "emulator: deadlock",
        "threads (40, 0, 0) to (63, 0, 0) have returned",
        "threads (0, 0, 0) to (39, 0, 0) wait at __syncthreads",
        frame(kernel, "__syncthreads"),
        "emulator: in block (0, 0, 0)",
    ]


def test_a_read_before_the_wait_for_the_preceding_kernel_is_found() -> None:
    kernel = broken.kernel("read_before_wait")
    error, place, access, where, _ = finding(kernel, row(64), row(64))
    assert error.startswith("AddressSanitizer: use-after-poison") and place.startswith("    in an element of x, ")
    assert (access, where) == ("    READ of size 4", frame(kernel, "x = p.x"))
    early = type("AlsoEarly", (broken.CLASSES["read_before_wait"],), {"unit": kernel.unit, "EARLY": ("x",)})
    for seed in emulator.SEEDS:
        assert np.array_equal(run(early(64), row(192), row(192) * 0, blocks=3, seed=seed)[:64], row(64))


def test_a_store_before_the_wait_is_found() -> None:
    assert finding(broken.kernel("store_before_wait"), row(64), row(64) * 0)[0] == (
        "emulator: a store before the wait for the preceding kernel"
    )


def test_a_thread_that_does_not_wait_or_waits_twice_is_found() -> None:
    left, twice = broken.kernel("left_before_wait"), broken.kernel("second_wait")
    assert finding(left, row(64), row(64), length=40)[0] == (
        "emulator: a thread that ends without a wait for the preceding kernel"
    )
    assert finding(twice, row(64), row(64))[0] == (
        "emulator: a wait for the preceding kernel, and the kernel's class does not say EARLY"
    )
    expected = type("Expected", (broken.CLASSES["second_wait"],), {"unit": twice.unit, "EARLY": ()})
    assert finding(expected(64), row(64), row(64))[0] == "emulator: a second wait for the preceding kernel"


def test_lanes_that_leave_before_a_shuffle_are_found() -> None:
    kernel = broken.kernel("left_before_shuffle")
    assert finding(kernel, row(64), row(64), length=40)[2:-1] == [
        "threads (32, 0, 0) to (39, 0, 0) wait at __shfl_up_sync with mask 0xffffffff",
        frame(kernel, "return __shfl_up_sync", "from_lane_below"),
        frame(kernel, "= from_lane_below"),
    ]


def test_a_barrier_in_a_branch_is_found() -> None:
    lines = finding(broken.kernel("divergent_barrier"), row(64), row(64))
    assert lines[0].endswith("different places: __syncthreads")
    assert lines[1] != lines[3]
    assert all("divergent_barrier.cu:" in line for line in (lines[1], lines[3]))


def test_votes_in_two_branches_by_one_function_are_found() -> None:
    """The same line of the function, in calls from two places."""
    kernel = broken.kernel("divergent_helper")
    lines = finding(kernel, row(64), row(64))
    assert lines[0] == "emulator: threads that wait for each other came to different places: __any_sync"
    helper = frame(kernel, "return __any_sync", "any_above")
    even, odd = (frame(kernel, f"of {which} lanes") for which in ("even", "odd"))
    assert sorted([lines[1:3], lines[4:6]]) == [[helper, even], [helper, odd]]


def test_a_mask_without_the_calling_lane_is_found() -> None:
    kernel = broken.kernel("wrong_mask")
    assert finding(kernel, row(64), row(64))[:2] == [
        "emulator: __any_sync with mask 0x0000ffff, which does not name the calling lane",
        frame(kernel, "__any_sync"),
    ]


@pytest.mark.parametrize("is_atomic", [False, True], ids=["loop", "atomic"])
def test_an_endless_launch_is_ended(is_atomic: bool) -> None:
    kernel = broken.Endless(64, is_atomic)
    lines = finding(kernel, None, np.zeros(1, np.float32), time_limit=0.5)
    assert lines[:2] == ["emulator: the launch does not end", frame(kernel, "while (")]
    assert lines[2].startswith("emulator: in block (0, 0, 0), thread (")


def test_after_a_finding_launches_go_on() -> None:
    for _ in range(2):
        finding(broken.kernel("wrong_mask"), row(64), row(64))
        assert np.array_equal(run(broken.kernel("null_pointer"), row(64), row(64) * 0), row(64))
