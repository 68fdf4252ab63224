"""The one way from a template expression to a kernel on disk."""

import logging
import time

from cuconv.jit import cache, source
from cuconv.jit.cache import Artifact

_log = logging.getLogger("cuconv")


def build(unit: str, expression: str, compute_capability: int) -> Artifact:
    """The kernel that the C++ name `expression` names in the file `unit`, for a device such as 90 (9.0).

    Found in the cache or compiled; a failing compile raises nvrtc.CompileError.
    """
    # Here and not above: the NumPy path has no need of NVRTC, nor of CuPy.
    from cuconv.jit import nvrtc

    code = source.load()
    arch = nvrtc.target(compute_capability).arch
    key = cache.Key(code.digest, unit, expression, arch, nvrtc.options(arch), nvrtc.version())
    if (artifact := cache.find(key)) is not None:
        _log.debug("found %s for %s in %s", expression, arch, artifact.path)
        return artifact
    start = time.perf_counter()
    compiled = nvrtc.compile(code, unit, (expression,), arch)
    artifact = cache.put(key, compiled.image, compiled.symbols[expression], compiled.resources.get(expression))
    seconds = time.perf_counter() - start
    _log.info("compiled %s for %s in %.2f s: %s, %s", expression, arch, seconds, artifact.resources, artifact.path)
    return artifact
