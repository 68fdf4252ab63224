"""Builds with g++: the runtime, and shared libraries that each have a few specialisations of a kernel."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import hashlib
import itertools
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cuconv.jit import cache, source
from cuconv.jit.source import Source
from cuconv.runtime.kernel import Kernel
from tests.emulator import translation
from tests.support.processors import processors

_HERE = Path(__file__).parent
_INCLUDE = _HERE / "include"
_RUNTIME = _HERE / "runtime"

_COMMON = ("-std=c++17", "-fPIC", "-shared", "-fno-omit-frame-pointer")
_OF_KERNELS = (
    # Builds take longer than launches, and without optimisation half as long. Every call in the source is then one in
    # the program, too (qualifiers.h), which the runtime relies on, and a debugger sees all variables.
    "-O0",
    "-g",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    # A pointer that has wrapped around is found where it is accessed. With these checks builds take a quarter longer.
    "-fno-sanitize=pointer-overflow",
    # A call for every access compiles a fifth faster than its checks in place.
    "--param=asan-instrumentation-with-call-threshold=0",
    # Vector accesses read memory as another type than it was declared with, as device code may.
    "-fno-strict-aliasing",
    # Other kernels, and other builds of the same kernel, have functions of the same names.
    "-fvisibility=hidden",
    "-fno-gnu-unique",
    # Only the source decides which operations are fused, so that all machines give the same numbers.
    "-ffp-contract=off",
    *_COMMON,
)
# The runtime is not sanitized: it moves between stacks and writes where kernels must not.
_OF_RUNTIME = (*_COMMON, "-O1", "-g")

_FEWEST_A_BUILD, _MOST_A_BUILD = 6, 24
"""Specialisations per build. Reading the headers costs as much as one, and a build compiles functions of the same types
once: 24 in one take about half the time that they take in four. With too few builds a core is idle at the end.
"""

_BUILDS_A_PROCESSOR = 4
"""Builds per processor from which on none is idle for long at the end."""

_FOLDERS_KEPT = 3
"""Folders kept of each kernel, one for each state of its source: enough to change to another branch and back."""


class BuildError(RuntimeError):
    """The kernel does not compile with g++. The text is the compiler's."""


@functools.cache
def missing() -> str | None:
    """The reason why nothing can be built on this machine, or None."""
    if not sys.platform.startswith("linux"):
        return "the emulator needs Linux"
    if shutil.which("g++") is None:
        return "the emulator needs g++, which is not installed"
    for library in ("libasan.so", "libubsan.so"):
        if not _library(library).is_file():
            return f"the emulator needs {library}, which this g++ lacks"
    return None


@functools.cache
def fills_locals() -> bool:
    """Whether this g++ can fill uninitialised variables with a conspicuous value."""
    return int(_gxx("-dumpversion").partition(".")[0]) >= 12


def sanitizer() -> Path:
    """The AddressSanitizer library, which a process must load before all others."""
    return _library("libasan.so").resolve()


def runtime() -> Path:
    """The runtime library: the fibers, barriers and shared memory that all kernels run with."""
    sources = sorted(_RUNTIME.glob("*.cpp"))
    folder = _folder(root(), "runtime", _digest([*_texts(_RUNTIME), *_texts(_INCLUDE), *_OF_RUNTIME]))
    library = folder / "runtime.so"
    if not library.exists():
        _compile(library, (*_OF_RUNTIME, f"-I{_INCLUDE}", *map(str, sources)), folder)
    return library


def asks_how_it_starts(kernel: Kernel) -> bool:
    """Whether a kernel goes another way where it starts before the preceding one has ended.

    Files that all kernels share do not count: there it is only how constants are read.
    """
    files = _read(source_folder(kernel)).of(kernel.file).files
    own = (text for name, text in files.items() if not name.startswith("common/"))
    return any(word in text for text in own for word in ("kStartsEarly", "kReadsFirst"))


def library(kernel: Kernel, ordinary: bool = False) -> Path:
    """The shared library with the entry of this specialisation, built if need be; for ordinary launches if wanted."""
    unit = _Unit(kernel, ordinary)
    return unit.find(kernel) or unit.build([kernel])


def build(kernels: Iterable[Kernel], ordinary: bool = True) -> None:
    """Build all kernels that are not built yet, several in one library and several libraries at a time.

    Those that ask how they start are built for ordinary launches as well if wanted.
    """
    units: dict[tuple[type[Kernel], str], list[Kernel]] = {}
    for kernel in dict.fromkeys(kernels):
        units.setdefault((type(kernel), kernel.unit), []).append(kernel)
    absent: list[tuple[_Unit, list[Kernel]]] = []
    for of_unit in units.values():
        for unit in (_Unit(of_unit[0], way) for way in {False, ordinary and asks_how_it_starts(of_unit[0])}):
            absent.append((unit, unit.absent(of_unit)))
    most = variants_a_build(sum(len(wanted) for _, wanted in absent), processors())
    tasks: list[tuple[_Unit, Sequence[Kernel]]] = []
    for unit, wanted in absent:
        # In this order every process divides them alike, and neighbours have types in common.
        wanted.sort(key=lambda kernel: kernel.expression)
        count = -(-len(wanted) // most)
        bounds = [i * len(wanted) // max(1, count) for i in range(count + 1)]
        tasks += [(unit, wanted[begin:end]) for begin, end in itertools.pairwise(bounds)]
    # In another order than another process, which would else wait for each of these builds.
    random.shuffle(tasks)
    with ThreadPoolExecutor(processors()) as pool:
        first = pool.submit(runtime)
        for done in [pool.submit(unit.build_absent, chosen) for unit, chosen in tasks]:
            done.result()
        first.result()


def variants_a_build(wanted: int, at_a_time: int) -> int:
    """The most specialisations of one build: fewer where not enough builds would be left for the processors."""
    if at_a_time == 1:
        return _MOST_A_BUILD
    return min(_MOST_A_BUILD, max(_FEWEST_A_BUILD, wanted // (_BUILDS_A_PROCESSOR * at_a_time)))


class _Unit:
    """A kernel's source and the options of its build, and the folder of the libraries built from them."""

    def __init__(self, kernel: Kernel, ordinary: bool) -> None:
        self._ordinary = ordinary
        self._flags = [*_OF_KERNELS, *(["-DEMULATOR_ORDINARY"] if ordinary else [])]
        if fills_locals():
            # Otherwise an uninitialised variable may hold the right value of another thread, left over on the stack.
            self._flags.append("-ftrivial-auto-var-init=pattern")
        self._files = _read(source_folder(kernel)).of(kernel.file).files
        texts = [part for name in sorted(self._files) for part in (name, self._files[name])]
        digest = _digest([*_texts(_INCLUDE), *self._flags, *texts])
        self.folder = _folder(root(), f"{kernel.unit}-ordinary" if ordinary else kernel.unit, digest)

    def find(self, kernel: Kernel) -> Path | None:
        """The library with a specialisation's entry, None if it is not built yet."""
        try:
            library = self.folder / (self.folder / translation.entry(kernel)).read_text(encoding="utf-8")
        except OSError:
            return None
        return library if library.is_file() else None

    def absent(self, kernels: Iterable[Kernel]) -> list[Kernel]:
        """The specialisations that are not built yet."""
        return [kernel for kernel in kernels if self.find(kernel) is None]

    def build_absent(self, kernels: Sequence[Kernel]) -> None:
        """Build one library of those that no process has built meanwhile."""
        if wanted := self.absent(kernels):
            self.build(wanted)

    def build(self, kernels: Sequence[Kernel]) -> Path:
        """Build one library, and write a file for every specialisation that names the library."""
        for name, text in self._files.items():
            _write(self.folder / name, translation.translate(name, text, self._ordinary))
        program = translation.program(kernels)
        stem = hashlib.sha256(program.encode()).hexdigest()[:16]
        main, library = self.folder / f"{stem}.cpp", self.folder / f"{stem}.so"
        with _alone(library):
            # Another process may have built it meanwhile.
            if any(self.find(kernel) != library for kernel in kernels):
                _write(main, program)
                _compile(library, (*self._flags, "-I.", f"-I{_INCLUDE}", str(main)), self.folder)
                for kernel in kernels:
                    _write(self.folder / translation.entry(kernel), library.name)
        return library


def source_folder(kernel: Kernel) -> Path:
    """The folder of the kernel's source: its own `source_folder`, else the package's device code."""
    folder: Path = getattr(kernel, "source_folder", None) or source.folder()
    return folder


@functools.cache
def _read(folder: Path) -> Source:
    return source.read(folder)


@functools.cache
def _library(name: str) -> Path:
    # For a library that it does not find, g++ prints the bare name.
    return Path(_gxx("-print-file-name=" + name).strip())


@functools.cache
def _version() -> str:
    return _gxx("--version") + _gxx("-dumpmachine")


def _gxx(*arguments: str) -> str:
    return subprocess.run(["g++", *arguments], check=True, capture_output=True, text=True).stdout


@functools.cache
def _texts(folder: Path) -> tuple[str, ...]:
    """The names and the texts of a folder's files."""
    return tuple(part for path in sorted(folder.iterdir()) for part in (path.name, path.read_text(encoding="utf-8")))


def _digest(parts: Iterable[str]) -> str:
    sha = hashlib.sha256()
    for part in (_version(), *parts):
        encoded = part.encode()
        sha.update(len(encoded).to_bytes(8, "little") + encoded)
    return sha.hexdigest()[:16]


def root() -> Path:
    """The folder of all builds: in the kernel cache, or a temporary one where the cache cannot be written."""
    return _writable(cache.folder() / "emulator")


@functools.cache
def _writable(wanted: Path) -> Path:
    with contextlib.suppress(OSError):
        cache.check_writable(wanted)
        return wanted
    private = tempfile.mkdtemp(prefix="cuconv-emulator-")
    atexit.register(shutil.rmtree, private, ignore_errors=True)
    return Path(private)


@functools.cache
def _folder(root: Path, name: str, digest: str) -> Path:
    """The folder of one state of a kernel's source. When there are too many, those of the oldest states are removed."""
    folder = root / f"{name}-{digest}"
    folder.mkdir(parents=True, exist_ok=True)
    os.utime(folder)
    states = [path for path in root.iterdir() if re.fullmatch(re.escape(name) + "-[0-9a-f]{16}", path.name)]
    for old in sorted(states, key=_last_use)[:-_FOLDERS_KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    return folder


def _last_use(folder: Path) -> float:
    """When a folder was last used; 0 where another process has removed it meanwhile."""
    try:
        return folder.stat().st_mtime
    except FileNotFoundError:
        return 0


@contextlib.contextmanager
def _alone(target: Path) -> Iterator[None]:
    """No other process builds the same until the end of the `with`: it waits, and finds it built."""
    with target.with_suffix(".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def _compile(target: Path, arguments: Sequence[str], folder: Path) -> None:
    temporary = target.with_name(f".{target.name}.{os.getpid()}.{threading.get_ident()}")
    command = ["g++", f"-ffile-prefix-map={folder}=.", *arguments, "-o", str(temporary)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        raise BuildError(done.stderr)
    os.replace(temporary, target)
