"""Fakes for tests: the real interfaces, nothing patched."""

from rdukit.testing.clock import FakeClock

__all__ = ["FakeClock"]
