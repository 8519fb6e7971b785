"""Which versions are installed."""

from __future__ import annotations

import importlib.metadata


def installed_version(package: str) -> str:
    """Of a package, or "not installed", as npxl is when it is imported from its sources."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
