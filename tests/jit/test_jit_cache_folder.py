"""Where the cache is, and what happens when it cannot be written."""

import os
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from cuconv.jit import cache
from tests.jit.test_jit_cache import IMAGE, KEY, files, found_image, store

pytestmark = pytest.mark.usefixtures("folder")


def refuse_writes_under(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read-only folder, also for root, who is above permissions."""
    move = os.replace

    def guarded(old: Path, new: Path) -> None:
        if root in Path(new).parents:
            raise PermissionError(13, "Permission denied", str(new))
        move(old, new)

    monkeypatch.setattr(os, "replace", guarded)


def test_a_read_only_folder_still_gives_hits(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = store()
    refuse_writes_under(folder, monkeypatch)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        artifact = cache.find(KEY)
    assert artifact is not None
    assert artifact.path == inside


def test_a_read_only_folder_means_a_private_one_and_one_warning(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store()
    refuse_writes_under(folder, monkeypatch)
    others = [replace(KEY, expression=f"scale_kernel<{by}>") for by in (3, 4)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        outside = [store(key, key.expression.encode()) for key in others]
    assert [str(folder) in str(warning.message) for warning in caught] == [True]
    assert "CUCONV_CACHE_DIR" in str(caught[0].message)
    assert len(files(folder)) == 2
    assert all(folder not in path.parents for path in outside)
    assert [found_image(key) for key in (KEY, *others)] == [IMAGE, b"scale_kernel<3>", b"scale_kernel<4>"]


def test_a_folder_that_cannot_exist_is_survived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("CUCONV_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert cache.find(KEY) is None
    with pytest.warns(RuntimeWarning, match="cannot be written"):
        store()
    assert found_image() == IMAGE


def test_the_private_folder_goes_with_its_process(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    program = "from tests.jit.test_jit_cache import store; print(store())"
    env = {**os.environ, "CUCONV_CACHE_DIR": str(tmp_path / "file"), "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    assert run.stderr.count("RuntimeWarning") == 1
    image = Path(run.stdout.strip())
    assert image.name.startswith("scale_kernel-")
    assert not image.parent.parent.exists()


def test_the_private_folder_outlives_a_forked_child() -> None:
    private = cache._PrivateFolder()
    with pytest.warns(RuntimeWarning):
        path = private.folder("no folder")
    private._remove(owner=os.getpid() + 1)
    assert path.is_dir()
    private._remove(owner=os.getpid())
    assert not path.exists()


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"CUCONV_CACHE_DIR": "/c", "XDG_CACHE_HOME": "/x"}, "/c"),
        ({"CUCONV_CACHE_DIR": "~/c"}, "/h/c"),
        ({"CUCONV_CACHE_DIR": "", "XDG_CACHE_HOME": "/x"}, "/x/cuconv"),
        ({"XDG_CACHE_HOME": "relative"}, "/h/.cache/cuconv"),
        ({}, "/h/.cache/cuconv"),
    ],
)
def test_the_environment_says_where_the_cache_is(
    env: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CUCONV_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/h", **env}.items():
        monkeypatch.setenv(name, value)
    assert cache.folder() == Path(expected)


def test_a_user_without_a_home_is_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUCONV_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", mock.Mock(side_effect=RuntimeError("no home")))
    with pytest.warns(RuntimeWarning, match="no home"):
        store()
    assert found_image() == IMAGE


@pytest.mark.parametrize("suffix", [".cubin", ".json"])
def test_a_folder_in_the_way_is_survived(suffix: str) -> None:
    in_the_way = store().with_suffix(suffix)
    in_the_way.unlink()
    in_the_way.mkdir()
    assert cache.find(KEY) is None
    with pytest.warns(RuntimeWarning, match="cannot be written"):
        store()
    assert found_image() == IMAGE
