"""The roofline picture (Williams et al. 2009): what speed a machine allows, and what is reached."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from npxl.bench.run import Result, memory_bandwidth
from npxl.errors import NpxlError
from npxl.files import atomic_write

_COLORS = {"train": "#0072b2", "evaluate": "#009e73", "generate": "#d55e00"}
FORMATS = ("png", "svg", "pdf")


def check_roofline(path: Path) -> None:
    """What can be known before anything is measured.

    Raises
    ------
    NpxlError
        When the file's ending is not one of `FORMATS`, or its folder is not there.
    """
    if path.suffix.lstrip(".") not in FORMATS:
        raise NpxlError(f"{path} has to end in .{', .'.join(FORMATS)}, to say what to draw.")
    if not path.parent.is_dir():
        raise NpxlError(f"There is no folder {path.parent} to put the picture into.")


def draw_roofline(results: Sequence[Result], n_threads: int, path: Path) -> None:
    """Draw npxl's results, filled, and its peers', hollow, under this machine's roof.

    The roof is the rate of its matrix product, or its memory bandwidth times the operations for
    each byte that has to be moved, whichever is lower.
    """
    from matplotlib.figure import Figure

    sgemm = max(result.sgemm for result in results)
    bandwidth = memory_bandwidth(n_threads)
    ridge = sgemm / bandwidth  # operations a byte at which both limits are the same
    others = any(result.side != "npxl" for result in results)
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    intensities = [result.arithmetic / result.traffic for result in results]
    low, high = min(*intensities, ridge) / 3, max(*intensities, ridge) * 5
    axes.plot(
        [low, ridge, high], [low * bandwidth / 1e9, sgemm / 1e9, sgemm / 1e9], color="black",
        label=f"sgemm {sgemm / 1e9:,.0f} GFLOP/s, memory {bandwidth / 1e9:,.1f} GB/s",
    )  # fmt: skip
    for result, intensity in zip(results, intensities, strict=True):
        color, ours = _COLORS[result.task], result.side == "npxl"
        speed = result.tokens_per_second * result.arithmetic / 1e9
        axes.plot(intensity, speed, "o", color=color, fillstyle="full" if ours else "none")
        label = result.shape if ours else result.side
        axes.annotate(
            label, (intensity, speed), xytext=(6, -3), textcoords="offset points",
            color=color, fontsize=8 if ours else 6,
        )  # fmt: skip
    for task, color in _COLORS.items():
        if any(result.task == task for result in results):
            axes.plot([], [], "o", color=color, label=task)
    axes.set(
        xscale="log", yscale="log", xlim=(low, high),
        xlabel="arithmetic intensity: operations needed for each byte that has to be moved",
        ylabel="GFLOP/s of needed operations",
        title=f"npxl with {n_threads} threads" + (", others hollow" if others else ""),
    )  # fmt: skip
    axes.grid(which="major", alpha=0.3)
    axes.legend(loc="lower right")
    with atomic_write(path) as file:
        figure.savefig(file, format=path.suffix.lstrip("."), dpi=150)
