"""What an audit checks, in the order in which it does."""

from npxl.audit.frame import Section
from npxl.audit.sections.gradients import GRADIENTS

SECTIONS: tuple[Section, ...] = (GRADIENTS,)
