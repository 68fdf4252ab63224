"""The doctor's probes of CUDA: the driver, CuPy, GPUs, NVRTC and the CUDA headers."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shlex
from collections.abc import Iterator
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from typing import Any

from cuconv.cli.console import size_text
from cuconv.cli.finding import Finding, isolated, pip_install, reason_of
from cuconv.runtime.errors import message

WITHOUT_GPU = "kernels can be compiled ahead (cuconv warmup --arch 90), and NumPy arrays are computed on the CPU"
OLDEST_CUPY = 13
DEFAULT_MAJOR = 12
"""The major version of CUDA that `pip install cuconv` brings."""

_CUPY = re.compile(r"cupy(-cuda(?P<major>\d\d)[x0-9]|-rocm-.+)?")


def cuda_text(version: int) -> str:
    """A CUDA version such as 12090 in the form "12.9"."""
    return f"{version // 1000}.{version % 1000 // 10}"


@cache
def driver_version() -> int | None:
    """The newest CUDA that the driver supports, such as 12090; None without a driver."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    version = ctypes.c_int(0)
    # A toolkit's stub of the library returns an error.
    return version.value or None if library.cuDriverGetVersion(ctypes.byref(version)) == 0 else None


def driver() -> Iterator[Finding]:
    version = driver_version()
    if version is None:
        yield Finding("driver", "note", f"there is no NVIDIA driver: {WITHOUT_GPU}", facts={"cuda": None})
        return
    release = ""
    with contextlib.suppress(OSError):
        told = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
        if match := re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)\s", told):
            release = match[1]
    facts = {"cuda": cuda_text(version), "release": release}
    yield Finding(
        "driver", "ok", f"{release or 'of unknown release'}, for CUDA up to {cuda_text(version)}", facts=facts
    )


def installed_cupys() -> dict[str, str]:
    """The version of every installed package that contains CuPy, by package name."""
    found: dict[str, str] = {}
    for distribution in metadata.distributions():
        # The remains of a broken installation may have no name.
        name = re.sub(r"[-_.]+", "-", str(distribution.metadata["Name"] or "")).lower()
        if _CUPY.fullmatch(name):
            # Python imports the first one on its path.
            found.setdefault(name, distribution.version)
    return dict(sorted(found.items()))


def wheels(major: int) -> tuple[str, ...]:
    """The pip requirements of CuPy, NVRTC and the headers of one CUDA major version."""
    from cuconv.jit import nvrtc

    return f"cupy-cuda{major}x", nvrtc.requirement("nvrtc", major), nvrtc.requirement("runtime", major)


def _best_major(packages: dict[str, str]) -> int:
    """The newest CUDA major version that one of these packages is built for and the driver supports."""
    majors = [int(match["major"]) for name in packages if (match := _CUPY.fullmatch(name)) and match["major"]]
    newest = (driver_version() or DEFAULT_MAJOR * 1000) // 1000
    return max((major for major in majors if major <= newest), default=DEFAULT_MAJOR)


def _replaced(packages: dict[str, str], major: int) -> str:
    """The shell command that replaces these packages by the CuPy of one CUDA major version."""
    # The packages share files, so removing one would damage the others.
    return f"{shlex.join(['pip', 'uninstall', '-y', *packages])} && {pip_install(*wheels(major))}"


def cupy_package() -> Iterator[Finding]:
    packages = installed_cupys()
    shown = ", ".join(f"{name} {version}" for name, version in packages.items())
    major = _best_major(packages)
    if len(packages) > 1:
        fix = _replaced(packages, major)
        text = f"{shown} are in each other's way: keep one"
        yield Finding("CuPy", "wrong", text, fix, {"packages": packages})
    try:
        import cupy

        version, runtime = str(cupy.__version__), int(cupy.cuda.runtime.runtimeGetVersion())
    except Exception as error:
        facts: dict[str, Any] = {"packages": packages, "version": None}
        if not packages and isinstance(error, ModuleNotFoundError):
            text = "not installed: needed for GPUs and for compiling, not for NumPy arrays"
            yield Finding("CuPy", "missing", text, pip_install(*wheels(major)), facts)
        else:
            text = f"{shown or 'CuPy'} cannot be imported: {reason_of(error)}"
            yield Finding("CuPy", "wrong", text, pip_install("--force-reinstall", *(packages or wheels(major))), facts)
        return
    facts = {"packages": packages, "version": version, "runtime": cuda_text(runtime)}
    text = f"{shown or f'CuPy {version}, from no package'}, with the runtime of CUDA {cuda_text(runtime)}"
    supported = driver_version()
    if int(version.partition(".")[0]) < OLDEST_CUPY:
        fix = pip_install("--upgrade", f"cupy-cuda{runtime // 1000}x>={OLDEST_CUPY}")
        yield Finding("CuPy", "wrong", message("version", version, f"{OLDEST_CUPY} or later"), fix, facts)
    elif supported is not None and supported // 1000 < runtime // 1000:
        # The older major version's packages work with this driver; a newer driver would do as well.
        text += f", but the driver supports CUDA {cuda_text(supported)} at most: install a newer driver or another CuPy"
        yield Finding("CuPy", "wrong", text, _replaced(packages, supported // 1000), facts)
    else:
        yield Finding("CuPy", "ok", text, facts=facts)


def gpus() -> Iterator[Finding]:
    """Findings on every GPU and the architecture that NVRTC compiles for it. No GPU at all is a note, not a fault."""
    try:
        import cupy
    except Exception:
        yield Finding("GPU", "note", "without CuPy GPUs cannot be looked for")
        return
    reason = ""
    try:
        count = int(cupy.cuda.runtime.getDeviceCount())
    except RuntimeError as error:
        count, reason = 0, reason_of(error)
    if not count:
        yield _no_gpu(reason)
    for number in range(count):
        device = cupy.cuda.Device(number)
        properties = cupy.cuda.runtime.getDeviceProperties(number)
        facts = {
            "number": number,
            "name": properties["name"].decode(),
            "capability": int(device.compute_capability),
            "memory_bytes": int(properties["totalGlobalMem"]),
            "multiprocessors": int(device.attributes["MultiProcessorCount"]),
            "l2_bytes": int(device.attributes["L2CacheSize"]),
        }
        text = (
            f"{facts['name']}, sm_{facts['capability']}, {size_text(facts['memory_bytes'])} of memory, "
            f"{facts['multiprocessors']} multiprocessors, {size_text(facts['l2_bytes'])} of L2 cache"
        )
        yield Finding(f"GPU {number}", "ok", text, facts=facts)
        yield from isolated(f"GPU {number}", partial(compiled_for, number, facts["capability"]))


def _no_gpu(reason: str) -> Finding:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    facts = {"reason": reason, "CUDA_VISIBLE_DEVICES": visible}
    # A driver that is installed and does not start is broken, unless the machine has no GPU.
    if driver_version() is not None and reason and "cudaErrorNoDevice" not in reason:
        return Finding("GPU", "wrong", f"CUDA does not start, see nvidia-smi: {reason}", facts=facts)
    hidden = "" if visible is None else f"; CUDA_VISIBLE_DEVICES is {visible!r}"
    return Finding("GPU", "note", f"none ({reason or 'CUDA finds no device'}{hidden}): {WITHOUT_GPU}", facts=facts)


def compiled_for(number: int, capability: int) -> Iterator[Finding]:
    """A finding on the kind of code that NVRTC makes for a GPU."""
    from cuconv.jit import nvrtc

    subject = f"GPU {number}"
    try:
        major, minor = nvrtc.version()
    except (ImportError, RuntimeError):
        # The probe of NVRTC reports this.
        return
    try:
        target = nvrtc.target(capability)
    except RuntimeError as error:
        is_dropped = capability >= nvrtc.LEAST_ARCH and major > DEFAULT_MAJOR
        fix = _replaced(installed_cupys(), DEFAULT_MAJOR) if is_dropped else ""
        yield Finding(subject, "wrong", str(error), fix)
        return
    facts = {"number": number, "arch": target.arch}
    if target.kind == "cubin":
        yield Finding(subject, "ok", f"NVRTC makes machine code for it, {target.arch}", facts=facts)
    else:
        text = f"newer than NVRTC {major}.{minor}, so the driver compiles {target.arch} for it at every start"
        yield Finding(subject, "note", text, pip_install("--upgrade", nvrtc.requirement("nvrtc", major)), facts)


def compiler() -> Iterator[Finding]:
    """Findings on the NVRTC library and on the CUDA headers."""
    from cuconv.jit import nvrtc

    try:
        import cupy

        runtime = int(cupy.cuda.runtime.runtimeGetVersion())
    except Exception:
        # NVRTC is loaded through CuPy.
        yield Finding("NVRTC", "note", "without CuPy it cannot be looked for")
        return
    try:
        major, minor = nvrtc.version()
    except (ImportError, RuntimeError) as error:
        fix = pip_install(nvrtc.requirement("nvrtc", runtime // 1000))
        yield Finding("NVRTC", "missing", reason_of(error), fix)
        return
    library, archs = nvrtc.library(), nvrtc.supported_archs()
    place = "of unknown place" if library is None else f"from {library}"
    text = f"{major}.{minor} {place}, for sm_{archs[0]} to sm_{archs[-1]}"
    facts = {"version": f"{major}.{minor}", "library": None if library is None else str(library), "archs": archs}
    yield Finding("NVRTC", "ok", text, facts=facts)
    try:
        folders = [str(folder) for folder in nvrtc.toolkit_include_dirs()]
    except RuntimeError as error:
        yield Finding("CUDA headers", "missing", str(error), pip_install(nvrtc.requirement("runtime", major)))
    else:
        yield Finding("CUDA headers", "ok", ", ".join(folders), facts={"folders": folders})
