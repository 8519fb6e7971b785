"""Speed, measured: named shapes, the arithmetic they need, and peers in the same run."""

_ALL = ("train", "evaluate", "generate")

OPTIMIZATIONS = {
    "fused-attention": ("train", "evaluate"),
    "fused-rectifier": _ALL,
    "fused-norm": _ALL,
    "fused-adam": ("train",),
    "kept-positions": ("train",),
    "kept-memory": _ALL,
    "workers": _ALL,
    "one-token": ("generate",),
    "projected-memory": ("evaluate", "generate"),
}
"""What `npxl bench --without` can leave out, and for which tasks; `plain` and `sides` say how."""
