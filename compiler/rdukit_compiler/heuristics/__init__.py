"""Heuristics: packaged strategies that decide sharding, parallel factors, tiling and section cuts of a group.

To add one, write ``heuristics/<name>.py`` with ``@heuristic("…")`` and import it here. From outside: ``plugins``.
"""

from rdukit_compiler.heuristics import default_o3, gpt2_qkv, mha, safe_gemm, safe_inference_gemm, sdpa
from rdukit_compiler.heuristics.registry import (
    DEFAULT,
    Decisions,
    Heuristic,
    Request,
    find_heuristic,
    heuristic,
    heuristic_names,
)

__all__ = [
    "DEFAULT", "Decisions", "Heuristic", "Request", "default_o3", "find_heuristic", "gpt2_qkv", "heuristic",
    "heuristic_names", "mha", "safe_gemm", "safe_inference_gemm", "sdpa",
]  # fmt: skip
