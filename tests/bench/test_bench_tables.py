"""Tables of results: what they show of which row, and what becomes of a text with markers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cuconv.bench.makers import MAKERS
from cuconv.bench.measure import TooLarge, too_large
from cuconv.bench.results import Host, Kernel, Step
from cuconv.bench.workloads import REPORT
from cuconv.cli.report import tables
from cuconv.cli.report.measured import Measured
from tests.support.bench_machine import HEADER
from tests.support.measurements import REPORTED, hosts, kernel, kernels, measured, wrong

FIRST, LAST = ({"batch": 1, "dim": 2048, "seqlen": 2048, "contiguous": axis} for axis in ("tokens", "channels"))
"""The two layouts of one shape."""


STEP = Step("Mamba", {"batch": 4, "layers": 8}, "training", "cuconv", 4.0)


def rendered(found: Measured) -> dict[str, str]:
    return {name: make(found) for name, make in tables.TABLES.items()}


@pytest.fixture(scope="module")
def whole() -> dict[str, str]:
    """Tables of everything."""
    return rendered(measured([*kernels(), *hosts()]))


def line(table: str, begin: str) -> str:
    """The one row that begins so."""
    (found,) = [each for each in table.splitlines() if each.startswith(f"| {begin} |")]
    return found


@pytest.mark.parametrize("number", range(len(REPORTED)), ids=lambda n: f"{REPORTED[n][0]} {REPORTED[n][1]}")
def test_every_row_of_the_report_is_in_one_table(number: int, whole: dict[str, str]) -> None:
    rows = kernels()
    for row, text in (
        (replace(rows[number], kernel_us=replace(rows[number].kernel_us, p50=1234.0)), "1234"),
        (wrong(rows[number]), "WRONG"),
        (None, "not measured"),
    ):
        others = [*rows[:number], *rows[number + 1 :], *hosts()]
        changed = rendered(measured([row, *others] if row else others))
        # The README's first table repeats some.
        differing = [name for name in whole if name != "headline" and whole[name] != changed[name]]
        assert len(differing) == 1
        assert changed[differing[0]].count(text) == whole[differing[0]].count(text) + 1
        # No row has gone.
        assert changed[differing[0]].count("\n") == whole[differing[0]].count("\n")


@pytest.mark.parametrize("number", range(len(hosts())))
def test_every_host_time_is_in_the_table(number: int, whole: dict[str, str]) -> None:
    rows = hosts()
    changed = rendered(measured([*kernels(), *rows[:number], *rows[number + 1 :]]))
    assert {name for name in whole if whole[name] != changed[name]} == {"host"}
    assert changed["host"].count("not measured") == 1 + whole["host"].count("not measured")


def test_the_first_table_repeats_rows_of_the_others(whole: dict[str, str]) -> None:
    times = {figure for name, text in whole.items() if name != "headline" for figure in text.replace("|", " ").split()}
    rows = [[cell.strip() for cell in row.split("|")] for row in whole["headline"].splitlines()[2:]]
    assert len(rows) == len(tables.HEADLINE)
    assert all(row[2] in times for row in rows)
    # Of a scan there is no fraction of a copy.
    assert ["selective_scan" in row[1] for row in rows] == [not row[3] for row in rows]
    assert rendered(measured([]))["headline"].count("not measured") == len(rows)


def test_a_function_that_was_never_measured_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its maker may have sizes of any names."""
    found = measured([*kernels(), *hosts()])
    monkeypatch.setitem(REPORT, "silu_mul", ())
    assert "| `silu_mul` | | | | not measured | |" in tables.others(found).splitlines()
    assert f"| `silu_mul` |{' not measured |' * 6}" in tables.host(found).splitlines()
    monkeypatch.setitem(REPORT, "silu_mul", ({"rows": 64, "columns": 4096, "dtype": "float16"},))
    line = "| `silu_mul` | | rows 64, columns 4096 | float16 | not measured | |"
    assert line in tables.others(found).splitlines()


def test_host_times_are_of_the_first_sizes_of_the_report() -> None:
    def host(sizes: dict[str, Any], time: float) -> Host:
        return Host("causal_conv1d_fn", dict(MAKERS["causal_conv1d_fn"](**sizes).sizes), "torch", True, time)

    last, first, other = host(REPORT["causal_conv1d_fn"][-1], 3.0), host(REPORT["causal_conv1d_fn"][0], 2.0), {"dim": 7}
    assert "| not measured | 2.00 |" in line(tables.host(measured([first, last])), "`causal_conv1d_fn`")
    assert "| not measured | 3.00 |" in line(tables.host(measured([last])), "`causal_conv1d_fn`")
    assert "| not measured | not measured |" in line(tables.host(measured([host(other, 9.0)])), "`causal_conv1d_fn`")


def test_layouts_stand_side_by_side() -> None:
    rows = [kernel("causal_conv1d_fn", FIRST, 6.254, share=0.951), kernel("causal_conv1d_fn", LAST, 66.25, share=1.004)]
    lines = tables.forward(measured(rows)).splitlines()
    assert lines[:3] == [
        "| batch × dim × seqlen | dtype | channel-first µs | of copy | channel-last µs | of copy |",
        "|---|---|--:|--:|--:|--:|",
        "| 1 × 2048 × 2048 | bfloat16 | 6.25 | 0.95 | 66.2 | 1.00 |",
    ]
    assert lines[3] == "| 8 × 4096 × 2048 | bfloat16 | not measured | | not measured | |"


@pytest.mark.parametrize(
    ("table", "wanted"),
    [
        ("varlen", "| 1 of 7800, 392 of 1 | bfloat16 | 8192 |"),
        ("varlen", "| 512 of random lengths, tokens contiguous | bfloat16 | 8192 |"),
        ("qkv", "| tokens | 512 | 2048 | 4096 | 8192 | 16384 | 8192, q and k normalised |"),
        ("update", "| 256 × 10240 | float32 |"),
        ("update", "| 64 × 8192, 4 tokens | bfloat16 | | |"),
        ("states", "| Mamba-2, 128 × 24 heads of 64 × 128 | float32 | float32 |"),
        ("states", "| Mamba-2, 256 × 128 heads of 64 × 128, with `state_batch_indices` | float32 | bfloat16 |"),
        ("states", "| Mamba, 64 × 8192 × 16 | bfloat16 | bfloat16 |"),
        ("scan", "| 1 × 5120 × 4096, channels contiguous | bfloat16 |"),
        ("scan", "| 8192 × (16 of 512), packed | bfloat16 |"),
        ("others", "| `causal_conv1d_split` | 16 of 512 | 4096, 1024, 1024 | bfloat16 |"),
        ("others", "| `causal_conv1d_update_qkv_split` | 256 | 16 × 128, 16 × 128, 16 × 128 | bfloat16 |"),
    ],
)
def test_rows_are_named(table: str, wanted: str) -> None:
    text = rendered(measured(kernels()))[table]
    assert [each for each in text.splitlines() if each.startswith(wanted)]


def test_scans_are_beside_their_own_bound() -> None:
    row = kernel("selective_scan_fn", {"dim": 5120, "seqlen": 4096}, 463.4, share=0.4)
    assert line(tables.scan(measured([row])), "1 × 5120 × 4096 | bfloat16") == (
        "| 1 × 5120 × 4096 | bfloat16 | 463 | 0.20 |"
    )
    unbounded = replace(row, fraction_of_exponentials=None)
    assert line(tables.scan(measured([unbounded])), "1 × 5120 × 4096 | bfloat16").endswith("| 463 | |")


@pytest.mark.parametrize("peers", [[], ["a", "b"]], ids=str)
def test_tables_are_regular(peers: list[str]) -> None:
    rows = [row for number, name in enumerate(["cuconv", *peers]) for row in kernels(name, 10.1 + number)]
    for name, text in rendered(measured([*rows, *hosts(), STEP])).items():
        if name != "run":
            head, aligned, *body = [each.count("|") for each in text.splitlines()]
            assert {head, aligned, *body} == {head}
            # Times are aligned right, and so is what follows them.
            columns = text.splitlines()[0].split("|"), text.splitlines()[1].split("|")
            assert all(
                align == "--:" for column, align in zip(*columns, strict=True) if "µs" in column or "ms" in column
            )
            assert ("best peer" in text) == (bool(peers) and name not in ("host", "steps", "drifts"))


def peer(time: float, library: str) -> Kernel:
    return kernel("causal_conv1d_fn", FIRST, time, library)


def test_steps_are_beside_other_libraries() -> None:
    others = [replace(STEP, library="torch", step_ms=30.0), replace(STEP, library="mamba_ssm", step_ms=6.0)]
    decode = [replace(row, step="decode", step_ms=row.step_ms / 10) for row in (STEP, others[0])]
    text = tables.steps(measured([*others, STEP, *decode, replace(STEP, model="Lfm2")]))
    assert text.splitlines() == [
        "| | sizes | beside | prefill ms | decode ms | training ms |",
        "|---|---|---|--:|--:|--:|",
        "| Mamba | batch 4, layers 8 | torch | | 3.00 → 0.40, 7.50× | 30.0 → 4.00, 7.50× |",
        "| Mamba | batch 4, layers 8 | mamba_ssm | | | 6.00 → 4.00, 1.50× |",
    ]


def test_the_best_peer_of_the_run_is_shown() -> None:
    ours = kernel("causal_conv1d_fn", FIRST, 6.0)
    found = measured([peer(9.0, "slow"), ours, peer(7.0, "fast"), wrong(peer(1.0, "wrong"))])
    text = tables.forward(found)
    assert "| 1 × 2048 × 2048 | bfloat16 | 6.00 | 0.80 | 7.00 fast | not measured | |" in text
    assert "| best peer µs | channel-last µs | of copy |\n" in text and text.count("fast") == 1


def test_peers_of_other_runs_are_not() -> None:
    ours = kernel("causal_conv1d_fn", FIRST, 6.0)
    later = replace(HEADER, time="2026-01-03T00:00:00+00:00")
    found = Measured([(HEADER, peer(5.0, "old")), (later, ours), (later, peer(7.0, "new"))])
    assert "7.00 new" in tables.forward(found) and "old" not in tables.forward(found)
    assert "best peer" not in tables.forward(Measured([(HEADER, peer(5.0, "old")), (later, ours)]))
    # Nothing to stand beside.
    assert "best peer" not in tables.forward(measured([peer(5.0, "alone")]))


def test_the_newest_row_counts_whatever_it_says_of_defaults() -> None:
    later = replace(HEADER, time="2026-01-03T00:00:00+00:00")
    old, new = kernel("causal_conv1d_fn", FIRST, 6.0), kernel("causal_conv1d_fn", FIRST, 5.0)
    new.sizes.pop("width")
    for rows in ([(HEADER, old), (later, new)], [(later, new), (HEADER, old)]):
        assert "| 1 × 2048 × 2048 | bfloat16 | 5.00 |" in tables.forward(Measured(rows))


def test_what_does_not_fit_is_not_wrong() -> None:
    row = too_large(MAKERS["causal_conv1d_fn"](**FIRST), TooLarge("needs much"))
    assert "| 1 × 2048 × 2048 | bfloat16 | not measured | |" in tables.forward(measured([row]))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5, "0.50"),
        (6.314, "6.31"),
        (9.994, "9.99"),
        (9.996, "10.0"),
        (66.26, "66.3"),
        (99.94, "99.9"),
        (99.96, "100"),
        (2455.4, "2455"),
    ],
)
def test_figures_have_three_digits(value: float, text: str) -> None:
    assert tables.figure(value) == text


def test_the_run_is_named() -> None:
    row = hosts()[0]
    assert tables.run(measured([row])) == "One A GPU (driver 580.1, CuPy 14.2 for CUDA 12.9), 2026-01-02."
    later = replace(HEADER, time="2026-01-05T00:00:00+00:00")
    other = replace(later, gpu="B", torch="2.11")
    (another, third) = hosts()[1:3]
    assert tables.run(Measured([(later, row), (HEADER, another)])).endswith("CUDA 12.9), 2026-01-02 to 2026-01-05.")
    # Rows of two machines in one table: seen at once.
    assert tables.run(Measured([(HEADER, row), (other, third)])).endswith(
        "2026-01-02; One B (driver 580.1, CuPy 14.2 for CUDA 12.9, torch 2.11), 2026-01-05."
    )
    # Other libraries on the same machine: no further machine.
    beside = replace(HEADER, torch="2.11", peers={"fla": "0.6"}), replace(later, torch="2.12")
    assert tables.run(Measured(zip(beside, (row, another), strict=True))) == (
        "One A GPU (driver 580.1, CuPy 14.2 for CUDA 12.9, torch 2.11 and 2.12, fla 0.6), 2026-01-02 to 2026-01-05."
    )
    assert tables.run(Measured([])) == "Not measured yet."


TEXT = """# Title

<!-- measured: run -->
old
<!-- end -->
Between.
<!-- measured: host -->
<!-- end -->

After.
"""


def test_only_what_is_between_markers_is_replaced() -> None:
    found = measured([*kernels(), *hosts()])
    text = tables.render(TEXT, found)
    parts = text.split(tables.run(found))
    assert parts[0] == "# Title\n\n<!-- measured: run -->\n"
    before, after = parts[1].split(tables.host(found))
    assert before == "\n<!-- end -->\nBetween.\n<!-- measured: host -->\n"
    assert after == "\n<!-- end -->\n\nAfter.\n"
    assert tables.render(text, found) == text
    assert tables.render("no markers", found) == "no markers"


def test_missing_markers_are_known() -> None:
    assert tables.missing("") == list(tables.TABLES)
    assert set(tables.TABLES) - set(tables.missing(TEXT)) == {"run", "host"}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("<!-- measured: nothing -->\n<!-- end -->", "line 1: got <!-- measured: nothing -->; wanted measured: one of"),
        ("\n<!-- measured: run -->\nold", "marker run: got the end of the text; wanted <!-- end -->"),
        ("a\nb\n<!-- end -->\n", "line 3: got <!-- end -->; wanted every marker"),
        ("<!-- measured: run -->\n<!-- measured: host -->\n<!-- end -->", "line 2: got <!-- measured: host -->;"),
        ("<!-- measured: run -->\n<!-- end -->\n<!-- end -->", "line 3: got <!-- end -->"),
    ],
)
def test_markers_without_sense_are_refused(text: str, wanted: str) -> None:
    with pytest.raises(ValueError) as caught:
        tables.render(text, measured([]))
    assert str(caught.value).startswith(wanted)
