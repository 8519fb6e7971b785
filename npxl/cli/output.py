"""What commands print: results on standard output, remarks on standard error."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import rich.console
from rich.text import Text

from npxl.cli.options import shown

INTERRUPTED = 130
"""The exit code after Ctrl-C or SIGTERM."""


class Console(rich.console.Console):
    """Rich's, except that a closed pipe is an exception, as it is for `print`."""

    def on_broken_pipe(self) -> None:
        """Called by rich while it handles the exception."""
        with open(os.devnull, "wb") as nowhere:  # for what is still to be flushed
            os.dup2(nowhere.fileno(), self.file.fileno())
        raise


def remark(line: str, style: str) -> None:
    """A line on standard error, if anybody reads it."""
    console = Console(stderr=True)
    with suppress(BrokenPipeError):
        console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)


def print_json(values: Mapping[str, Any]) -> None:
    """One JSON object on a line of standard output; what is not a finite number becomes null."""
    print(json.dumps(_finite(values), allow_nan=False))


def print_table(rows: Mapping[str, Any], **blocks: Mapping[str, Any]) -> None:
    """Two columns on standard output; more rows below, under a heading for each block.

    A row is a line, whatever the width, so that what is found by grep is whole.
    """
    console = Console()
    width = max(len(name) for block in (rows, *blocks.values()) for name in block)
    for heading, block in {"": rows, **blocks}.items():
        if heading:
            console.print(f"\n{heading}", style="bold underline")
        for name, value in block.items():
            line = Text.assemble((name.ljust(width), "bold"), "   ", _formatted(value))
            console.print(line, soft_wrap=True)


def _formatted(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:,.6g}" if isinstance(value, float) else shown(value)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
