"""Hypothesis profiles: quick and repeatable by default, thorough on request."""

from hypothesis import HealthCheck, settings

# Kernels compile on their first call, which no deadline can foresee.
_COMMON = dict(deadline=None, suppress_health_check=[HealthCheck.too_slow])

settings.register_profile("quick", max_examples=20, derandomize=True, **_COMMON)
settings.register_profile("thorough", max_examples=1000, **_COMMON)
settings.load_profile("quick")
