"""Which checks notice which faults: all of them on all of them, as a page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

import numpy as np

from broken.catalogue import KINDS, MUTANTS
from broken.catching import broken_model, caught
from broken.mutant import Mutant
from npxl import NpxlError
from npxl.invariants import CHECKS

ERRORS = (ArithmeticError, IndexError, ValueError, NpxlError)
"""What a broken model may raise instead of an answer."""

EXAMPLES = 3
"""That each check is given of each broken model."""

FIRST = 12
"""Examples in which a check has to find a fault that it is to name."""

_HEAD = """\
# Broken models

A battery of checks is worth what it catches. So there are {n_mutants} copies of npxl each of which
is broken by one wrong line, many of them by a fault that was reported of another implementation
([known faults](known_faults.md)), and a test gives each to the checks that have to notice it:
[`tests/test_broken_models.py`](../tests/test_broken_models.py). The lines are in
[`tests/broken/`](../tests/broken). A copy is compiled from the changed source, beside the package
that is imported, which stays as it is.

Below is what all checks say of all of them, given the first {examples} of a fixed sequence of
examples. What is **bold** is what the test demands, within the first {first}. A check that is not
named was content, or does not apply to that model, or the model raised an error of its own.
`check_reference` knows what a Transformer-XL or an LSTM computes; the others, made for anybody's,
know what none may do.

No right model is accused: [`tests/test_testing.py`](../tests/test_testing.py) gives models of
all configurations to all checks, ten examples of each in the tests and any number on request:

```console
$ pytest tests/test_testing.py -k accused --hypothesis-profile=exhaustive
```

draws 10,000 for each check and each kind of model, which takes hours.

This page is what `python tests/broken_matrix.py > docs/broken_models.md` writes. The tests hold its
rows against the lines of the source, and with `--hypothesis-profile=thorough` against the checks.
What a fault of a kernel reads beside its tiles depends on the width of vectors, and with it who
else notices: these are rows of a processor with AVX-512.
"""


def noticing(mutant: Mutant) -> tuple[str, ...]:
    """The checks that say what is broken, on the first examples."""
    np.random.seed(0)  # noqa: NPY002, the generator that some faults consist in
    model, names = broken_model(mutant), []
    for name, check in CHECKS.items():
        # An error of the model's own is none of the check's words.
        with suppress(*ERRORS):
            if caught(check, model, FIRST if name in mutant.caught_by else EXAMPLES):
                names.append(name)
    return tuple(names)


def page(noticed: Mapping[str, Iterable[str]]) -> str:
    """The page, given the names of the checks that notice each fault."""
    lines = [_HEAD.format(n_mutants=len(MUTANTS), examples=EXAMPLES, first=FIRST)]
    for kind, (what, _) in KINDS.items():
        lines += [f"## {kind.capitalize()}: {what}", "", "| fault | where | noticed by |"]
        lines += ["|---|---|---|"]
        for mutant in MUTANTS:
            if mutant.kind == kind:
                lines.append(_row(mutant, noticed[mutant.name]))
        lines.append("")
    lines += ["## What each check is there for", ""]
    lines += ["| check | faults that it notices | how few other checks notice one of them |"]
    lines += ["|---|---|---|"]
    for check in CHECKS:
        others = [len(tuple(checks)) - 1 for checks in noticed.values() if check in checks]
        lines.append(f"| `{check}` | {len(others)} | {min(others, default='—')} |")
    return "\n".join(lines) + "\n"


def rows(text: str) -> dict[str, tuple[str, ...]]:
    """The checks that notice each fault, as a page says."""
    found = {}
    names = {mutant.name for mutant in MUTANTS}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        fault = cells[0].partition(" (")[0]
        if line.startswith("| ") and fault in names:
            found[fault] = tuple(each.strip("*` ") for each in cells[-1].split(",") if each)
    return found


def _row(mutant: Mutant, checks: Iterable[str]) -> str:
    known = f" ({', '.join(mutant.known_as)})" if mutant.known_as else ""
    named = [f"**`{each}`**" if each in mutant.caught_by else f"`{each}`" for each in checks]
    where = mutant.where.replace(":", ": ")
    return f"| {mutant.name}{known} | `{where}` | {', '.join(named)} |"
