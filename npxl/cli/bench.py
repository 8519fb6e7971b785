"""npxl bench."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from cyclopts.types import PositiveInt
from rich.table import Table

from npxl.bench import OPTIMIZATIONS
from npxl.cli.options import AsJson, Flag
from npxl.cli.output import Console, print_json
from npxl.errors import NpxlError

if TYPE_CHECKING:
    from npxl.bench.run import Result

    Tasks = Sequence[str]
    Optimizations = Sequence[str]
else:
    Tasks = Sequence[Literal["train", "evaluate", "generate"]]
    Optimizations = Sequence[Literal[tuple(OPTIMIZATIONS)]]


def bench(
    *,
    task: Annotated[Tasks, Parameter(negative="", show_default=False, consume_multiple=True)] = (),
    shape: Annotated[
        Sequence[str], Parameter(negative="", show_default=False, consume_multiple=True)
    ] = (),
    peers: Flag = False,
    without: Annotated[
        Optimizations, Parameter(negative="", show_default=False, consume_multiple=True)
    ] = (),
    rounds: PositiveInt = 5,
    threads: PositiveInt | None = None,
    roofline: Path | None = None,
    as_json: AsJson = False,
) -> None:
    """Measure training, evaluation and generation, and what part of the machine's speed they reach.

    Parameters
    ----------
    task
        What to measure; all three when not given.
    shape
        Named shapes to measure it on; when not given, all that the tasks have and that do not take
        minutes.
    peers
        Do the same work with Hugging Face's TransfoXL, in turn; needs the extra peers.
    without
        Do the same work without an optimisation, in turn, where the task has it: the ratio is what
        it earns.
    rounds
        Turns of each side; medians are shown.
    threads
        Threads of each side; one a core when not given.
    roofline
        Draw the results below what this machine allows, into this file (.png, .svg or .pdf).
    as_json
        Print one JSON object.
    """
    from npxl.bench.roofline import check_roofline, draw_roofline
    from npxl.bench.run import SHAPES, measure
    from npxl.bench.shapes import ON_REQUEST
    from npxl.bench.sides import PEERS
    from npxl.threads import available_cores

    chosen = {one: SHAPES[one] for one in SHAPES if one in (task or SHAPES)}
    known = {name for shapes in chosen.values() for name in shapes}
    for name in shape:
        if name not in known:
            raise NpxlError(
                f"There is no shape {name!r} for {', '.join(chosen)}; choose from "
                f"{', '.join(sorted(known))}."
            )
    if peers and not (find_spec("torch") and find_spec("transformers")):
        raise NpxlError("--peers needs torch and transformers: pip install 'npxl[peers]'.")
    if roofline is not None:
        check_roofline(roofline)
    console = Console(stderr=True)
    results: list[Result] = []
    with console.status("") as status:
        for one, shapes in chosen.items():
            for name in shapes:
                if name in (shape or shapes.keys() - ON_REQUEST):
                    left_out = [f"without {part}" for part in without if one in OPTIMIZATIONS[part]]
                    others = [*(PEERS if peers else ()), *left_out]
                    results += measure(one, name, others, rounds, threads, status.update)
    n_threads = threads or available_cores()
    if roofline is not None:
        draw_roofline(results, n_threads, roofline)
    if as_json:
        print_json({"threads": n_threads, "results": [asdict(result) for result in results]})
    else:
        Console().print(_table(results))


def _table(results: Sequence[Result]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("task", "shape", "side"):
        table.add_column(heading)
    for heading in ("tokens/s", "of sgemm", "peak MB", "ratio"):
        table.add_column(heading, justify="right")
    for result in results:
        table.add_row(
            result.task, result.shape, result.side, f"{result.tokens_per_second:,.0f}",
            f"{result.sgemm_share:.0%}",
            "" if result.peak_memory is None else f"{result.peak_memory:,.0f}",
            "" if result.ratio is None else f"{result.ratio:.2f}×",
        )  # fmt: skip
    return table
