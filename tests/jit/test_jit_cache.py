"""The kernel cache: keys, round trips, damage, crashes, races."""

import json
import multiprocessing
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from cuconv.jit import cache
from cuconv.jit.cache import Key, Resources

KEY = Key("ab" * 32, "scale.cu", "scale_kernel<2>", "sm_90", ("-std=c++17",), (12, 9))
IMAGE = bytes(range(256)) * 4
RESOURCES = Resources(10, 0, 0, 0, 512)
SPAWN = multiprocessing.get_context("spawn")


pytestmark = pytest.mark.usefixtures("folder")


def store(key: Key = KEY, image: bytes = IMAGE) -> Path:
    return cache.put(key, image, "_Z12scale_kernelILi2EEvPf", RESOURCES).path


def found_image(key: Key = KEY) -> bytes | None:
    artifact = cache.find(key)
    return None if artifact is None else artifact.path.read_bytes()


def files(root: Path) -> set[str]:
    return {path.name for path in root.rglob("*") if path.is_file()}


def test_what_is_put_is_found() -> None:
    assert cache.find(KEY) is None
    put = cache.put(KEY, IMAGE, "_Zsymbol", RESOURCES)
    assert put.path.read_bytes() == IMAGE
    assert not put.from_cache
    assert cache.find(KEY) == replace(put, from_cache=True)


def test_ptx_has_no_resources() -> None:
    key = replace(KEY, arch="compute_120")
    put = cache.put(key, b".version 8.8", "_Zsymbol", None)
    assert (put.kind, put.path.suffix, put.resources) == ("ptx", ".ptx", None)
    assert cache.find(key) == replace(put, from_cache=True)


def test_an_entry_is_two_files_named_by_arch_and_kernel(folder: Path) -> None:
    path = store()
    assert path == folder / "sm_90" / f"scale_kernel-{KEY.digest}.cubin"
    assert files(folder) == {path.name, path.with_suffix(".json").name}
    record = json.loads(path.with_suffix(".json").read_text())
    assert (record["expression"], record["options"]) == ("scale_kernel<2>", ["-std=c++17"])


@pytest.mark.parametrize(
    "change",
    [
        {"source_digest": "cd" * 32},
        {"unit": "other.cu"},
        {"expression": "scale_kernel<3>"},
        {"arch": "sm_80"},
        {"options": ("-std=c++17", "-lineinfo")},
        {"nvrtc_version": (13, 0)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_part_of_a_key_separates_entries(change: dict[str, object]) -> None:
    store()
    other = replace(KEY, **change)  # type: ignore[arg-type]
    assert cache.find(other) is None
    store(other, b"other")
    assert (found_image(), found_image(other)) == (IMAGE, b"other")


def test_a_new_schema_separates_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    store()
    monkeypatch.setattr(cache, "SCHEMA", cache.SCHEMA + 1)
    assert cache.find(replace(KEY)) is None


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def grown(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b" x")


@pytest.mark.parametrize("suffix", [".cubin", ".json"])
@pytest.mark.parametrize("damage", [truncated, emptied, grown, Path.unlink])
def test_a_damaged_file_is_a_miss_and_repaired(suffix: str, damage: Callable[[Path], None]) -> None:
    path = store().with_suffix(suffix)
    damage(path)
    assert cache.find(KEY) is None
    store()
    assert found_image() == IMAGE


@pytest.mark.parametrize(
    "content",
    [b"[]", b"null", b"7", b'"text"', b"{}", b"\xff\xfe", b"[" * 100_000, b'{"record_sha256": 1, "key": []}'],
    ids=lambda content: repr(content[:12]),
)
def test_a_foreign_record_is_a_miss_and_repaired(content: bytes) -> None:
    path = store().with_suffix(".json")
    path.write_bytes(content)
    assert cache.find(KEY) is None
    store()
    assert found_image() == IMAGE


def test_any_flipped_bit_is_a_miss() -> None:
    image = store()
    for path in (image, image.with_suffix(".json")):
        good = path.read_bytes()
        for at in range(len(good)):
            path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
            assert cache.find(KEY) is None, f"byte {at} of {path.suffix}"
        path.write_bytes(good)
    assert found_image() == IMAGE


def test_another_entry_under_this_name_is_a_miss() -> None:
    path, other = store(), store(replace(KEY, expression="scale_kernel<3>"), b"other")
    for suffix in (".cubin", ".json"):
        path.with_suffix(suffix).write_bytes(other.with_suffix(suffix).read_bytes())
    assert cache.find(KEY) is None


def put_and_die(replacements: int, image: bytes) -> None:
    """Put, killed by the system right before the move that follows that many completed ones."""
    done = 0
    move = os.replace

    def move_or_die(old: str, new: str) -> None:
        nonlocal done
        if done == replacements:
            os.kill(os.getpid(), signal.SIGKILL)
        move(old, new)
        done += 1

    os.replace = move_or_die  # type: ignore[assignment]
    store(image=image)
    os.kill(os.getpid(), signal.SIGKILL)


def run_to_its_death(*arguments: object) -> None:
    process = SPAWN.Process(target=put_and_die, args=arguments)
    process.start()
    process.join(30)
    assert process.exitcode == -signal.SIGKILL


@pytest.mark.parametrize(("replacements", "survives"), [(0, False), (1, False), (2, True)])
def test_a_writer_killed_at_any_point_leaves_a_whole_entry_or_none(replacements: int, survives: bool) -> None:
    run_to_its_death(replacements, IMAGE)
    assert found_image() == (IMAGE if survives else None)
    store()
    assert found_image() == IMAGE


def test_a_writer_killed_while_replacing_leaves_no_mixture() -> None:
    store(image=b"old")
    run_to_its_death(1, IMAGE)
    assert cache.find(KEY) is None
    store()
    assert found_image() == IMAGE


def test_a_failed_write_leaves_no_temporary_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "replace", mock.Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        store()
    assert files(folder) == set()


def put_and_find(seed: int, rounds: int) -> None:
    """Writers whose images differ under a shared key, as if the compiler were not deterministic."""
    shared = [replace(KEY, expression=f"scale_kernel<{by}>") for by in range(3)]
    own = replace(KEY, expression=f"own_kernel<{seed}>")
    for step in range(rounds):
        for key in (*shared, own):
            image = f"{key.expression} {seed if key is own else step % 2} ".encode() * 500
            cache.put(key, image, f"symbol of {key.expression}", RESOURCES)
            artifact = cache.find(key)
            assert artifact is None or artifact.symbol == f"symbol of {key.expression}"
            assert key is not own or artifact is not None


def race(work: Callable[..., None], *arguments: object) -> None:
    processes = [SPAWN.Process(target=work, args=(seed, *arguments)) for seed in range(8)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 8


def test_many_writers_of_the_same_and_different_keys(folder: Path) -> None:
    race(put_and_find, 25)
    assert not [name for name in files(folder) if name.endswith(".tmp")]
    for seed in range(8):
        own = replace(KEY, expression=f"own_kernel<{seed}>")
        assert found_image(own) == f"{own.expression} {seed} ".encode() * 500
