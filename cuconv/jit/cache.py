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

_STEM = r"\w{1,80}-[0-9a-f]{64}"
_SUFFIX = r"\.(?:cubin|ptx|json)"
ARCH_FOLDER = re.compile(r"(?:sm|compute)_\d+[a-z]?")
ENTRY_FILE = re.compile(_STEM + _SUFFIX)
TEMPORARY_FILE = re.compile(rf"\.{_STEM}{_SUFFIX}\.\d+\.[0-9a-f]{{16}}\.tmp")
"""Whole names of what is ours in a cache folder: its folders, the files in them, files that are being written."""

MISSES = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""What reading an entry raises when a file is absent, truncated or another program's: the answer is to compile."""


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


def kind_of(arch: str) -> Kind:
    """What is compiled for "sm_90", or for "compute_90"."""
    return "cubin" if arch.startswith("sm_") else "ptx"


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
        return kind_of(self.arch)

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
        with contextlib.suppress(*MISSES):
            path = key.path(root)
            record = read_record(path, key.digest)
            resources = None if record["resources"] is None else Resources(**record["resources"])
            return Artifact(path, record["symbol"], resources, key.kind, from_cache=True)
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


def read_record(path: Path, digest: str) -> dict[str, Any]:
    """The record of the image at `path`, both as they were put under this key; one of MISSES else."""
    record: dict[str, Any] = json.loads(path.with_suffix(".json").read_bytes())
    # The record vouches for the image, this for the record: a flipped bit in the symbol would never load.
    if record.pop("record_sha256") != hashlib.sha256(_canonical(record)).hexdigest():
        raise ValueError("the record is damaged")
    if record["key"] != digest or record["sha256"] != hashlib.sha256(path.read_bytes()).hexdigest():
        raise ValueError("the record is not this image's")
    return record


def check_writable(folder: Path) -> None:
    """OSError when nothing can be stored in this folder, which is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"cuconv")


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
