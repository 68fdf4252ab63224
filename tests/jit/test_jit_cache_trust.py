"""The kernel cache does not load what another user could have written."""

import os
import stat
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from cuconv.cli.console import CANNOT, OK, WRONG
from cuconv.jit import cache, contents
from tests.jit.test_jit_cache import IMAGE, KEY, found_image, store
from tests.support.command_line import Capture, cuconv, value_of

pytestmark = [
    pytest.mark.skipif(os.name != "posix", reason="owners and permissions are those of POSIX"),
    pytest.mark.usefixtures("folder"),
]

OTHER_KEY = replace(KEY, expression="scale_kernel<3>")


@pytest.fixture
def umask() -> Iterator[Callable[[int], None]]:
    """Sets the process's umask, until the test ends."""
    before = os.umask(0o022)
    yield lambda mask: os.umask(mask) and None
    os.umask(before)


def write_by_others(path: Path) -> None:
    path.chmod(stat.S_IMODE(path.stat().st_mode) | 0o002)


def write_by_the_group(path: Path) -> None:
    path.chmod(stat.S_IMODE(path.stat().st_mode) | 0o020)


def give_away(path: Path) -> None:
    """Another user's file, which only root can make."""
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(path, 12345, -1)


@pytest.mark.parametrize("mask", [0, 0o002, 0o022, 0o077])
def test_folders_are_made_for_this_user_alone(
    mask: int, folder: Path, umask: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = folder / "not" / "there"
    monkeypatch.setenv("CUCONV_CACHE_DIR", str(root))
    umask(mask)
    image = store()
    for made in (folder, folder / "not", root, root / "sm_90"):
        assert stat.S_IMODE(made.stat().st_mode) == 0o700, made
    for made in (image, image.with_suffix(".json")):
        assert not stat.S_IMODE(made.stat().st_mode) & 0o022, made
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert found_image() == IMAGE


@pytest.mark.parametrize("open_up", [write_by_others, write_by_the_group, give_away])
@pytest.mark.parametrize("suffix", [".cubin", ".json"])
def test_a_file_that_others_can_write_is_a_miss_and_repaired(suffix: str, open_up: Callable[[Path], None]) -> None:
    path, other = store().with_suffix(suffix), store(OTHER_KEY).with_suffix(suffix)
    open_up(path)
    open_up(other)
    with pytest.warns(RuntimeWarning) as caught:
        assert cache.find(KEY) is None
        assert cache.find(OTHER_KEY) is None
    assert [str(path) in str(warning.message) for warning in caught] == [True]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert store() == path.with_suffix(".cubin")
        assert found_image() == IMAGE


@pytest.mark.parametrize("open_up", [write_by_others, write_by_the_group, give_away])
@pytest.mark.parametrize("name", [".", "sm_90"])
def test_a_folder_that_others_can_write_is_passed_over(
    name: str, open_up: Callable[[Path], None], folder: Path
) -> None:
    store(image=b"before")
    open_up(folder / name)
    with pytest.warns(RuntimeWarning) as caught:
        assert cache.find(KEY) is None
        outside = store()
        assert folder not in outside.parents
        assert found_image() == IMAGE
        assert found_image(OTHER_KEY) is None
    (warning,) = caught
    assert str(folder / name) in str(warning.message) and "CUCONV_CACHE_DIR" in str(warning.message)


def test_storing_alone_warns_as_well(folder: Path) -> None:
    folder.mkdir()
    write_by_others(folder)
    with pytest.warns(RuntimeWarning, match="other users could change it") as caught:
        assert folder not in store().parents
    assert len(caught) == 1


@pytest.mark.parametrize(
    ("owner", "mode", "is_trusted"),
    [
        *((1000, mode, True) for mode in (0o700, 0o755)),
        *((0, mode, True) for mode in (0o700, 0o755)),
        *((1001, mode, False) for mode in (0o700, 0o755)),
        *((1000, mode, False) for mode in (0o720, 0o702, 0o775, 0o777)),
        *((0, mode, False) for mode in (0o775, 0o1777)),
    ],
)
def test_this_user_and_root_are_trusted(
    owner: int, mode: int, is_trusted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    found: Any = SimpleNamespace(st_uid=owner, st_mode=stat.S_IFDIR | mode)
    if is_trusted:
        cache.check_trusted(Path("/cache"), found)
    else:
        with pytest.raises(cache.Untrusted) as caught:
            cache.check_trusted(Path("/cache"), found)
        assert caught.value.filename == "/cache"


@pytest.mark.parametrize("home", ["", "relative", "./here", "~"])
@pytest.mark.parametrize("configured", ["", "~/kernels"])
def test_a_home_that_is_no_absolute_path_is_the_user_databases(
    home: str, configured: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pwd

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("CUCONV_CACHE_DIR", configured)
    monkeypatch.setenv("HOME", home)
    expected = Path(pwd.getpwuid(os.getuid()).pw_dir, *(["kernels"] if configured else [".cache", "cuconv"]))
    assert cache.folder() == expected


@pytest.mark.parametrize("entry", [KeyError("no such user"), SimpleNamespace(pw_dir="")], ids=["absent", "empty"])
def test_without_any_home_the_folder_is_private(entry: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import pwd

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("CUCONV_CACHE_DIR")
    monkeypatch.setenv("HOME", "")
    monkeypatch.setattr(pwd, "getpwuid", mock.Mock(side_effect=[entry] * 9))
    with pytest.warns(RuntimeWarning, match="HOME is no absolute path") as caught:
        path = store()
        assert found_image() == IMAGE
    assert len(caught) == 1
    assert stat.S_IMODE(path.parent.parent.stat().st_mode) == 0o700


def test_verify_names_what_is_not_trusted(folder: Path, capsys: Capture) -> None:
    path = store()
    write_by_others(path)
    code, value = value_of(capsys, "cache", "verify")
    assert code == WRONG and "other users can write it" in value["damaged"][str(path)]
    code, value = value_of(capsys, "cache", "verify", "--repair")
    assert (code, value["removed"]) == (OK, [str(path)])


def test_reading_contents_of_an_open_folder_warns_of_nothing(folder: Path) -> None:
    store()
    write_by_others(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (entry,) = contents.contents(folder).damaged
    assert "other users can write it" in entry.problem


def test_the_doctor_says_how_to_close_a_folder(folder: Path, capsys: Capture) -> None:
    store()
    write_by_others(folder / "sm_90")
    _, value = value_of(capsys, "doctor")
    (finding,) = [each for each in value["findings"] if each["subject"] == "cache"]
    assert finding["status"] == "wrong" and str(folder / "sm_90") in finding["text"]
    assert finding["fix"] == f"chmod -R go-w {folder / 'sm_90'}"


def test_warmup_does_not_compile_for_a_folder_that_others_can_write(folder: Path) -> None:
    folder.mkdir()
    write_by_others(folder)
    words = ("warmup", "--op", "causal_conv1d_fn", "--shape", "batch=1", "--arch", "90")
    done = cuconv(*words, CUCONV_CACHE_DIR=str(folder))
    assert done.returncode == CANNOT and "other users can write it" in done.stderr and "chmod" in done.stderr
