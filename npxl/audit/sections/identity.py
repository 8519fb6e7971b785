"""One adjoint identity as a row."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from npxl.audit.frame import Result

TOLERANCE = 1e-13


def identity(name: str, ax: Any, y: Any, x: Any, aty: Any, detail: str = "") -> Result:
    """⟨Ax, y⟩ − ⟨x, Aᵀy⟩, relative to the terms of the sums; arrays, or lists of arrays."""
    left, right = (
        [np.asarray(a) * np.asarray(b) for a, b in zip(_listed(p), _listed(q), strict=True)]
        for p, q in ((ax, y), (x, aty))
    )
    difference = sum(map(np.sum, left)) - sum(map(np.sum, right))
    scale = max(sum(float(np.abs(term).sum()) for term in terms) for terms in (left, right))
    error = abs(float(difference)) / scale if scale else math.nan
    return Result.of(name, error, TOLERANCE, detail)


def _listed(arrays: Any) -> list[Any]:
    return list(arrays) if isinstance(arrays, list | tuple) else [arrays]
