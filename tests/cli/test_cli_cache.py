"""`cuconv cache`: what is counted, what is called damaged, and that only what is ours is removed."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cuconv.cli.console import CANNOT, OK, WRONG
from cuconv.jit import cache, contents, source
from tests.jit.test_jit_cache import IMAGE, KEY, SPAWN, emptied, files, found_image, grown, store, truncated
from tests.support.command_line import Capture, cuconv, text_of, value_of

OTHER_KERNEL = replace(KEY, expression="shift_kernel<3>")
OTHER_ARCH = replace(KEY, arch="compute_120")
KEYS = (KEY, OTHER_KERNEL, OTHER_ARCH)
AGO = 2 * contents.UNFINISHED


@pytest.fixture(autouse=True)
def quick_looks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "_BETWEEN_LOOKS", 0.001)


def own(expression: str) -> cache.Key:
    """A kernel of this version's device code."""
    return replace(KEY, expression=expression, source_digest=source.load().of("bench/copy.cu").digest)


def size_of(*paths: Path) -> int:
    return sum(file.stat().st_size for path in paths for file in (path, path.with_suffix(".json")))


def test_kernels_are_counted_by_arch_and_name(folder: Path, capsys: Capture) -> None:
    first, second = store(), store(replace(KEY, expression="scale_kernel<3>"), b"longer" * 1000)
    third, fourth = store(OTHER_KERNEL), store(OTHER_ARCH, b".version 8.8")
    code, value = value_of(capsys, "cache")
    assert code == OK
    assert (value["folder"], value["count"], value["damaged"], value["leftovers"]) == (str(folder), 4, [], [])
    assert value["bytes"] == sum(row["bytes"] for row in value["kernels"])
    assert {(row["arch"], row["kernel"]): (row["count"], row["bytes"]) for row in value["kernels"]} == {
        ("sm_90", "scale_kernel"): (2, size_of(first, second)),
        ("sm_90", "shift_kernel"): (1, size_of(third)),
        ("compute_120", "scale_kernel"): (1, size_of(fourth)),
    }
    code, text = text_of(capsys, "cache", "info")
    assert code == OK
    (row,) = [line for line in text.splitlines() if "shift_kernel" in line]
    assert row.split()[:3] == ["sm_90", "shift_kernel", "1"]
    assert f"{folder}\n" in text and "4 kernels" in text


def test_kernels_of_other_device_code_are_stale(capsys: Capture) -> None:
    store()
    kept = store(own("scale_kernel<5>"))
    _, value = value_of(capsys, "cache")
    assert (value["count"], value["stale"]["count"]) == (2, 1)
    assert value["stale"]["bytes"] == value["bytes"] - size_of(kept)


def test_a_folder_that_is_not_there_is_empty_and_stays_away(folder: Path, capsys: Capture) -> None:
    for action in ("info", "verify", "clear"):
        code, value = value_of(capsys, "cache", action)
        assert (code, value["count"]) == (OK, 0)
    assert not folder.exists()


@pytest.mark.parametrize("suffix", [".cubin", ".json"])
@pytest.mark.parametrize("damage", [truncated, emptied, grown])
def test_damage_is_found_and_repaired(suffix: str, damage: Callable[[Path], None], capsys: Capture) -> None:
    bad, good = store(), store(OTHER_KERNEL)
    damage(bad.with_suffix(suffix))
    code, value = value_of(capsys, "cache", "verify")
    assert (code, value["count"], list(value["damaged"]), value["removed"]) == (WRONG, 2, [str(bad)], [])
    assert bad.exists()
    code, text = text_of(capsys, "cache", "verify")
    assert code == WRONG and f"{bad}: " in text and "compiled again" in text
    code, value = value_of(capsys, "cache", "verify", "--repair")
    assert (code, value["removed"], value["failed"]) == (OK, [str(bad)], {})
    assert files(bad.parent) == {good.name, good.with_suffix(".json").name}
    assert (value_of(capsys, "cache", "verify")[0], found_image(OTHER_KERNEL)) == (OK, IMAGE)


def test_a_record_without_its_image_is_damaged(capsys: Capture) -> None:
    path = store()
    path.unlink()
    code, value = value_of(capsys, "cache", "verify", "--repair")
    assert (code, value["damaged"]) == (OK, {str(path): f"{path.name}: No such file or directory"})
    assert files(path.parent) == set()


def test_any_flipped_bit_is_damage() -> None:
    image = store()
    for path in (image, image.with_suffix(".json")):
        whole = path.read_bytes()
        for at in range(0, len(whole), 7):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            found = contents.inspect(image)
            assert found is not None and found.problem, f"byte {at} of {path.suffix}"
        path.write_bytes(whole)
    found = contents.inspect(image)
    assert found is not None and not found.problem


def test_what_cannot_be_removed_is_said(capsys: Capture) -> None:
    path = store()
    path.unlink()
    path.mkdir()
    code, value = value_of(capsys, "cache", "verify", "--repair")
    assert (code, list(value["failed"]), value["removed"]) == (WRONG, [str(path)], [])


def unfinished(folder: Path, age: float) -> list[Path]:
    """What a writer leaves that dies in the middle: a file that is being written; an image without its record."""
    image = store(replace(KEY, expression=f"lonely_kernel<{age:.0f}>"))
    image.with_suffix(".json").unlink()
    temporary = folder / "sm_90" / f".{image.name}.123.{'0f' * 8}.tmp"
    temporary.write_bytes(b"half")
    for path in (image, temporary):
        os.utime(path, (time.time() - age,) * 2)
    return [image, temporary]


@pytest.mark.parametrize("words", [["verify", "--repair"], ["clear"]], ids=str)
def test_what_dead_writers_left_goes_and_what_is_being_written_stays(
    words: list[str], folder: Path, capsys: Capture
) -> None:
    left, young = unfinished(folder, AGO), unfinished(folder, 5)
    _, value = value_of(capsys, "cache")
    assert (value["count"], sorted(value["leftovers"])) == (0, sorted(map(str, left)))
    code, value = value_of(capsys, "cache", *words)
    assert (code, sorted(value["removed"])) == (OK, sorted(map(str, left)))
    assert files(folder) == {path.name for path in young}


def test_a_temporary_file_is_named_as_the_cache_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that what a crash leaves is known for ours."""
    seen: list[str] = []
    move = os.replace
    monkeypatch.setattr(os, "replace", lambda old, new: (seen.append(Path(old).name), move(old, new)))
    for key in (KEY, OTHER_ARCH, replace(KEY, expression="ns::größe_kernel<float>")):
        path = store(key)
        assert cache.ARCH_FOLDER.fullmatch(path.parent.name)
        assert all(cache.ENTRY_FILE.fullmatch(name) for name in (path.name, path.with_suffix(".json").name))
    assert len(seen) == 6 and all(cache.TEMPORARY_FILE.fullmatch(name) for name in seen)


def lay_foreign(folder: Path) -> set[str]:
    """What is not ours, however near it comes, and old."""
    stem = f"scale_kernel-{KEY.digest}"
    places = ["", "sm_90/", "sm_90/deeper/", "sm_90.bak/", "results/", "SM_90/", f"sm_90/{stem}.cubin.d/"]
    names = ["notes.txt", f"{stem[:-1]}.cubin", f"{stem}0.cubin", f"{stem}.cubin.bak", f"{stem}.CUBIN", f"x{stem}.so"]
    names += [f".{stem}.cubin.1.tmp", f".{stem}.cubin.1.{'0' * 16}.tmp~", "scale_kernel.json", f"-{KEY.digest}.json"]
    paths = [folder / place / name for place in places for name in names]
    # Ours by name, but in no folder of ours.
    paths += [folder / place / f"{stem}.cubin" for place in places if place not in ("sm_90/",)]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"foreign")
        os.utime(path, (time.time() - AGO,) * 2)
    return {str(path) for path in paths}


def test_nothing_foreign_is_touched(folder: Path, capsys: Capture) -> None:
    foreign = lay_foreign(folder)
    for key in KEYS:
        store(key)
    assert value_of(capsys, "cache")[1]["count"] == 3
    for words in (["verify", "--repair"], ["clear"]):
        code, value = value_of(capsys, "cache", *words)
        assert code == OK and not foreign & set(value["removed"])
    assert {str(path) for path in folder.rglob("*") if path.is_file()} == foreign
    assert [found_image(key) for key in KEYS] == [None] * 3


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        ([], []),
        (["--stale"], ["scale_kernel<5>"]),
        (["--arch", "sm_90"], ["scale_kernel<2> compute_120"]),
        (["--arch", "90", "--arch", "compute_120"], []),
        (["--arch", "compute_120", "--stale"], ["scale_kernel<2>", "scale_kernel<5>", "shift_kernel<3>"]),
        (["--arch", "sm_80"], ["scale_kernel<2>", "scale_kernel<2> compute_120", "scale_kernel<5>", "shift_kernel<3>"]),
    ],
    ids=str,
)
def test_what_is_asked_for_is_cleared(words: list[str], kept: list[str], capsys: Capture) -> None:
    keys = {"scale_kernel<2>": KEY, "shift_kernel<3>": OTHER_KERNEL, "scale_kernel<2> compute_120": OTHER_ARCH}
    keys["scale_kernel<5>"] = own("scale_kernel<5>")
    paths = {name: store(key) for name, key in keys.items()}
    code, value = value_of(capsys, "cache", "clear", *words)
    assert code == OK
    assert sorted(name for name, key in keys.items() if found_image(key) is not None) == kept
    assert sorted(value["removed"]) == sorted(str(path) for name, path in paths.items() if name not in kept)
    assert value["count"] == sum(row["count"] for row in value["kernels"]) == len(keys) - len(kept)


def test_damaged_kernels_are_cleared_but_not_called_stale(capsys: Capture) -> None:
    truncated(store(own("scale_kernel<5>")))
    assert value_of(capsys, "cache", "clear", "--stale")[1]["count"] == 0
    assert value_of(capsys, "cache", "clear")[1]["count"] == 1


def put_again_and_again(seed: int, rounds: int) -> None:
    """A compiler's work: the same key, the same bytes. What cannot be written is warned of, and here an error."""
    import warnings

    warnings.simplefilter("error")
    for step in range(rounds):
        key = replace(KEY, expression=f"scale_kernel<{step % 7}>")
        cache.put(key, key.expression.encode() * 500, f"symbol {seed}", None)


@pytest.mark.parametrize("is_cleared", [False, True])
def test_other_processes_write_meanwhile(is_cleared: bool, folder: Path) -> None:
    writers = [SPAWN.Process(target=put_again_and_again, args=(1, 200)) for _ in range(2)]
    for writer in writers:
        writer.start()
    looks = 0
    while any(writer.is_alive() for writer in writers):
        found = contents.contents(folder)
        assert found.leftovers == ()
        if is_cleared:
            for entry in found.entries:
                contents.remove(entry.files)
        else:
            assert found.damaged == ()
        looks += bool(found.entries)
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert looks
    put_again_and_again(1, 7)
    assert len(contents.contents(folder).entries) == 7
    assert contents.contents(folder).damaged == ()


@pytest.mark.parametrize("ends", [store, lambda: KEY.path(cache.folder()).with_suffix(".json").unlink()])
def test_what_is_being_replaced_is_not_damaged(ends: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the writer's two moves the record is not the image's; a moment later it is, or has been removed."""
    path = store()
    path.write_bytes(b"the new image")
    monkeypatch.setattr(time, "sleep", lambda seconds: ends())
    assert contents.contents(cache.folder()).damaged == ()


@pytest.mark.parametrize("action", ["info", "verify", "clear"])
def test_a_file_in_the_folders_place_is_an_error_in_one_line(action: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    done = cuconv("cache", action, CUCONV_CACHE_DIR=str(tmp_path / "file"))
    assert (done.returncode, done.stdout) == (CANNOT, "")
    assert "Not a directory" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("action", ["info", "verify", "clear"])
def test_a_process_of_its_own_prints_one_json_value(action: str) -> None:
    store()
    done = cuconv("cache", action, "--json")
    assert (done.returncode, done.stderr) == (OK, "")
    assert json.loads(done.stdout)["count"] == 1
