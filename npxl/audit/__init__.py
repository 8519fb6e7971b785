"""Checks of the mathematics, and their report."""

from npxl.audit.configuration import audit, scaled_down
from npxl.audit.gradients import gradcheck
from npxl.audit.report import AuditReport, GradientReport

__all__ = ["AuditReport", "GradientReport", "audit", "gradcheck", "scaled_down"]
