"""The command line: npxl train, eval, generate and others; see docs/command_line.md.

One file a command.  Commands import what they need when they run, so that help is there before
NumPy and Numba are.
"""

from __future__ import annotations

import errno
import inspect
import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from cyclopts import App, CycloptsError, Parameter

from npxl.cli.audit import audit, names_of_sections
from npxl.cli.bench import bench
from npxl.cli.convert import convert
from npxl.cli.evaluate import evaluate
from npxl.cli.generate import generate
from npxl.cli.info import info
from npxl.cli.options import converted
from npxl.cli.output import INTERRUPTED, Console, remark
from npxl.cli.study import names_of_studies, study
from npxl.cli.train import train
from npxl.environment import installed_version
from npxl.errors import NpxlError
from npxl.signals import sigterm_like_ctrl_c

app = App(
    name="npxl",
    help="Transformer-XL in NumPy and Numba, with every gradient written by hand.",
    help_format="markdown",
    version=lambda: f"npxl {installed_version('npxl')}",
    default_parameter=Parameter(converter=converted),
    result_action="return_value",
    exit_on_error=False,
    print_error=False,
    suppress_keyboard_interrupt=False,
)


def _usage(name: str, command: Callable[..., Any]) -> str:
    """With the names of the arguments, which cyclopts calls ARGS when they may be left out."""
    arguments = []
    for each in inspect.signature(command).parameters.values():
        argument = each.name.upper()
        if each.kind is each.VAR_POSITIONAL:
            arguments.append(f"[{argument}...]")
        elif each.kind is each.POSITIONAL_ONLY:
            arguments.append(argument if each.default is each.empty else f"[{argument}]")
    return " ".join(["Usage: npxl", name, *arguments, "[OPTIONS]"])


_COMMANDS: dict[str, Callable[..., Any]] = {
    "train": train,
    "eval": evaluate,
    "generate": generate,
    "audit": audit,
    "bench": bench,
    "study": study,
    "convert": convert,
    "info": info,
}
for _position, (_name, _command) in enumerate(_COMMANDS.items()):
    app.command(_command, name=_name, sort_key=_position, usage=_usage(_name, _command))

_BELOW_THE_HELP = {"audit": names_of_sections, "study": names_of_studies}
"""What the help of a command lists, by registries that need NumPy: only that help waits for it."""


def main(words: Sequence[str] | None = None) -> int:
    """Run one command.

    Parameters
    ----------
    words
        What follows `npxl`; the arguments of this process when not given.

    Returns
    -------
    int
        Exit code: 0; 1 when an audit fails or a score is not finite; 2 after an error that the user
        can put right, said in one sentence on standard error; 130 after Ctrl-C or SIGTERM.
    """
    words = list(sys.argv[1:] if words is None else words)
    code: int | None = 0
    _prepare_output()
    try:
        os.getcwd()
    except FileNotFoundError:
        return _fail("The working folder has been deleted: change to another one.")
    try:
        app.console = Console()
        command, bound, ignored = app.parse_args(words, exit_on_error=False, print_error=False)
        if "words" in ignored:
            bound.arguments["words"] = words
        if command == app.help_print:
            _list_below_the_help(words)
        with sigterm_like_ctrl_c():
            code = command(*bound.args, **bound.kwargs)
        sys.stdout.flush()
    except (NpxlError, CycloptsError) as error:
        return _fail(str(error))
    except MemoryError as error:
        why = f" ({error})" if str(error) else ""
        return _fail(f"There is not enough memory{why}: choose a smaller model, memory or batch.")
    except BrokenPipeError:
        _discard_output()  # whoever read it has enough
    except OSError as error:
        if error.filename is None and error.errno != errno.ENOSPC:
            raise
        if error.filename is None:
            _discard_output()
        return _fail(f"{error.filename or 'The output cannot be written'}: {error.strerror}.")
    except KeyboardInterrupt:
        remark("npxl: Stopped.", style="yellow")
        return INTERRUPTED
    return int(code or 0)


def _list_below_the_help(words: Sequence[str]) -> None:
    chain, _, _ = app.parse_commands(words)
    for name in chain:
        if name in _BELOW_THE_HELP:
            app[name].help_epilogue = _BELOW_THE_HELP[name]()


def _prepare_output() -> None:
    """Output that nobody opened is discarded; a symbol that its encoding lacks is replaced."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  (open until the process ends)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _discard_output() -> None:
    """Send what Python still flushes at its end to nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(sentence: str) -> int:
    remark(f"npxl: {sentence}", style="red")
    return 2
