"""What a fault is: one line of npxl, what stands there instead, and who has to notice."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from broken.copies import Copy, path_of


@dataclass(frozen=True)
class Mutant:
    """One line of npxl that is wrong.

    Attributes
    ----------
    name
        The fault, in a few words.
    kind
        What is wrong then: a key of `KINDS`.
    where
        The function, as `module:function` or `module:Class.method`, below npxl.
    before
        The line, which occurs once in that function; without its indentation.
    after
        What stands there instead.
    caught_by
        Checks each of which has to find it in its first few examples.
    options
        Of the configuration, where the fault does not show in the ordinary one.
    known_as
        Sources of docs/known_faults.md where somebody reported this fault.
    reads
        How the broken model is read: by forward and backward, or by its reader.
    architecture
        Which kind of model is broken.
    """

    name: str
    kind: str
    where: str
    before: str
    after: str
    caught_by: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    known_as: tuple[str, ...] = ()
    reads: str = "NpxlModel"
    architecture: str = "transformer_xl"

    @property
    def module(self) -> str:
        """Name of the module that the line is in."""
        return "npxl." + self.where.partition(":")[0]

    @cached_property
    def lines(self) -> list[int]:
        """Numbers of the lines of the function that are `before`, counted from 0."""
        lines = path_of(self.module).read_text(encoding="utf-8").splitlines()
        function = _find(ast.parse("\n".join(lines)), self.where.partition(":")[2].split("."))
        numbers = range(function.lineno - 1, function.end_lineno or 0)
        return [n for n in numbers if lines[n].strip() == self.before]

    def source(self) -> str:
        """The module's source with the fault."""
        lines = path_of(self.module).read_text(encoding="utf-8").splitlines()
        (n,) = self.lines
        indentation = lines[n][: len(lines[n]) - len(lines[n].lstrip())]
        lines[n] = indentation + self.after
        return "\n".join(lines) + "\n"

    def package(self) -> Copy:
        """npxl with the fault."""
        return Copy(self.module, self.source())


def _find(node: ast.AST, names: list[str]) -> ast.FunctionDef:
    for name in names:
        (node,) = (
            each
            for each in ast.iter_child_nodes(node)
            if isinstance(each, ast.FunctionDef | ast.ClassDef) and each.name == name
        )
    assert isinstance(node, ast.FunctionDef)
    return node
