"""The names that this package is installed by: one for each major version of CUDA."""

from __future__ import annotations

from importlib import metadata

NAMES = {12: "cuconv", 13: "cuconv-cuda13x"}
"""Names of distributions, by the major version of CUDA of their CuPy, NVRTC and headers. Their code is the same."""


def installed() -> dict[int, str]:
    """The versions of the distributions that are installed, by major version of CUDA."""
    found = {}
    for major, name in NAMES.items():
        try:
            found[major] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def version() -> str | None:
    """The version of this package; None when it runs from its source tree."""
    return next(iter(installed().values()), None)


def fitting(driver: int | None, torch: str | None) -> int:
    """The major version of CUDA of the distribution that fits best.

    Args:
        driver: the newest CUDA that the driver supports, such as 12090; None without a driver.
        torch: the CUDA that torch is built for, such as "13.0"; None without it.

    Returns:
        torch's if there is such a distribution and the driver supports it, so that a process loads libraries of one
        version; else the newest that the driver supports; 12 without a driver.
    """
    newest = 12 if driver is None else driver // 1000
    wanted = int(torch.partition(".")[0]) if torch is not None else None
    if wanted in NAMES and (driver is None or wanted <= newest):
        return wanted
    return max((major for major in NAMES if major <= newest), default=12)
