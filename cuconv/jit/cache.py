"""Compiled kernels on disk.

An entry is <arch>/<kernel>-<key>.cubin (or .ptx) and a .json that vouches for it. Each is written beside its
place and moved in, the .json last; a reader believes only a .json whose checksums hold. So a crash, a second
writer or a damaged file leaves a miss, and a miss is repaired by compiling again: there is nothing to lock.
"""

import atexit
import contextlib
import functools
import hashlib
import json
import os
import re
import secrets
import shutil
import tempfile
import threading
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

# Part of every key: raise it when the meaning of an entry changes.
SCHEMA = 1

Kind = Literal["cubin", "ptx"]


@dataclass(frozen=True)
class Resources:
    """What ptxas reports of one kernel; shared_bytes is the static part."""

    registers: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    shared_bytes: int


@dataclass(frozen=True)
class Artifact:
    """A compiled kernel on disk. PTX has no resources: the driver compiles it when it is loaded."""

    path: Path
    symbol: str
    resources: Resources | None
    kind: Kind
    from_cache: bool


@dataclass(frozen=True)
class Key:
    """Everything that decides which bytes the compiler produces."""

    source_digest: str
    unit: str
    expression: str
    arch: str
    options: tuple[str, ...]
    nvrtc_version: tuple[int, int]

    @functools.cached_property
    def digest(self) -> str:
        return hashlib.sha256(_canonical({"schema": SCHEMA, **asdict(self)})).hexdigest()

    @property
    def kind(self) -> Kind:
        return "cubin" if self.arch.startswith("sm_") else "ptx"

    def path(self, root: Path) -> Path:
        """Where the image lies under a cache folder."""
        kernel = re.sub(r"\W", "_", self.expression.partition("<")[0])[:80]
        return root / self.arch / f"{kernel}-{self.digest}.{self.kind}"


def folder() -> Path:
    """The cache folder that the environment asks for."""
    if configured := os.environ.get("CUCONV_CACHE_DIR"):
        return Path(os.path.abspath(os.path.expanduser(configured)))
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(xdg):  # the XDG specification has relative paths ignored
        return Path(xdg, "cuconv")
    try:
        return Path.home() / ".cache" / "cuconv"
    except RuntimeError as error:
        return _private.folder("the kernel cache has no place to be", error)


def find(key: Key) -> Artifact | None:
    """The valid entry of this key, or None."""
    for root in filter(None, (folder(), _private.path)):
        # Whatever is wrong with a file (absent, truncated, another program's), the answer is to compile.
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return _read(root, key)
    return None


def put(key: Key, image: bytes, symbol: str, resources: Resources | None) -> Artifact:
    """Store a compiled kernel, in a folder private to this process where the cache cannot be written."""
    record = {
        "key": key.digest,
        **asdict(key),
        "symbol": symbol,
        "resources": None if resources is None else asdict(resources),
        "sha256": hashlib.sha256(image).hexdigest(),
    }
    root = folder()
    try:
        path = _write(root, key, image, record)
    except OSError as error:
        path = _write(_private.folder(f"the kernel cache {root} cannot be written", error), key, image, record)
    return Artifact(path, symbol, resources, key.kind, from_cache=False)


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _read(root: Path, key: Key) -> Artifact:
    path = key.path(root)
    record = json.loads(path.with_suffix(".json").read_bytes())
    # The record vouches for the image, this for the record: a flipped bit in the symbol would never load.
    if record.pop("record_sha256") != hashlib.sha256(_canonical(record)).hexdigest():
        raise ValueError("the record is damaged")
    if record["key"] != key.digest or record["sha256"] != hashlib.sha256(path.read_bytes()).hexdigest():
        raise ValueError("the record is not this image's")
    resources = None if record["resources"] is None else Resources(**record["resources"])
    return Artifact(path, record["symbol"], resources, key.kind, from_cache=True)


def _write(root: Path, key: Key, image: bytes, record: dict[str, Any]) -> Path:
    path = key.path(root)
    path.parent.mkdir(parents=True, exist_ok=True)
    vouched = {**record, "record_sha256": hashlib.sha256(_canonical(record)).hexdigest()}
    _move_in(path, image)
    _move_in(path.with_suffix(".json"), json.dumps(vouched, indent=1).encode())
    return path


def _move_in(path: Path, content: bytes) -> None:
    # Not a pid alone: on a shared filesystem two machines have the same one.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


class _PrivateFolder:
    """This process's own folder, made and announced when first needed and removed at exit."""

    def __init__(self) -> None:
        self.path: Path | None = None
        self._making = threading.Lock()

    def folder(self, problem: str, error: Exception) -> Path:
        with self._making:
            if self.path is not None:
                return self.path
            self.path = Path(tempfile.mkdtemp(prefix="cuconv-"))
            atexit.register(self._remove, os.getpid())
        warnings.warn(
            f"{problem} ({error}), so kernels compiled by this process are lost when it ends: "
            "set CUCONV_CACHE_DIR to a folder that can be written",
            RuntimeWarning,
            stacklevel=2,
        )
        return self.path

    def _remove(self, owner: int) -> None:
        # A forked child inherits the exit handler but not the folder.
        if self.path is not None and os.getpid() == owner:
            shutil.rmtree(self.path, ignore_errors=True)


_private = _PrivateFolder()
