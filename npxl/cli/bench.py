"""npxl bench."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from rich.table import Table

from npxl.cli.options import AsJson, Flag
from npxl.cli.output import Console, print_json
from npxl.errors import NpxlError

if TYPE_CHECKING:
    from npxl.bench.run import Result

Task = Literal["train", "evaluate", "generate"]


def bench(
    *,
    task: Sequence[Task] = ("train", "evaluate", "generate"),
    shape: Annotated[Sequence[str], Parameter(show_default=False)] = (),
    peers: Flag = False,
    rounds: int = 5,
    threads: int | None = None,
    json: AsJson = False,
) -> None:
    """Measure training, evaluation and generation, and what part of the machine's speed they reach.

    Parameters
    ----------
    task
        What to measure.
    shape
        Named shapes to measure it on: small, medium, long and base for training, small and base
        for the others; all of them when not given.
    peers
        Do the same work with Hugging Face's TransfoXL, in turn; needs the extra peers.
    rounds
        Turns of each side; medians are shown.
    threads
        Threads of each side; one a core when not given.
    json
        Print one JSON object.
    """
    from npxl.bench.run import SHAPES, measure, sgemm_rate
    from npxl.threads import available_cores

    known = {name for shapes in SHAPES.values() for name in shapes}
    for name in shape:
        if name not in known:
            raise NpxlError(f"There is no shape {name!r}; choose from {', '.join(sorted(known))}.")
    if rounds < 1 or (threads is not None and threads < 1):
        raise NpxlError("rounds and threads must be at least 1.")
    console = Console(stderr=True)
    results: list[Result] = []
    with console.status("") as status:
        for one in task:
            for name in SHAPES[one]:
                if not shape or name in shape:
                    others = ("transformers",) if peers else ()
                    results += measure(one, name, others, rounds, threads, status.update)
    if json:
        print_json({"threads": threads or available_cores(), "sgemm": sgemm_rate(),
                    "results": [asdict(result) for result in results]})  # fmt: skip
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
            f"{result.sgemm_share:.0%}", f"{result.peak_memory:,.0f}",
            "" if result.ratio is None else f"{result.ratio:.2f}×",
        )  # fmt: skip
    return table
