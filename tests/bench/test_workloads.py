"""The package's own workloads: they can be planned without a GPU, run, and be cut into parts that mean the same."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import cuconv
from cuconv.bench.makers import MAKERS, called, parse
from cuconv.bench.models import MODELS
from cuconv.bench.workloads import REPORT, SMALL, of_model, workloads
from cuconv.runtime.abstract import launches_of
from cuconv.runtime.batches import lengths
from cuconv.runtime.dtypes import FLOATS
from cuconv.runtime.workload import Workload

ALL_SMALL = [workload for function in SMALL for workload in workloads(SMALL, function)]


def name(workload: Workload) -> str:
    return f"{workload.function} {workload.title}"


def test_every_function_has_workloads() -> None:
    assert set(MAKERS) == set(REPORT) == set(SMALL) == set(cuconv.OPERATORS)


@pytest.mark.parametrize("workload", [w for f in REPORT for w in workloads(REPORT, f)] + ALL_SMALL, ids=name)
def test_what_a_workload_launches_is_known_without_a_gpu(workload: Workload) -> None:
    assert launches_of(called(workload), **workload.abstract())
    assert workload.bytes_moved > 0


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_models_have_prefill_and_decode(model: str, dtype: Any) -> None:
    found = list(of_model(model, dtype.name, tokens=100, batches=(1, 3)))
    assert len(found) >= 4
    for workload in found:
        assert launches_of(called(workload), **workload.abstract())


def run(workload: Workload, arrays: Any, **options: Any) -> tuple[Any, ...]:
    result = called(workload)(**{**workload.call(arrays), **options})
    return tuple(workload.named(result).values())


@pytest.mark.parametrize("workload", ALL_SMALL, ids=name)
def test_a_part_of_the_work_gives_a_part_of_the_results(workload: Workload) -> None:
    arrays = workload.host()
    given = {key: array.copy() for key, array in arrays.items()}
    whole = run(workload, arrays)
    assert [(out.shape, out.dtype) for out in whole] == [(out.shape, out.dtype.numpy) for out in workload.outs.values()]
    assert all((arrays[key] != given[key]).any() for key in workload.updated)
    results = dict(zip(workload.outs, whole, strict=True)) | {key: arrays[key] for key in workload.updated}
    assert {name for _, names in workload.compared for name in names} == set(workload.results)
    for part, names in workload.compared:
        kept = {key: part.cut(key, array) for key, array in given.items()}
        found = dict(zip(workload.outs, run(part, kept, **part.cut_options), strict=True)) | kept
        for key in names:
            assert 0 < found[key].size <= results[key].size
            np.testing.assert_array_equal(part.cut(key, results[key]), found[key])


@pytest.mark.parametrize("workload", ALL_SMALL, ids=name)
def test_results_lie_as_out_does(workload: Workload) -> None:
    for out, wanted in zip(run(workload, workload.host()), workload.outs.values(), strict=True):
        assert [s // out.itemsize for s in out.strides] == list(wanted.strides)


BY_BLOCKS = [workload for workload in ALL_SMALL if workload.meaning is not None]


@pytest.mark.parametrize("workload", BY_BLOCKS, ids=name)
def test_a_cache_by_blocks_means_what_the_public_function_is_told(workload: Workload) -> None:
    (pool,), meaning = workload.updated, workload.meaning
    assert meaning is not None and "snapshots" in meaning.arrays
    arrays = workload.host()
    given = {key: each.host(0) if each.values else arrays[key].copy() for key, each in meaning.arrays.items()}
    before = arrays[pool].copy()
    for one, other in zip(run(workload, arrays), run(meaning, given), strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(arrays[pool], given[pool])
    # One slot is read and one written for each sequence that has tokens, and one written for each snapshot.
    written = int((arrays[pool] != before).any(axis=(1, 2)).sum())
    read = sum(count > 0 for count in lengths(workload.sizes["sequences"]))
    assert workload.arrays[pool].touched == (written + read) * before[0].size


def test_blocks_have_no_snapshots_or_forms_beside() -> None:
    for function, more in (("causal_conv1d_varlen_fn", {"form": "over"}), ("selective_scan_varlen_fn", {"over": "z"})):
        for sizes in (more, {"snapshots": 16}):
            with pytest.raises(ValueError, match="wanted blocks alone"):
                MAKERS[function](blocks=16, **sizes)


def test_random_numbers_differ_between_arrays_and_sets_and_come_back() -> None:
    workload = MAKERS["selective_scan_fn"](dim=8, seqlen=64)
    first, again, other = workload.host(), workload.host(), workload.host(1)
    assert all((first[key] == again[key]).all() for key in first)
    assert all((first[key] != other[key]).any() for key in first)
    assert (first["u"] != first["delta"]).any()


def test_bytes_are_counted_once_for_what_is_read_and_once_for_what_is_written() -> None:
    forward = MAKERS["causal_conv1d_fn"](batch=2, dim=8, seqlen=16, width=4, dtype="float32", bias=False)
    assert forward.bytes_moved == 4 * (2 * 2 * 8 * 16 + 8 * 4)
    step = MAKERS["causal_conv1d_update"](batch=2, dim=8, width=4, dtype="float32", bias=False, contiguous="tokens")
    # Three of four columns are read, four written; x, out and the filter once.
    assert step.bytes_moved == 4 * (2 * 8 * (3 + 4) + 2 * 2 * 8 + 8 * 4)
    ssm = MAKERS["selective_state_update"](batch=2, nheads=4, headdim=8, d_state=16, ngroups=2, dtype="float32")
    # dt, A, D and dt_bias are one a head.
    assert ssm.bytes_moved == 4 * (2 * 2 * 4 * 8 * 16 + 2 * 2 * 4 * 8 + 2 * 4 + 3 * 4 + 2 * 2 * 2 * 16)


@pytest.mark.parametrize(
    ("spec", "wanted"), [("7", [7]), ("5+0+3x1", [5, 0, 1, 1, 1]), ("2x3+1", [3, 3, 1]), ("0", [0])]
)
def test_lengths(spec: str, wanted: list[int]) -> None:
    assert lengths(spec) == wanted
    assert sum(lengths("9in100")) == 100 and len(lengths("9in100")) == 9


@pytest.mark.parametrize("spec", ["", "x", "3x", "-1", "5+", "inn", "3in", "1.5"])
def test_wrong_lengths_are_named(spec: str) -> None:
    with pytest.raises(ValueError, match=r"^sequences: got"):
        lengths(spec)


def test_sizes_may_be_text() -> None:
    workload = parse("causal_conv1d_split", "sequences=3+4,width=2,parts=8,4,4,bias=0,dtype=float32")
    wanted = {"sequences": "3+4", "parts": "8,4,4", "width": 2, "dtype": "float32", "bias": False}
    assert workload.sizes == {**MAKERS["causal_conv1d_split"]().sizes, **wanted}
    other = parse("causal_conv1d_fn", "dim=64", dim=32, width=2)
    assert other.sizes == {**MAKERS["causal_conv1d_fn"]().sizes, "dim": 64, "width": 2}


@pytest.mark.parametrize(
    ("function", "text", "wanted"),
    [
        ("causal_conv1d_fn", "dims=3", "shape: got 'dims'; wanted one of batch, dim, seqlen"),
        ("causal_conv1d_fn", "dim=a", "dim: got 'a'; wanted a whole number"),
        ("causal_conv1d_fn", "dim", "shape: got 'dim'; wanted name=value"),
        ("causal_conv1d_fn", "bias=2", "bias: got '2'; wanted 0, 1, false or true"),
        ("causal_conv1d_fn", "contiguous=rows", "contiguous: got 'rows'; wanted one of channels, tokens"),
        ("causal_conv1d_fn", "dtype=float64", "dtype: got 'float64'; wanted one of float32, float16, bfloat16"),
        ("causal_conv1d_fn", "dim=-4", "dim: got '-4'; wanted a whole number of at least 1"),
        ("causal_conv1d_qkv_split", "heads=3x4,5", "heads: got '3x4,5'; wanted q,k,v as in 16x128,16x128,32x128"),
        ("causal_conv1d_split", "parts=3,b", "parts: got '3,b'; wanted whole numbers joined by commas"),
        ("selective_state_update", "nheads=6,ngroups=4", "ngroups: got 4; wanted a divisor of nheads, 6"),
    ],
)
def test_wrong_sizes_are_named(function: str, text: str, wanted: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse(function, text)
    assert str(caught.value).startswith(wanted)


def test_makers_take_plain_values() -> None:
    """So that a command line can give them."""
    for maker in MAKERS.values():
        assert all(type(p.default) in (bool, int, str) for p in inspect.signature(maker).parameters.values())
