"""npxl with a line of its source changed, beside the one that is imported and stays as it is."""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import npxl

ROOT = Path(npxl.__file__).parent


class Copy:
    """The changed module and all that import it, made anew from their sources.

    `copy["npxl.models.transformer_xl"]` is a module of its own where that one depends on the
    changed one, and else the module that everybody imports.  Kernels that are made anew are plain
    Python; those that they call may be compiled ones.

    Parameters
    ----------
    changed
        Name of the changed module; None for a copy in which nothing is.
    source
        What it consists of.
    anew
        Further modules to make anew.
    """

    def __init__(self, changed: str | None, source: str = "", anew: tuple[str, ...] = ()) -> None:
        self._changed, self._source = changed, source
        roots = [*anew] if changed is None else [changed, *anew]
        self._anew = frozenset().union(*map(dependants, roots)) if roots else frozenset()
        self._modules: dict[str, ModuleType] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._anew:
            return importlib.import_module(name)
        if name not in self._modules:
            module = self._modules[name] = ModuleType(name)
            path = path_of(name)
            importing = {**vars(builtins), "__import__": self._import}
            vars(module).update(__file__=str(path), __package__=package(name))
            vars(module)["__builtins__"] = importing
            source = self._source if name == self._changed else path.read_text(encoding="utf-8")
            exec(compile(source, str(path), "exec"), vars(module))
        return self._modules[name]

    def _import(
        self, name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> Any:
        """Instead of `__import__`, in the modules that are made anew."""
        if not fromlist or level or name.partition(".")[0] != "npxl":
            return builtins.__import__(name, globals, locals, fromlist, level)
        return SimpleNamespace(**{each: self._attribute(name, each) for each in fromlist})

    def _attribute(self, module: str, name: str) -> Any:
        if (module, name) == ("npxl.kernels", "kernel"):
            return uncompiled
        if path_of(f"{module}.{name}").exists():
            return self[f"{module}.{name}"]
        return getattr(self[module], name)


def uncompiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Instead of `npxl.kernels.kernel`."""
    function.py_func = function  # type: ignore[attr-defined]
    return function


def path_of(module: str) -> Path:
    """Where a module of npxl has its source."""
    path = ROOT.joinpath(*module.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def package(module: str) -> str:
    """The package that a module is in; a package is in itself."""
    return module if path_of(module).name == "__init__.py" else module.rpartition(".")[0]


@functools.cache
def dependants(module: str) -> frozenset[str]:
    """A module of npxl and all modules that import it, at any depth."""
    found, new = set(), {module}
    while new:
        found |= new
        new = {name for name, imported in _imports().items() if imported & new} - found
    return frozenset(found)


@functools.cache
def _imports() -> dict[str, set[str]]:
    """By name of a module of npxl, those that it imports when it runs."""
    names = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return {
        name: {each for each in _imported(path) if each in names}
        for name, path in names.items()
        if name != "npxl"  # which imports what it is asked for
    }


def _imported(path: Path) -> Iterator[str]:
    pending: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.ImportFrom):
            assert node.module is not None, "npxl has no relative imports"
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)
        pending.extend(ast.iter_child_nodes(node))
