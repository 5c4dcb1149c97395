"""Heuristics: packaged strategies that decide sharding, parallel factors, tiling and section cuts of a group.

To add one, decorate a class with ``@heuristic("…")`` in a module that is imported here. From outside: ``plugins``.
"""

from rdukit_compiler.heuristics import attention, default, gemm
from rdukit_compiler.heuristics.registry import (
    DEFAULT,
    Decisions,
    Heuristic,
    HeuristicRequest,
    find_heuristic,
    heuristic,
    heuristic_names,
)

__all__ = [
    "DEFAULT", "Decisions", "Heuristic", "HeuristicRequest", "attention", "default", "find_heuristic", "gemm",
    "heuristic", "heuristic_names",
]  # fmt: skip
