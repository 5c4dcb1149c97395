"""Fakes for tests, the real interfaces, nothing patched; how tests wait for others; what a file shows."""

from support.helpers import FIND_SUPPORT, FakeClock, wait_until
from support.shown import shows
from support.tiers import first_short

__all__ = ["FIND_SUPPORT", "FakeClock", "first_short", "shows", "wait_until"]
