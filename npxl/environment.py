"""What figures depend on besides a configuration and a seed."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
from functools import cache
from pathlib import Path


def installed_version(package: str) -> str:
    """Of a package, or "not installed", as npxl is when it is imported from its sources."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


_PACKAGES = ("npxl", "numpy", "numba")


def environment() -> dict[str, str]:
    """Versions of what computes, the system, and the processor with the width of its vectors."""
    from llvmlite.binding import get_host_cpu_name  # of numba, which takes a while to import

    from npxl.kernels.vectors import LANES

    return {
        **{package: installed_version(package) for package in _PACKAGES},
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "processor": f"{get_host_cpu_name()} with vectors of {32 * LANES} bits",
    }


@cache
def digest_of_sources() -> str:
    """SHA-256 of the package's Python files: the same if the same code is installed."""
    root, digest = Path(__file__).parent, hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root).as_posix()}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()
