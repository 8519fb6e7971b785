"""The paper's claims, each as a study: from a setting to numbers, a table and a picture.

docs/studies.md says what each measures, docs/claims.md which have been run at their full setting.
"""

from __future__ import annotations

from npxl.studies import ablation, attention, fragmentation, memory, reach, recl, speed
from npxl.studies.frame import Result, Statement, Study, Table
from npxl.studies.lab import Lab, StudyStopped
from npxl.studies.runner import Outcome, admit, conduct

_MODULES = (reach, fragmentation, memory, speed, recl, ablation, attention)

STUDIES = {module.STUDY.name: module.STUDY for module in _MODULES}
"""By name, in the order in which they are shown."""

__all__ = [
    "STUDIES",
    "Lab",
    "Outcome",
    "Result",
    "Statement",
    "Study",
    "StudyStopped",
    "Table",
    "admit",
    "conduct",
]
