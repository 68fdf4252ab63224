"""The doctor's probe of the whole path of a kernel: compiled, loaded, launched, and its result compared."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from functools import partial

from cuconv.cli.finding import Finding, isolated, pip_install
from cuconv.jit.build import build

ANY_ARCH = 90
"""The architecture that the probe compiles for where there is no GPU, if NVRTC supports it."""

_COPIED = 1 << 16


def copy_kernel() -> Iterator[Finding]:
    """Findings on compiling the copy kernel and, for every GPU, on running it."""
    from cuconv.jit import nvrtc

    try:
        import cupy

        count = int(cupy.cuda.runtime.getDeviceCount())
    except Exception:
        count = 0
    try:
        archs = nvrtc.supported_archs()
    except Exception:
        # The probe of NVRTC reports the reason.
        yield Finding("compiling", "note", "not tried without NVRTC")
        return
    with _temporary_cache():
        if not count:
            yield _compiled(ANY_ARCH if ANY_ARCH in archs else archs[-1])
        for number in range(count):
            yield (compiled := _compiled(int(cupy.cuda.Device(number).compute_capability)))
            if not compiled.is_bad:
                yield from isolated(f"GPU {number}", partial(_copied, number))


def _compiled(capability: int) -> Finding:
    from cuconv.bench.copy import Copy
    from cuconv.jit import nvrtc

    kernel = Copy()
    start = time.perf_counter()
    try:
        artifact = build(kernel.file, kernel.expression, capability)
    except RuntimeError as error:
        lines = str(error).splitlines()
        why = next((line for line in lines[1:] if "error" in line), "")
        fix = ""
        if "builtins" in why:
            # NVRTC is two libraries, and loads the second one only when it compiles.
            fix = pip_install("--force-reinstall", nvrtc.requirement("nvrtc", nvrtc.version()[0]))
        return Finding("compiling", "wrong", ": ".join(filter(None, [lines[0], why])), fix, {"log": str(error)})
    seconds = time.perf_counter() - start
    facts = {"kernel": kernel.expression, "arch": artifact.path.parent.name, "seconds": seconds}
    how = "found" if artifact.from_cache else f"compiled in {seconds:.2f} s"
    return Finding("compiling", "ok", f"{kernel.expression} for {facts['arch']}: {how}", facts=facts)


def _copied(number: int) -> Iterator[Finding]:
    import cupy
    import numpy as np

    from cuconv.bench.copy import Copy

    kernel = Copy()
    with cupy.cuda.Device(number):
        wanted = np.arange(_COPIED, dtype=np.float32)
        x, out = cupy.asarray(wanted), cupy.zeros(wanted.shape, wanted.dtype)
        config, numbers = kernel.launch_config(wanted.nbytes)
        packed = kernel.params.pack_numbers(**numbers)
        enqueue = kernel.load(number).bound(config, packed)
        enqueue((x.data.ptr, out.data.ptr), cupy.cuda.get_current_stream().ptr)
        different = int((out.get() != wanted).sum())
    if different:
        text = f"a kernel was launched, but {different} of the {_COPIED} numbers that it was to copy are wrong"
        yield Finding(f"GPU {number}", "wrong", text)
    else:
        yield Finding(f"GPU {number}", "ok", f"a kernel was loaded and launched, and copied {_COPIED} numbers")


@contextlib.contextmanager
def _temporary_cache() -> Iterator[None]:
    """Make the kernel cache an empty folder, so that the kernel is really compiled."""
    before = os.environ.get("CUCONV_CACHE_DIR")
    with tempfile.TemporaryDirectory(prefix="cuconv-") as folder:
        os.environ["CUCONV_CACHE_DIR"] = folder
        try:
            yield
        finally:
            if before is None:
                del os.environ["CUCONV_CACHE_DIR"]
            else:
                os.environ["CUCONV_CACHE_DIR"] = before
