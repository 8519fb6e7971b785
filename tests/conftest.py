"""Hypothesis profiles: quick and repeatable by default, thorough on request."""

import signal

from hypothesis import HealthCheck, settings

# Kernels compile on their first call, which no deadline can foresee.
_COMMON = dict(deadline=None, suppress_health_check=[HealthCheck.too_slow])

settings.register_profile("quick", max_examples=10, derandomize=True, **_COMMON)
settings.register_profile("thorough", max_examples=1000, **_COMMON)
settings.register_profile("exhaustive", max_examples=10_000, **_COMMON)
settings.load_profile("quick")

# A shell tells what runs in its background to ignore Ctrl-C, which some tests are about.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
