"""`cuconv doctor`: what this machine has, what is missing, and the command that fixes it."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import os
import platform
import shlex
import shutil
import warnings
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from cuconv.cli import cuda_probes, kernel_probe
from cuconv.cli.cache import REPAIR, is_stale
from cuconv.cli.console import OK, WRONG, Console, size_text
from cuconv.cli.finding import (
    NEEDED_PACKAGES,
    Finding,
    Probe,
    absent_packages,
    isolated,
    pip_install,
    reason_of,
)
from cuconv.jit import cache, contents, source
from cuconv.runtime import distribution
from cuconv.runtime.environment import contents_are_checked

VARIABLES = ("CUCONV_CACHE_DIR", "CUCONV_CHECK", "CUDA_VISIBLE_DEVICES", "CUDA_PATH", "CUDA_HOME")
SCARCE = 100e6
"""Free bytes on the cache's disk below which the doctor says so."""

ANOTHER_FOLDER = 'export CUCONV_CACHE_DIR="$HOME/another-folder"'
"""The fix for a cache folder that this user cannot use."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "A GPU is not asked for: without one all is well, too, if kernels can be compiled ahead."


def run(options: argparse.Namespace, console: Console) -> int:
    """Print each finding when it is made. Returns WRONG when something is missing or wrong."""
    findings = []
    for finding in examine():
        findings.append(finding)
        for line in finding.lines:
            console.line(line)
    bad = sum(finding.is_bad for finding in findings)
    console.line()
    console.line(f"{bad} to put right" if bad else "All is well.")
    console.finish({"is_well": not bad, "findings": [finding.as_json for finding in findings]})
    return WRONG if bad else OK


def examine() -> Iterator[Finding]:
    """All findings, in an order in which causes come before their consequences."""
    with warnings.catch_warnings():
        # The probes report what CuPy warns of when it is imported.
        warnings.simplefilter("ignore")
        absent = absent_packages()
        for subject, probe in PROBES.items():
            if absent and subject in THROUGH_NUMPY:
                yield Finding(subject, "note", f"not looked at without {' and '.join(absent)}")
            else:
                yield from isolated(subject, probe)


def _installation() -> Iterator[Finding]:
    place = Path(__file__).resolve().parents[2]
    version = distribution.version() or "from its source tree"
    facts = {
        "version": version,
        "place": str(place),
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    text = f"{version} in {place}, on Python {facts['python']}, {platform.system()} {facts['machine']}"
    yield Finding("cuconv", "ok", text, facts=facts)
    try:
        code = source.load()
    except OSError as error:
        yield Finding("device code", "missing", str(error), pip_install("--force-reinstall", "--no-deps", "cuconv"))
    else:
        facts = {"digest": code.digest, "folder": str(source.folder())}
        yield Finding("device code", "ok", f"{len(code.files)} files in {facts['folder']}", facts=facts)
    for package in NEEDED_PACKAGES:
        yield _package(package)


def _package(name: str) -> Finding:
    """A Python package that every function needs."""
    absent: dict[str, Any] = {"version": None}
    if name in absent_packages():
        return Finding(name, "missing", "not installed, and every function needs it", pip_install(name), absent)
    try:
        # ml_dtypes cannot be imported without numpy.
        found = metadata.version(name) if absent_packages() else str(importlib.import_module(name).__version__)
    except Exception as error:
        fix = pip_install("--force-reinstall", name)
        return Finding(name, "wrong", f"cannot be imported: {reason_of(error)}", fix, absent)
    return Finding(name, "ok", found, facts={"version": found})


def _cache() -> Iterator[Finding]:
    root = cache.folder()
    facts = {"folder": str(root)}
    try:
        folders = [root, *(path for path in root.iterdir() if cache.ARCH_FOLDER.fullmatch(path.name))]
    except OSError:
        # The cache folder does not exist yet, or is not a folder.
        folders = [root]
    try:
        for folder in folders:
            cache.check_writable(folder)
    except cache.Untrusted as error:
        text = f"{root} is not used where other users could change it: {error.filename}: {error.strerror}"
        is_ours = os.stat(error.filename).st_uid == os.geteuid()
        fix = f"chmod -R go-w {shlex.quote(error.filename)}" if is_ours else ANOTHER_FOLDER
        yield Finding("cache", "wrong", text, fix, facts)
        return
    except OSError as error:
        text = f"{root} cannot be written, so that every process compiles its kernels again: {error}"
        yield Finding("cache", "wrong", text, ANOTHER_FOLDER, facts)
        return
    free = shutil.disk_usage(root).free
    text = f"{root} can be written, {size_text(free)} are free"
    yield Finding("cache", "note" if free < SCARCE else "ok", text, facts={**facts, "free_bytes": free})
    held = contents.contents(root)
    stale = [entry for entry in held.entries if is_stale(entry)]
    text = f"{len(held.entries)} kernels, {size_text(sum(entry.nbytes for entry in held.entries))}"
    counts = {
        "entries": len(held.entries),
        "damaged": len(held.damaged),
        "stale": len(stale),
        "leftovers": len(held.leftovers),
    }
    text += "".join(f", {counts[name]} {name}" for name in ("damaged", "stale", "leftovers") if counts[name])
    is_untidy = bool(held.damaged or held.leftovers)
    yield Finding("cache", "note" if is_untidy else "ok", text, REPAIR if is_untidy else "", counts)


def _environment() -> Iterator[Finding]:
    known = {name: os.environ.get(name) for name in VARIABLES}
    told = ", ".join(f"{name}={value}" for name, value in known.items() if value is not None)
    yield Finding("environment", "ok", told or f"none of {', '.join(VARIABLES)} is set", facts=known)
    folder = known["CUCONV_CACHE_DIR"]
    if folder and not os.path.isabs(os.path.expanduser(folder)):
        yield Finding("environment", "note", "CUCONV_CACHE_DIR is relative: every working directory has its own cache")
    try:
        is_checked = contents_are_checked(known["CUCONV_CHECK"])
    except ValueError as error:
        is_checked = False
        yield Finding("environment", "wrong", str(error), "unset CUCONV_CHECK")
    if is_checked:
        yield Finding("environment", "note", "CUCONV_CHECK: index arrays are checked, and every such call waits")


def _torch() -> Iterator[Finding]:
    try:
        spec = importlib.util.find_spec("torch")
    except ValueError:
        spec = None
    if spec is None:
        yield Finding("torch", "note", "not installed; only torch tensors need it", facts={"version": None})
        return
    try:
        import torch

        version, cuda = str(torch.__version__), torch.version.cuda
        has_gpu = bool(torch.cuda.is_available())
    except Exception as error:
        text = f"cannot be imported, which only torch tensors need: {reason_of(error)}"
        yield Finding("torch", "note", text, facts={"version": None})
        return
    facts = {"version": version, "cuda": cuda, "is_available": has_gpu}
    if cuda is None:
        yield Finding(
            "torch", "note", f"{version}, built without CUDA: its tensors are computed on the CPU", facts=facts
        )
    else:
        text = f"{version}, for CUDA {cuda}" + ("" if has_gpu else ", which sees no GPU")
        yield Finding("torch", "ok", text, facts=facts)


def _distribution() -> Iterator[Finding]:
    """Which of the two names fits the driver and torch, and whether what is installed does."""
    cuda = None
    with contextlib.suppress(Exception):
        import torch

        cuda = torch.version.cuda
    driver = cuda_probes.driver_version()
    fitting = distribution.fitting(driver, cuda)
    found, name = distribution.installed(), distribution.NAMES[fitting]
    facts = {"fits": name, "installed": [distribution.NAMES[major] for major in found]}
    because = " and ".join(
        text
        for text in (
            f"a driver for CUDA {cuda_probes.cuda_text(driver)}" if driver is not None else "",
            f"torch for CUDA {cuda}" if cuda is not None else "",
        )
        if text
    )
    text = f"{name} fits {because}" if because else f"{name}, as there is neither a driver nor torch with CUDA"
    if len(found) > 1:
        fix = f"pip uninstall -y {' '.join(distribution.NAMES[major] for major in found)} && {pip_install(name)}"
        yield Finding("distribution", "wrong", f"{text}; both names are installed and share files", fix, facts)
    elif found and fitting not in found:
        yield Finding("distribution", "note", text, pip_install(name), facts)
    else:
        yield Finding("distribution", "ok", text, facts=facts)


PROBES: dict[str, Probe] = {
    "installation": _installation,
    "environment": _environment,
    "driver": cuda_probes.driver,
    "CuPy": cuda_probes.cupy_package,
    "NVRTC": cuda_probes.compiler,
    "GPU": cuda_probes.gpus,
    "cache": _cache,
    "compiling": kernel_probe.copy_kernel,
    "torch": _torch,
    "distribution": _distribution,
}
"""The doctor's probes by subject. Those of torch come last, for importing it loads other CUDA libraries."""

THROUGH_NUMPY = ("CuPy", "NVRTC", "GPU", "compiling")
"""Subjects whose probes import packages that need NumPy."""
