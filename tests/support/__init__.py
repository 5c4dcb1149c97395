"""Fakes for tests, the real interfaces, nothing patched; and how tests wait for other processes."""

from support.helpers import FakeClock, wait_until

__all__ = ["FakeClock", "wait_until"]
