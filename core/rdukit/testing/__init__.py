"""Fakes for tests, the real interfaces, nothing patched; and how tests wait for other processes."""

from rdukit.testing.clock import FakeClock
from rdukit.testing.waiting import wait_until

__all__ = ["FakeClock", "wait_until"]
