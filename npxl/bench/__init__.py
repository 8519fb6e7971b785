"""Speed, measured: named shapes, the arithmetic they need, and peers in the same run."""

_ALL = ("train", "evaluate", "generate")
_SEGMENTS = ("train", "evaluate")

OPTIMIZATIONS = {
    "fused-attention": _SEGMENTS,
    "fused-rectifier": _SEGMENTS,
    "fused-norm": _SEGMENTS,
    "fused-adam": ("train",),
    "kept-memory": _ALL,
    "workers": _SEGMENTS,
    "one-token": ("generate",),
    "projected-memory": ("evaluate", "generate"),
}
"""What `npxl bench --without` can leave out, and for which tasks; `plain` and `sides` say how."""
