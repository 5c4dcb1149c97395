"""The fixtures of fences, which several files use."""

from support.fences import folder, run

__all__ = ["folder", "run"]
