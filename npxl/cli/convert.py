"""npxl convert."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from rich.table import Table

from npxl.cli.options import AsJson, Which, options_of
from npxl.cli.output import Console, print_json, print_table
from npxl.config import ModelConfig, to_dict
from npxl.errors import NpxlError

if TYPE_CHECKING:
    from npxl.interop.conversion import Row

    Changes = dict[str, Any]
else:
    Changes = options_of(
        ModelConfig,
        ("mem_len", "attn_window", "clamp_len", "ext_len", "initial_memory"),
        default="that of the source",
    )


def convert(
    source: Path,
    /,
    *,
    out: Path,
    to: Literal["npxl", "transfoxl"] | None = None,
    args: Path | None = None,
    checkpoint: Which | None = None,
    changes: Annotated[Changes | None, Parameter(name="*")] = None,
    as_json: AsJson = False,
) -> None:
    """Convert weights from PyTorch, or to it, without a change in a prediction.

    Parameters
    ----------
    source
        A folder of Hugging Face's TransfoXL; a state dict of the original code, with --args; or a
        run or a model of npxl.
    out
        What to make: a file for npxl, a folder for transfoxl. Nothing may be there.
    to
        Whose form to write: npxl's, or Hugging Face's; the other's when not given.
    args
        File of the original code's arguments, JSON or TOML, for its state dict.
    checkpoint
        Of a run, the model with the best validation score, or the last one; the best when not
        given.
    as_json
        Print one JSON object instead of tables.
    """
    from npxl.interop import convert
    from npxl.training.run import Run

    is_run = (source / "run.json").is_file()
    if checkpoint is not None and not is_run:
        raise NpxlError(
            f"{source} is no run, which alone has several models: leave --checkpoint out."
        )
    model = Run.open(source).model(checkpoint or "best") if is_run else source
    done = convert(model, out, to, args, **(changes or {}))
    summary = {
        "from": done.source,
        "to": done.target,
        "out": str(out),
        "parameters": done.n_parameters,
        "dtype": str(done.dtype),
    }
    config = to_dict(done.config)
    if as_json:
        mapped = [
            {"names": row.names, "npxl": row.ours, "shape": row.shape, "tensors": row.n_tensors}
            for row in done.rows
        ]
        print_json({**summary, "model": config, "tensors": mapped})
    else:
        if done.rows:
            Console(width=10_000).print(_table(done.rows))  # a row is a line, whatever the width
        print_table({}, conversion=summary, model=config)


def _table(rows: list[Row]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("PyTorch", "npxl", "shape"):
        table.add_column(heading)
    table.add_column("tensors", justify="right")
    for row in rows:
        table.add_row(
            " = ".join(row.names), ", ".join(row.ours), "×".join(map(str, row.shape)),
            str(row.n_tensors),
        )  # fmt: skip
    return table
