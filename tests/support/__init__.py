"""Fakes for tests, the real interfaces, nothing patched; and how tests wait for other processes."""

from support.helpers import FIND_SUPPORT, FakeClock, wait_until

__all__ = ["FIND_SUPPORT", "FakeClock", "wait_until"]
