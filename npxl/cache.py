"""Where npxl keeps what it can make again: compiled kernels and encoded texts."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def cache_folder() -> Path:
    """What NPXL_CACHE_DIR names, or else npxl's folder in the user's cache; it need not exist."""
    chosen = os.environ.get("NPXL_CACHE_DIR")
    return Path(chosen) if chosen else platformdirs.user_cache_path("npxl", appauthor=False)
