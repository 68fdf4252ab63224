"""Results on disk: what is written is read, a crash costs one line at most, and all else that is wrong is named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cuconv.bench import results
from cuconv.bench.results import Host, Kernel, Run, Step
from cuconv.bench.timing import Percentiles
from tests.support.bench_machine import HEADER

KERNEL = Kernel(
    function="causal_conv1d_fn", sizes={"dim": 8, "bias": True, "dtype": "float16"}, library="cuconv",
    kernel_us=Percentiles(1.0, 2.0, 3.5), copy_us=1.5, bytes_moved=1000, gb_per_s=0.5, fraction_of_copy=0.75,
    exponentials=0, fraction_of_exponentials=None, error=0.25, is_right=True, note="",
)  # fmt: skip
WRONG = replace(KERNEL, library="fla", kernel_us=None, gb_per_s=None, fraction_of_copy=None, error=30, is_right=False)
HOST = Host(function="causal_conv1d_fn", sizes={"dim": 8}, arrays="torch", out=True, host_us=7)
STEP = Step(model="Mamba", sizes={"layers": 8}, step="decode", library="torch", step_ms=1.5)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results.jsonl"


def test_what_is_written_is_read(path: Path) -> None:
    later = replace(HEADER, time="2026-01-03T00:00:00+00:00", torch="2.11")
    results.append(path, HEADER, KERNEL)
    results.append(path, WRONG, HOST, STEP)
    results.append(path, later)
    assert results.read(path) == [Run(HEADER, [KERNEL, WRONG, HOST, STEP]), Run(later, [])]


def test_keys_are_those_that_others_read(path: Path) -> None:
    results.append(path, HEADER, KERNEL, HOST)
    header, kernel, host = (json.loads(line) for line in path.read_text().splitlines())
    assert header.pop("schema") == 1
    assert header.keys() == {
        "kind", "time", "gpu", "compute_capability", "driver", "cuda", "cupy", "torch", "peers", "python",
        "cuconv", "source_digest",
    }  # fmt: skip
    assert kernel.keys() == {
        "kind", "function", "sizes", "library", "kernel_us", "copy_us", "bytes_moved", "gb_per_s", "fraction_of_copy",
        "exponentials", "fraction_of_exponentials", "error", "is_right", "note",
    }  # fmt: skip
    assert host.keys() == {"kind", "function", "sizes", "arrays", "out", "host_us", "bound"}
    assert kernel["kernel_us"] == {"p20": 1.0, "p50": 2.0, "p80": 3.5}
    assert [header["kind"], kernel["kind"], host["kind"]] == ["run", "kernel", "host"]


def test_a_line_that_a_crash_cut_off_is_left_out_wherever_it_ends(path: Path) -> None:
    results.append(path, HEADER, KERNEL, HOST)
    text = path.read_bytes()
    start = text.rindex(b"{", 0, text.rindex(b"}"))
    for end in range(start, len(text) - 1):
        path.write_bytes(text[:end])
        assert results.read(path) == [Run(HEADER, [KERNEL])]
        results.append(path, WRONG)
        assert results.read(path) == [Run(HEADER, [KERNEL, WRONG])]


def test_a_last_line_that_only_lacks_its_end_is_kept(path: Path) -> None:
    results.append(path, HEADER, KERNEL)
    path.write_bytes(path.read_bytes().removesuffix(b"\n"))
    assert results.read(path) == [Run(HEADER, [KERNEL])]
    results.append(path, HOST)
    assert results.read(path) == [Run(HEADER, [KERNEL, HOST])]


def changed(item: Any, **values: Any) -> str:
    return json.dumps({**results.to_json(item), **values})


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("{", "Expecting property name"),
        ("7", "kind: got None; wanted one of run, kernel, host"),
        (changed(KERNEL, kind="kernels"), "kind: got 'kernels'; wanted"),
        (changed(HEADER, schema=2), "schema: got 2; wanted 1"),
        (changed(KERNEL, more=1), "keys of a kernel: got function, sizes,"),
        (json.dumps({"kind": "host", "function": "f"}), "keys of a host: got function; wanted function, sizes, arrays"),
        (changed(KERNEL, gb_per_s="fast"), "gb_per_s: got 'fast'; wanted one of float, NoneType, int"),
        (changed(KERNEL, bytes_moved=1.5), "bytes_moved: got 1.5; wanted int"),
        (changed(KERNEL, bytes_moved=True), "bytes_moved: got True; wanted int"),
        (changed(KERNEL, is_right=1), "is_right: got 1; wanted bool"),
        (changed(KERNEL, sizes=[]), "sizes: got []; wanted dict"),
        (changed(KERNEL, kernel_us=2.0), "kernel_us: got 2.0; wanted one of Percentiles, NoneType"),
        (changed(KERNEL, kernel_us={"p50": 1.0}), "keys of kernel_us: got p50; wanted p20, p50, p80"),
        (changed(KERNEL, kernel_us={"p20": 1, "p50": None, "p80": 2}), "p50: got None; wanted one of float, int"),
        (changed(HEADER, torch=2), "torch: got 2; wanted one of str, NoneType"),
    ],
)  # fmt: skip
def test_what_is_no_result_is_named_with_its_line(path: Path, line: str, wanted: str) -> None:
    results.append(path, HEADER, KERNEL)
    with path.open("a") as file:
        file.write(f"{line}\n")
    results.append(path, HOST)
    with pytest.raises(ValueError) as caught:
        results.read(path)
    assert str(caught.value).startswith(f"{path}:3: {wanted}")


def test_rows_need_a_run(path: Path) -> None:
    results.append(path, KERNEL)
    with pytest.raises(ValueError, match=r":1: a measurement before the first run$"):
        results.read(path)


def test_a_file_that_is_not_there_is_named(path: Path) -> None:
    with pytest.raises(ValueError, match=r"results\.jsonl: No such file"):
        results.read(path)


def test_numbers_that_are_none_are_not_written(path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        results.append(path, replace(KERNEL, error=float("nan")))


def test_the_latest_of_each_is_found_in_whatever_order(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    later = replace(HEADER, time="2026-02-01T00:00:00+00:00")
    faster = replace(KERNEL, kernel_us=Percentiles(1.0, 1.0, 1.0))
    other_sizes = replace(KERNEL, sizes={**KERNEL.sizes, "dim": 9})
    given, bound = replace(HOST, out=False), replace(HOST, bound=True)
    results.append(old, HEADER, KERNEL, WRONG, other_sizes, HOST, given, bound)
    results.append(new, later, faster, replace(HOST, host_us=6.0))
    wanted = {
        "ours": (later, faster),
        "theirs": (HEADER, WRONG),
        "other sizes": (HEADER, other_sizes),
        "host": (later, replace(HOST, host_us=6.0)),
        "host without out": (HEADER, given),
        "host of a bound call": (HEADER, bound),
    }
    for paths in ([old, new], [new, old]):
        found = results.latest(paths)
        assert len(found) == len(wanted)
        assert all(pair in found for pair in wanted.values())


def test_the_later_of_two_of_one_run_counts_and_the_order_of_sizes_does_not(path: Path) -> None:
    turned = replace(KERNEL, sizes=dict(reversed(KERNEL.sizes.items())), copy_us=9.0)
    results.append(path, HEADER, KERNEL, turned)
    assert results.latest([path]) == [(HEADER, turned)]


def test_rows_of_before_a_field_with_a_default_are_read(path: Path) -> None:
    results.append(path, HEADER, HOST)
    path.write_text(path.read_text().replace(', "bound": false', ""))
    assert results.read(path) == [Run(HEADER, [HOST])]
