"""Compiling with NVRTC through CuPy's binding, which needs neither a GPU nor a driver.

Importing this module loads nothing. The first call loads the NVRTC library, which takes about 8 ms.
"""

import contextlib
import ctypes
import functools
import importlib.util
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cuconv.jit.cache import Kind, Resources, kind_of
from cuconv.jit.source import Source

# Compute capabilities of integrated GPUs. They and desktop GPUs of the same major version do not run each other's
# machine code.
_TEGRA = frozenset({53, 62, 72, 87, 101, 110})
_NEEDED_HEADERS = ("cuda_fp16.h", "cuda_bf16.h", "cuda.h")
_EXCERPT_CONTEXT = 3
_EXCERPTS_SHOWN = 8


@dataclass(frozen=True)
class Target:
    """An architecture to compile for: "sm_90" gives machine code, "compute_90" PTX, which the driver compiles."""

    arch: str

    @property
    def kind(self) -> Kind:
        return kind_of(self.arch)


@dataclass(frozen=True)
class Compiled:
    """A compiled program: one image with the kernels of all expressions. Resources of PTX are not known."""

    image: bytes
    kind: Kind
    symbols: Mapping[str, str]
    resources: Mapping[str, Resources]
    log: str


class CompileError(RuntimeError):
    """The device code does not compile. The text shows the log and the source lines that it names."""


def version() -> tuple[int, int]:
    """Major and minor version of the NVRTC library."""
    major, minor = _binding().getVersion()
    return major, minor


def library() -> Path | None:
    """The file that the NVRTC library was loaded from, None where the system does not tell."""
    version()
    with contextlib.suppress(OSError):
        mapped = (line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines())
        for path in (Path(fields[5]) for fields in mapped if len(fields) == 6):
            if path.name.startswith("libnvrtc.so"):
                return path
    return None


def requirement(part: str, major: int) -> str:
    """The pip requirement of NVIDIA's package "nvrtc" or "runtime" for one CUDA major version."""
    return f"nvidia-cuda-{part}-cu{major}" if major < 13 else f"nvidia-cuda-{part}=={major}.*"


LEAST_ARCH = 75
"""The least compute capability that kernels are written for, 7.5."""


def supported_archs() -> tuple[int, ...]:
    """All compute capabilities that this NVRTC compiles kernels for, ascending; 90 is 9.0."""
    return tuple(sorted(arch for arch in _binding().getSupportedArchs() if arch >= LEAST_ARCH))


def target(compute_capability: int) -> Target:
    """The best architecture that this NVRTC can compile for a device: PTX for one that is newer than NVRTC."""
    if compute_capability < LEAST_ARCH:
        raise RuntimeError(f"compute_capability is {compute_capability}, but kernels need {LEAST_ARCH} or more")
    supported = supported_archs()
    if compute_capability in supported:
        return Target(f"sm_{compute_capability}")
    below = [arch for arch in supported if arch < compute_capability]
    same_major = [arch for arch in below if arch // 10 == compute_capability // 10 and arch not in _TEGRA]
    if same_major and compute_capability not in _TEGRA:
        return Target(f"sm_{max(same_major)}")
    if below:
        return Target(f"compute_{max(below)}")
    major, minor = version()
    raise RuntimeError(
        f"compute_capability is {compute_capability}, but NVRTC {major}.{minor} compiles for {supported[0]} "
        "and above: use a CuPy and an NVRTC of an older CUDA major version"
    )


def options(arch: str, defined: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The options that determine the image, so not the folders of headers. With -lineinfo file names would, too."""
    return ("-std=c++17", f"--gpu-architecture={arch}", "--ptxas-options=-v", *(f"-D{name}" for name in defined))


def compile(
    source: Source, unit: str, expressions: Sequence[str], arch: str, defined: tuple[str, ...] = ()
) -> Compiled:
    """Compile the file `unit` once with every one of the template expressions instantiated.

    Macros in `defined` say how they start (common/platform.cuh).
    Many expressions in one program are cheaper than many programs: the toolkit's headers are parsed once.
    """
    source = source.of(unit)
    binding = _binding()
    names, texts = source.headers()
    include = tuple(f"-I{folder}" for folder in toolkit_include_dirs())
    with _program(binding, source.files[unit], unit, texts, names) as program:
        for expression in expressions:
            binding.addNameExpression(program, expression)
        try:
            binding.compileProgram(program, options(arch, defined) + include + _without_cache())
        except binding.NVRTCError as error:
            log = _log(binding, program)
            raise CompileError(_explain(source, unit, expressions, arch, log or str(error))) from None
        kind = Target(arch).kind
        image = binding.getCUBIN(program) if kind == "cubin" else binding.getPTX(program)
        symbols = {expression: binding.getLoweredName(program, expression) for expression in expressions}
        log = _log(binding, program)
    reported = parse_resources(log)
    resources = {expression: reported[symbol] for expression, symbol in symbols.items() if symbol in reported}
    return Compiled(image, kind, symbols, resources, log)


def _without_cache() -> tuple[str, ...]:
    """The option that disables NVRTC's own cache, which it has from 12.9 on where there is a GPU: programs from that
    cache lack the report of ptxas.
    """
    return ("--no-cache",) if version() >= (12, 9) else ()


@functools.cache
def toolkit_include_dirs() -> tuple[Path, ...]:
    """All folders with headers of NVRTC's major version: first those of pip, then of CUDA_PATH, then of the system."""
    major, _ = version()
    wheels = [folder for nvidia in _nvidia_packages() for folder in (nvidia / "cuda_runtime", nvidia / f"cu{major}")]
    toolkits = [os.environ.get(name) for name in ("CUDA_PATH", "CUDA_HOME")]
    roots = [*wheels, *(Path(root) for root in toolkits if root), Path("/usr/local/cuda")]
    candidates = [root / "include" for root in roots]
    # All folders are listed, because a wheel may lack a file that a toolkit has.
    fitting = tuple(dict.fromkeys(folder for folder in candidates if _headers_major(folder) == major))
    if not fitting:
        wanted = requirement("runtime", major)
        looked = ", ".join(map(str, candidates))
        raise RuntimeError(
            f"no folder has cuda_fp16.h and cuda_bf16.h of CUDA {major}, which NVRTC needs: "
            f"run pip install {wanted!r} (looked in {looked})"
        )
    return fitting


def parse_resources(log: str) -> dict[str, Resources]:
    """The resources that `ptxas -v` reports for every kernel, by symbol.

    The report does not say which kernels call a device function that was not inlined: its spills count for all of them.
    """
    used: dict[str, tuple[int, int]] = {}
    frames: dict[str, tuple[int, int, int]] = {}
    kernel = function = ""
    for line in log.splitlines():
        if match := re.search(r"Compiling entry function '(.+?)'", line):
            kernel = function = match[1]
        elif match := re.search(r"Function properties for '?([^\s']+)", line):
            function = match[1]
        elif match := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            frames[function] = int(match[1]), int(match[2]), int(match[3])
        elif match := re.search(r"Used (\d+) registers", line):
            # In "8+16 bytes smem" the second number is the compiler's own.
            shared = re.search(r"([\d+]+) bytes smem", line)
            used[kernel] = int(match[1]), sum(map(int, shared[1].split("+"))) if shared else 0
    called = [frame for name, frame in frames.items() if name not in used]
    spilled = sum(frame[1] for frame in called), sum(frame[2] for frame in called)
    return {
        symbol: Resources(registers, stack, stores + spilled[0], loads + spilled[1], shared_bytes)
        for symbol, (registers, shared_bytes) in used.items()
        for stack, stores, loads in (frames.get(symbol, (0, 0, 0)),)
    }


@functools.cache
def _binding() -> Any:
    try:
        from cupy_backends.cuda.libs import nvrtc
    except ImportError as error:
        raise ImportError("compiling a kernel needs CuPy: run pip install cupy-cuda12x or cupy-cuda13x") from error
    try:
        nvrtc.getVersion()
    except RuntimeError:
        # CuPy before version 14 does not look into pip's wheels, but uses a library that the process has loaded.
        for library in (path for nvidia in _nvidia_packages() for path in nvidia.glob("*/lib/libnvrtc.so.*")):
            ctypes.CDLL(str(library))
        try:
            nvrtc.getVersion()
        except RuntimeError as error:
            raise RuntimeError(
                "the NVRTC library was not found: run pip install nvidia-cuda-nvrtc-cu12 beside cupy-cuda12x "
                f"or nvidia-cuda-nvrtc beside cupy-cuda13x ({error})"
            ) from error
    return nvrtc


def _nvidia_packages() -> list[Path]:
    spec = importlib.util.find_spec("nvidia")
    return [] if spec is None else [Path(folder) for folder in spec.submodule_search_locations or ()]


def _headers_major(folder: Path) -> int | None:
    """The CUDA major version of a folder of headers, None where a needed header is missing."""
    if not all((folder / name).is_file() for name in _NEEDED_HEADERS):
        return None
    match = re.search(r"^#define CUDA_VERSION (\d+)", (folder / "cuda.h").read_text(errors="replace"), re.MULTILINE)
    return int(match[1]) // 1000 if match else None


@contextlib.contextmanager
def _program(binding: Any, text: str, unit: str, headers: Sequence[str], names: Sequence[str]) -> Iterator[Any]:
    encoded = (tuple(part.encode() for part in parts) for parts in (headers, names))
    program = binding.createProgram(text, unit, *encoded)
    try:
        yield program
    finally:
        binding.destroyProgram(program)


def _log(binding: Any, program: Any) -> str:
    text: str = binding.getProgramLog(program)
    return text.rstrip("\0\n ")


def _explain(source: Source, unit: str, expressions: Sequence[str], arch: str, log: str) -> str:
    major, minor = version()
    places = re.findall(r"^(.+?)\((\d+)\): (?:catastrophic )?error", log, re.MULTILINE)
    known = [(name, int(line)) for name, line in dict.fromkeys(places) if name in source.files]
    return "\n\n".join(
        [
            f"{unit} does not compile for {arch} with NVRTC {major}.{minor}",
            "\n".join(["expressions:", *(f"    {expression}" for expression in expressions)]),
            log,
            *(_excerpt(source.files[name], name, line) for name, line in known[:_EXCERPTS_SHOWN]),
        ]
    )


def _excerpt(text: str, name: str, failing: int) -> str:
    numbered = list(enumerate(text.splitlines(), start=1))
    shown = numbered[max(0, failing - 1 - _EXCERPT_CONTEXT) : failing + _EXCERPT_CONTEXT]
    return "\n".join(
        [
            f"{name}:{failing}",
            *(f"{'>' if line == failing else ' '} {line:5} | {code}" for line, code in shown),
        ]
    )
