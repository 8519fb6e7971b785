"""What follows from the form of the equations alone, without a step size."""

from npxl.audit.frame import Section
from npxl.audit.sections.adjoint import ADJOINT
from npxl.audit.sections.sums import SUMS, TIED
from npxl.audit.sections.zeros import ZEROS

STRUCTURE = Section(
    name="structure",
    title="Structure: transposes, sums and exact zeros",
    proves="A backward pass is made of transposes and sums. Both can be checked to rounding, "
    "without a difference quotient, and where the equations have no path for a gradient there is "
    "not even rounding.",
    checks=(ADJOINT, TIED, SUMS, ZEROS),
)
