"""The only way from a template expression to a kernel on disk."""

import logging
import time

from cuconv.jit import cache, source
from cuconv.jit.cache import Artifact

_log = logging.getLogger("cuconv")


def build(unit: str, expression: str, compute_capability: int, defined: tuple[str, ...] = ()) -> Artifact:
    """The kernel named by the C++ expression in the file `unit`, for a compute capability such as 90 (9.0).

    Macros in `defined` say how it starts (common/platform.cuh). It is found in the cache or compiled.
    nvrtc.CompileError if the device code does not compile.
    """
    # This import is late, because NumPy arrays are computed without NVRTC and CuPy.
    from cuconv.jit import nvrtc

    # The key covers only files that the kernel includes, so that it stays in the cache when others change.
    code = source.load().of(unit)
    arch = nvrtc.target(compute_capability).arch
    key = cache.Key(code.digest, unit, expression, arch, nvrtc.options(arch, defined), nvrtc.version())
    if (artifact := cache.find(key)) is not None:
        _log.debug("found %s for %s in %s", expression, arch, artifact.path)
        return artifact
    start = time.perf_counter()
    compiled = nvrtc.compile(code, unit, (expression,), arch, defined)
    artifact = cache.put(key, compiled.image, compiled.symbols[expression], compiled.resources.get(expression))
    seconds = time.perf_counter() - start
    _log.info("compiled %s for %s in %.2f s: %s, %s", expression, arch, seconds, artifact.resources, artifact.path)
    return artifact
