"""Invariants of Transformer-XL as tests, for anybody's implementation of it.

>>> import npxl.testing
>>> @npxl.testing.parametrize(Mine())
... def test_invariants(check, case):
...     check(case)

Needs the extra `test`: pip install 'npxl[test]'.
"""

from __future__ import annotations

import importlib.util

from npxl.errors import NpxlError


class MissingExtra(NpxlError, ImportError):
    """A package is not installed that an extra would have brought along."""


for _package in ("hypothesis", "pytest"):
    if importlib.util.find_spec(_package) is None:
        raise MissingExtra(
            f"npxl.testing draws its examples with Hypothesis, and {_package} is not installed: "
            "pip install 'npxl[test]'. The checks themselves are in npxl.invariants, which needs "
            "neither."
        )

from npxl.invariants import (  # noqa: E402
    CHECKS,
    Case,
    Check,
    Finding,
    Implementation,
    Inapplicable,
    InvariantBroken,
    Vacuous,
    capabilities,
)
from npxl.invariants.adapters import NpxlModel, NpxlReader, NpxlReference  # noqa: E402
from npxl.invariants.torch_module import TorchModule  # noqa: E402
from npxl.invariants.transfoxl import transfoxl  # noqa: E402
from npxl.testing.battery import BoundCheck, NothingShown, parametrize  # noqa: E402
from npxl.testing.strategies import (  # noqa: E402
    cases,
    configs,
    cotangents,
    memories,
    segmentations,
    token_batches,
)
from npxl.testing.streams import StreamMachine, stream_machine  # noqa: E402

__all__ = [
    "CHECKS",
    "BoundCheck",
    "Case",
    "Check",
    "Finding",
    "Implementation",
    "Inapplicable",
    "InvariantBroken",
    "MissingExtra",
    "NothingShown",
    "NpxlModel",
    "NpxlReader",
    "NpxlReference",
    "StreamMachine",
    "TorchModule",
    "Vacuous",
    "capabilities",
    "cases",
    "configs",
    "cotangents",
    "memories",
    "parametrize",
    "segmentations",
    "stream_machine",
    "token_batches",
    "transfoxl",
]
