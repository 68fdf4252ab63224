"""Compiled kernels on disk.

An entry is <arch>/<kernel>-<key>.cubin (or .ptx) and a .json record with checksums of both. Each file is written under
a temporary name and moved into its place, the .json last, and a reader accepts an entry only when the checksums hold.
So a crash, a second writer or a damaged file leaves a miss, which compiling again repairs: nothing is locked.

Loading a kernel is running it with this user's rights. So, where the system is POSIX, folders are made for this user
alone, and a folder or a file that a user other than this one and root owns or can write is a miss.
"""

import atexit
import contextlib
import errno
import functools
import hashlib
import json
import os
import re
import secrets
import shlex
import shutil
import tempfile
import threading
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

SCHEMA = 1
"""Version of the format of entries. It is part of every key: raise it when the format changes."""

Kind = Literal["cubin", "ptx"]

_STEM = r"\w{1,80}-[0-9a-f]{64}"
_SUFFIX = r"\.(?:cubin|ptx|json)"
ARCH_FOLDER = re.compile(r"(?:sm|compute)_[0-9]+[a-z]?")
ENTRY_FILE = re.compile(_STEM + _SUFFIX)
TEMPORARY_FILE = re.compile(rf"\.{_STEM}{_SUFFIX}\.\d+\.[0-9a-f]{{16}}\.tmp")
"""Names in a cache folder that belong to it: folders, the files in them, and files that are being written."""

MISSES = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""Errors of reading an entry that is absent, truncated or written by another program: the kernel is compiled again."""

FOLDER_MODE, FILE_MODE = 0o700, 0o644
"""Permissions of new folders and files, from which the umask may take some."""

_WRITABLE_BY_OTHERS = 0o022
"""Permission bits that let the group or everyone write."""


class Untrusted(PermissionError):
    """A folder or file of the cache that another user owns or can write."""


@dataclass(frozen=True)
class Resources:
    """Registers and bytes that one kernel takes, as ptxas reports them; shared_bytes is static shared memory only."""

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
    """The kind of image for an architecture: machine code for "sm_90", PTX for "compute_90"."""
    return "cubin" if arch.startswith("sm_") else "ptx"


@dataclass(frozen=True)
class Key:
    """Everything that determines the bytes that the compiler produces."""

    source_digest: str
    """Digest of the unit and the headers that it includes."""
    unit: str
    expression: str
    arch: str
    options: tuple[str, ...]
    nvrtc_version: tuple[int, int]

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 over all fields, in hexadecimal digits."""
        return hashlib.sha256(_canonical({"schema": SCHEMA, **asdict(self)})).hexdigest()

    @property
    def kind(self) -> Kind:
        return kind_of(self.arch)

    def path(self, root: Path) -> Path:
        """The path of the image under a cache folder."""
        kernel = re.sub(r"\W", "_", self.expression.partition("<")[0])[:80]
        return root / self.arch / f"{kernel}-{self.digest}.{self.kind}"


def folder() -> Path:
    """The cache folder: CUCONV_CACHE_DIR, or cuconv in XDG_CACHE_HOME or in ~/.cache."""
    try:
        if configured := os.environ.get("CUCONV_CACHE_DIR"):
            if configured == "~" or configured.startswith("~/"):
                return _home() / configured[2:]
            return Path(os.path.abspath(os.path.expanduser(configured)))
        xdg = os.environ.get("XDG_CACHE_HOME", "")
        if os.path.isabs(xdg):  # the XDG specification has relative paths ignored
            return Path(xdg, "cuconv")
        return _home() / ".cache" / "cuconv"
    except RuntimeError as error:
        return _private.folder(_lost(f"the kernel cache has no place to be ({error})"))


def _home() -> Path:
    """The user's home folder. RuntimeError if there is none.

    An empty or relative HOME, which would make the cache depend on the working directory, counts as not set.
    """
    if os.name != "posix" or os.path.isabs(os.environ.get("HOME", os.sep)):
        return Path.home()
    import pwd

    try:
        home = Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        home = Path()
    if not home.is_absolute():
        raise RuntimeError("HOME is no absolute path, and the user database has no home folder of this user")
    return home


def find(key: Key) -> Artifact | None:
    """The valid entry of this key, or None."""
    for root in filter(None, (folder(), _private.path)):
        path = key.path(root)
        try:
            record = read_record(path, key.digest)
            resources = None if record["resources"] is None else Resources(**record["resources"])
            return Artifact(path, record["symbol"], resources, key.kind, from_cache=True)
        except Untrusted as error:
            _warn_untrusted(root, error)
        except MISSES:
            pass
    return None


def put(key: Key, image: bytes, symbol: str, resources: Resources | None) -> Artifact:
    """Store a compiled kernel, in a folder private to this process where the cache cannot be written or trusted."""
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
    except Untrusted as error:
        _warn_untrusted(root, error)
        path = _write(_private.folder(), key, image, record)
    except OSError as error:
        warning = _lost(f"the kernel cache {root} cannot be written ({error})")
        path = _write(_private.folder(warning), key, image, record)
    return Artifact(path, symbol, resources, key.kind, from_cache=False)


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def read_record(path: Path, digest: str) -> dict[str, Any]:
    """The record of the image at `path`, when both are whole and stored under this key; else raises one of MISSES."""
    for place in (path.parent.parent, path.parent):
        check_trusted(place, os.stat(place))
    record: dict[str, Any] = json.loads(_read(path.with_suffix(".json")))
    # The record has the image's checksum; this is the record's own, because with a flipped bit in the symbol the kernel
    # would never load.
    if record.pop("record_sha256") != hashlib.sha256(_canonical(record)).hexdigest():
        raise ValueError("the record is damaged")
    if record["key"] != digest or record["sha256"] != hashlib.sha256(_read(path)).hexdigest():
        raise ValueError("the record is not this image's")
    return record


def _read(path: Path) -> bytes:
    with open(path, "rb") as file:
        check_trusted(path, os.fstat(file.fileno()))
        return file.read()


def check_trusted(path: Path, found: os.stat_result) -> None:
    """Raise Untrusted when a user other than this one and root owns or can write the file or folder at `path`; not
    outside POSIX."""
    if os.name != "posix":
        return
    if found.st_uid not in (os.geteuid(), 0):
        raise Untrusted(errno.EPERM, f"it belongs to another user, {found.st_uid}", str(path))
    if found.st_mode & _WRITABLE_BY_OTHERS:
        raise Untrusted(errno.EPERM, f"other users can write it, mode {found.st_mode & 0o777:04o}", str(path))


def make_folder(folder: Path) -> None:
    """Make a folder and missing ones above it, for this user alone whatever the umask is."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    # Another process may have made it meanwhile. A file of this name is found below.
    with contextlib.suppress(FileExistsError):
        folder.mkdir(FOLDER_MODE)
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))


def check_writable(folder: Path) -> None:
    """OSError when nothing can be stored in this folder, which is made if need be; Untrusted when others could."""
    make_folder(folder)
    check_trusted(folder, os.stat(folder))
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"cuconv")


def _write(root: Path, key: Key, image: bytes, record: dict[str, Any]) -> Path:
    path = key.path(root)
    make_folder(path.parent)
    for place in (root, path.parent):
        check_trusted(place, os.stat(place))
    vouched = {**record, "record_sha256": hashlib.sha256(_canonical(record)).hexdigest()}
    _move_in(path, image)
    _move_in(path.with_suffix(".json"), json.dumps(vouched, indent=1).encode())
    return path


def _move_in(path: Path, content: bytes) -> None:
    # A process number alone is not unique: machines that share a filesystem may have the same.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, FILE_MODE)) as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


_warned: set[Path] = set()
"""Cache folders for which this process has warned that something in them is not trusted."""


def _warn_untrusted(root: Path, error: Untrusted) -> None:
    """Warn once per cache folder, however many of its entries are ignored."""
    if root in _warned:
        return
    _warned.add(root)
    warnings.warn(
        f"the kernel cache {root} is not used where other users could change it, and kernels are compiled instead: "
        f"{error.filename}: {error.strerror}. {remedy(error)}",
        RuntimeWarning,
        stacklevel=3,
    )


def remedy(error: Untrusted) -> str:
    """What to do about a folder or file that is not trusted."""
    path = shlex.quote(str(error.filename))
    return f"Run chmod -R go-w {path}, or, if it is not yours, set CUCONV_CACHE_DIR to a folder that is."


def _lost(problem: str) -> str:
    return (
        f"{problem}, so kernels compiled by this process are lost when it ends: "
        "set CUCONV_CACHE_DIR to a folder that can be written"
    )


class _PrivateFolder:
    """A folder of this process alone, made when first needed and removed at exit."""

    def __init__(self) -> None:
        self.path: Path | None = None
        self._making = threading.Lock()

    def folder(self, warning: str = "") -> Path:
        """The folder; when it is made now, with this warning if there is one."""
        with self._making:
            if self.path is not None:
                return self.path
            self.path = Path(tempfile.mkdtemp(prefix="cuconv-"))
            atexit.register(self._remove, os.getpid())
        if warning:
            warnings.warn(warning, RuntimeWarning, stacklevel=3)
        return self.path

    def _remove(self, owner: int) -> None:
        # A forked child inherits the exit handler but not the folder.
        if self.path is not None and os.getpid() == owner:
            shutil.rmtree(self.path, ignore_errors=True)


_private = _PrivateFolder()
