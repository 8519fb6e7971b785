"""Checks of the mathematics, and their report."""

from npxl.audit.gradients import GradientReport, gradcheck
from npxl.audit.report import AuditReport, audit, scaled_down

__all__ = ["AuditReport", "GradientReport", "audit", "gradcheck", "scaled_down"]
