"""The command `report`, and that the README says what was measured."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from cuconv.bench import results
from cuconv.cli import report
from cuconv.cli.console import CANNOT, OK, USAGE, WRONG
from cuconv.cli.report import pictures, tables
from cuconv.cli.report.measured import Measured
from tests.support.bench_machine import HEADER
from tests.support.command_line import Capture, error_of, text_of, value_of
from tests.support.discovery import ROOT
from tests.support.measurements import hosts, kernels, measured

ROWS = [*kernels(), *hosts()]
README = "\n".join(
    ["# Name", *(f"\n<!-- measured: {name} -->\nold\n<!-- end -->" for name in tables.TABLES), "\nEnd.\n"]
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One of results."""
    made = tmp_path / "results"
    made.mkdir()
    results.append(made / "a.jsonl", HEADER, *ROWS)
    return made


@pytest.fixture
def readme(tmp_path: Path) -> Path:
    path = tmp_path / "README.md"
    path.write_text(README, encoding="utf-8")
    return path


def disagreements(text: str, files: Sequence[Path]) -> list[str]:
    """What is wrong in a text with tables; once there are results it must have every table."""
    found = Measured(results.latest(files))
    wrong = [] if tables.render(text, found) == text else ["the tables are not those of the results"]
    return wrong + [f"no {name}" for name in tables.missing(text) if files]


TEXTS = [ROOT / "README.md", ROOT / "tests" / "benchmarks" / "README.md"]
FILES = sorted((ROOT / "tests" / "benchmarks" / "results").glob("*.jsonl"))


NEVER_MEASURED = re.compile(r"\| `\w+` \|[ |]*(not measured[ |]*)+")
"""The row of a function without any figure: a new one may be missing until tables are made the next time."""


def rows_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if not NEVER_MEASURED.fullmatch(line)]


@pytest.mark.parametrize("path", TEXTS, ids=["README", "benchmarks"])
def test_the_readmes_say_what_was_measured(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tables.REPORT, "not_yet_measured", ())
    text, name = path.read_text(encoding="utf-8"), path.relative_to(ROOT)
    rendered = tables.render(text, Measured(results.latest(FILES)))
    assert rows_of(rendered) == rows_of(text), f"run `cuconv report --readme {name}`"


def test_every_table_is_in_a_readme() -> None:
    """The first one and that of whole steps in the project's own, all others beside the results."""
    first, rest = (set(tables.TABLES) - set(tables.missing(path.read_text(encoding="utf-8"))) for path in TEXTS)
    assert first == {"headline", "steps"} and rest == set(tables.TABLES) - first


def test_the_pictures_of_the_readme_are_there() -> None:
    """What it shows are files; once there are results, it shows every picture of them."""
    shown = re.findall(r"!\[[^]]+\]\((.+?)\)", TEXTS[1].read_text(encoding="utf-8"))
    assert not [path for path in shown if not (TEXTS[1].parent / path).is_file()]
    if FILES:
        assert sorted(shown) == sorted(f"results/{name}.png" for name in pictures.PICTURES)


def test_a_readme_that_says_something_else_is_found(folder: Path) -> None:
    files = list(folder.iterdir())
    text = tables.render(README, measured(ROWS))
    assert not disagreements(text, files)
    digits = [place for place, letter in enumerate(text) if letter.isdigit()]
    for place in (digits[0], digits[len(digits) // 2], digits[-1]):
        digit = "1" if text[place] != "1" else "2"
        assert disagreements(text[:place] + digit + text[place + 1 :], files)
    without = text.replace(f"<!-- measured: host -->\n{tables.host(measured(ROWS))}\n<!-- end -->\n", "")
    assert disagreements(without, files) == ["no host"]
    # Tables of nothing, and results that are shown nowhere.
    assert disagreements(text, [])
    assert disagreements("# Name\n", files) == [f"no {name}" for name in tables.TABLES]
    assert not disagreements("# Name\n", [])


def test_tables_are_printed(folder: Path, capsys: Capture) -> None:
    wanted = {name: make(measured(ROWS)) for name, make in tables.TABLES.items()}
    code, text = text_of(capsys, "report", "--results", str(folder))
    assert (code, text) == (OK, "\n\n".join(wanted.values()) + "\n")
    assert value_of(capsys, "report", "--results", str(folder)) == (OK, {"tables": wanted})


def test_a_readme_is_written_and_then_agrees(folder: Path, readme: Path, capsys: Capture) -> None:
    words = ("report", "--results", str(folder), "--readme", str(readme))
    assert text_of(capsys, *words) == (OK, f"{readme}: written\n")
    written = readme.read_text(encoding="utf-8")
    assert written == tables.render(README, measured(ROWS)) != README
    for more in ((), ("--check",)):
        assert text_of(capsys, *words, *more) == (OK, f"{readme}: agrees with the results\n")
        assert value_of(capsys, *words, *more) == (OK, {"readme": {"path": str(readme), "diff": []}})


def test_newer_results_change_the_readme(folder: Path, readme: Path, capsys: Capture) -> None:
    words = ("report", "--results", str(folder), "--readme", str(readme))
    text_of(capsys, *words)
    newer = kernels(first=30.1)[0]
    header = results.Header(**{**vars(HEADER), "time": "2026-02-01T00:00:00+00:00"})
    results.append(folder / "b.jsonl", header, newer)
    code, text = text_of(capsys, *words, "--check")
    assert code == WRONG
    shape = "| 1 × 2048 × 2048 | bfloat16 | 10.2 | 0.80"
    assert f"-{shape} | 10.1 |" in text and f"+{shape} | 30.1 |" in text


def test_check_shows_the_difference_and_writes_nothing(folder: Path, readme: Path, capsys: Capture) -> None:
    words = ("report", "--results", str(folder), "--readme", str(readme))
    text_of(capsys, *words)
    right = readme.read_text(encoding="utf-8")
    assert right.count("| 10.1 |") == 1
    readme.write_text(right.replace("| 10.1 |", "| 10.9 |"), encoding="utf-8")
    changed = readme.read_bytes()
    code, text = text_of(capsys, *words, "--check")
    assert code == WRONG and readme.read_bytes() == changed
    lines = [line for line in text.splitlines() if line[0] in "+-" and not line.startswith(("+++", "---"))]
    assert len(lines) == 2 and "| 10.9 |" in lines[0]
    assert lines[0].replace("10.9", "10.1")[1:] == lines[1][1:]
    code, value = value_of(capsys, *words, "--check")
    assert code == WRONG and set(lines) < set(value["readme"]["diff"])


def test_the_results_of_the_source_tree_are_taken(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    assert report.RESULTS == ROOT / "tests" / "benchmarks" / "results"
    monkeypatch.setattr(report, "RESULTS", folder)
    assert value_of(capsys, "report")[1]["tables"]["run"] == tables.run(measured(ROWS))
    # As where the package is installed.
    monkeypatch.setattr(report, "RESULTS", folder / "none")
    assert error_of(capsys, "report") == (
        CANNOT,
        "cuconv: no results are here: name a folder of .jsonl files with --results\n",
    )


def test_pictures_are_drawn(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    pytest.importorskip("matplotlib", reason="drawing needs matplotlib")
    new = tmp_path / "a" / "b"
    code, value = value_of(capsys, "report", "--results", str(folder), "--pictures", str(new))
    assert code == OK
    assert sorted(value["pictures"]) == sorted(str(path) for path in new.iterdir())
    assert len(value["pictures"]) == len(pictures.PICTURES)


def test_without_matplotlib_pictures_name_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, text = error_of(capsys, "report", "--results", str(folder), "--pictures", str(tmp_path / "p"))
    assert (code, text) == (CANNOT, "cuconv: pictures need matplotlib: pip install matplotlib\n")


@pytest.mark.parametrize(
    ("words", "code", "wanted"),
    [
        (["--check"], USAGE, "--readme: got nothing; wanted the text to check"),
        (["--results", "{}/empty"], CANNOT, "empty holds no .jsonl files: `cuconv bench --output FILE` writes them"),
        (["--results", "{}/nowhere"], CANNOT, "nowhere holds no .jsonl files"),
        (["--readme", "{}/none.md"], CANNOT, "No such file or directory"),
        (
            ["--readme", "{}/wrong.md"],
            USAGE,
            "line 3: got <!-- measured: nonsense -->; wanted measured: one of headline,",
        ),
        (["--readme", "{}/wrong.md", "--check"], USAGE, "line 3: got <!-- measured: nonsense -->"),
        (["--results", "{}/broken"], USAGE, "a.jsonl:1: "),
    ],
)
def test_what_cannot_be_is_one_line(
    words: list[str], code: int, wanted: str, folder: Path, tmp_path: Path, capsys: Capture
) -> None:
    for name in ("empty", "broken"):
        (tmp_path / name).mkdir()
    (tmp_path / "broken" / "a.jsonl").write_text("{}\n{}\n", encoding="utf-8")
    wrong = tmp_path / "wrong.md"
    wrong.write_text("\n\n<!-- measured: nonsense -->\n<!-- end -->\n", encoding="utf-8")
    before = wrong.read_bytes()
    given = [] if "--results" in words else ["--results", str(folder)]
    found = error_of(capsys, "report", *given, *(word.format(tmp_path) for word in words))
    assert found[0] == code
    assert wanted in found[1] and found[1].startswith("cuconv: ") and found[1].count("\n") == 1
    assert wrong.read_bytes() == before
