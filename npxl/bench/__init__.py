"""Speed, measured: named shapes, the arithmetic they need, and peers in the same run."""

OPTIMIZATIONS = (
    "fused-attention",
    "fused-rectifier",
    "fused-norm",
    "fused-adam",
    "kept-positions",
    "kept-memory",
    "workers",
    "projected-memory",
)
"""What `npxl bench --without` can leave out; `plain` and `sides` say how."""
