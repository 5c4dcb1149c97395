"""The ways to record a forward: the quickest first, and slower ones for what it cannot do."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import fx


@dataclass(frozen=True, slots=True)
class Way:
    """How to record.

    ``imports_all``: with all of torch's compilers imported. ``follows_gradients``: autograd follows forward, which
    asks it for a gradient.
    """

    imports_all: bool = False
    follows_gradients: bool = False


def record_some_way(record: Callable[[Way], fx.GraphModule]) -> fx.GraphModule:
    """Record, by another way for as long as a failure asks for one.

    Raises:
        Whatever the first failure was that no other way mends.
    """
    way = Way()
    while True:
        try:
            return record(way)
        except (AttributeError, RuntimeError, TypeError, ValueError) as cause:
            other = find_other_way(way, cause)
            if other == way:
                raise
            way = other
        if way.imports_all:
            importlib.import_module("torch._dynamo")


def find_other_way(way: Way, cause: Exception) -> Way:
    """The way to try after ``cause``; the same one if there is none."""
    text = str(cause)
    if isinstance(cause, AttributeError) and text.startswith("module 'torch."):
        return replace(way, imports_all=True)  # a rare operator takes for granted that somebody has imported it
    if "does not require grad" in text:
        return replace(way, follows_gradients=True)
    return way
