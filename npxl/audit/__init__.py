"""Checks of the mathematics, and their report."""

from npxl.audit.frame import Subject
from npxl.audit.gradient_report import GradientReport
from npxl.audit.gradients import gradcheck
from npxl.audit.outcome import AuditReport
from npxl.audit.runner import AuditStopped, audit
from npxl.audit.scaling import scaled_down

__all__ = [
    "AuditReport",
    "AuditStopped",
    "GradientReport",
    "Subject",
    "audit",
    "gradcheck",
    "scaled_down",
]
