"""What figures depend on besides a configuration and a seed: versions, and the processor."""

from __future__ import annotations

import importlib.metadata
import platform


def installed_version(package: str) -> str:
    """Of a package, or "not installed", as npxl is when it is imported from its sources."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


_PACKAGES = ("npxl", "numpy", "numba")


def versions() -> dict[str, str]:
    """Of the packages that compute, of Python and the system; and LLVM's name of the processor."""
    from llvmlite.binding import get_host_cpu_name  # of numba, which takes a while to import

    return {
        **{package: installed_version(package) for package in _PACKAGES},
        "python": platform.python_version(),
        "platform": platform.platform(terse=True),
        "processor": get_host_cpu_name(),
    }
