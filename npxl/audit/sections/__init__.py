"""What an audit checks, in the order in which it does."""

from npxl.audit.frame import Section
from npxl.audit.sections.determinism import DETERMINISM
from npxl.audit.sections.gradients import GRADIENTS
from npxl.audit.sections.numerics import NUMERICS
from npxl.audit.sections.recurrence import RECURRENCE
from npxl.audit.sections.structure import STRUCTURE
from npxl.audit.sections.truncation import TRUNCATION

SECTIONS: tuple[Section, ...] = (
    GRADIENTS,
    STRUCTURE,
    TRUNCATION,
    RECURRENCE,
    NUMERICS,
    DETERMINISM,
)
