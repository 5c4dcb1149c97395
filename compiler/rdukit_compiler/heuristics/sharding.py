"""Sharding of a GEMM over PCUs.

A GEMM is ``[M, K] @ [K, N]``: M rows of batch and sequence, K the reduction, N outputs. Source: compiler reference
7.2 (terms, 70 % utilisation); the order n, m, k is ours: cutting K costs an extra reduction of log2(degree) steps.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, prod
from typing import Final

from rdukit.pef.kernel import references
from rdukit_compiler.cost.work import Shape
from rdukit_compiler.ir import ModelGraph, Operator
from rdukit_compiler.patterns.syntax import Scalar

#: A PCU has 16 lanes by 6 stages. Source: compiler reference 8.1, "Unit details".
LANES: Final = 16
STAGES: Final = 6
LEAST_UTILISATION: Final = 0.70
#: ``set`` keys that decide sharding.
SHARD_KEYS: Final = ("m_shard_degree", "n_shard_degree", "k_shard_degree")
SET_KEYS: Final = frozenset({*SHARD_KEYS, "par_factor"})


@dataclass(frozen=True, slots=True)
class Gemm:
    """Sizes in elements."""

    m: int
    k: int
    n: int


def shapes_of(graph: ModelGraph, operator: Operator) -> tuple[list[Shape], list[Shape]]:
    """Return the shapes of an operator's tensor inputs, in argument order, and of its outputs."""
    names = references([*operator.args, *operator.kwargs.values()])
    values = graph.values
    return [(values[n].shape, values[n].dtype) for n in names], [
        (values[n].shape, values[n].dtype) for n in operator.outputs
    ]


def gemm_of(graph: ModelGraph, operator: Operator) -> Gemm:
    """Return the operator, which ``is_gemm`` or attention, as one GEMM; of size 1 where a tensor has no elements."""
    inputs, outputs = shapes_of(graph, operator)
    out = outputs[0][0] or (1,)
    word = operator.op_type
    if "conv" in word and len(out) > 1 and len(inputs) > 1:
        return _at_least_one(prod(out) // max(1, out[1]), prod(inputs[1][0][1:]), out[1])
    if "attention" in word and len(inputs) > 1:
        return _at_least_one(prod(inputs[0][0][:-1]), inputs[0][0][-1], inputs[1][0][-2])
    left = inputs[1 if word in {"addmm", "baddbmm", "addbmm"} and len(inputs) > 1 else 0][0] or (1,)
    return _at_least_one(prod(out[:-1]), left[-1], out[-1])


def _at_least_one(m: int, k: int, n: int) -> Gemm:
    return Gemm(max(1, m), max(1, k), max(1, n))


def utilisation(gemm: Gemm, m: int, n: int, k: int) -> float:
    """Return the part of the PCUs' lanes and stages that does useful work at these degrees; the rest is padding."""
    rows = gemm.m / (m * ceil(gemm.m / m))
    columns = gemm.n / (n * ceil(gemm.n / n / LANES) * LANES)
    depth = gemm.k / (k * ceil(gemm.k / k / STAGES) * STAGES)
    return rows * columns * depth


def choose_sharding(gemm: Gemm, pcus: int, settings: Mapping[str, Scalar]) -> dict[str, int | float]:
    """Return the degrees and parallel factor of a GEMM on ``pcus`` PCUs.

    Degrees in ``settings`` are kept; the others are the largest powers of two that leave utilisation at 70 % or more,
    or at the unsharded utilisation if that is less, and whose product is within ``pcus``.

    Returns:
        ``m_shard_degree``, ``n_shard_degree``, ``k_shard_degree``, ``par_factor`` (PCUs per shard), ``utilisation``.
    """
    degrees = {key: int(settings.get(key, 1)) for key in SHARD_KEYS}
    least = min(LEAST_UTILISATION, utilisation(gemm, 1, 1, 1))
    for key in ("n_shard_degree", "m_shard_degree", "k_shard_degree"):
        if key in settings:
            continue
        while True:
            tried = {**degrees, key: 2 * degrees[key]}
            size = {"m": gemm.m, "n": gemm.n, "k": gemm.k}[key[0]]
            if prod(tried.values()) > pcus or tried[key] > size or utilisation_of(gemm, tried) < least:
                break
            degrees = tried
    shards = prod(degrees.values())
    par = int(settings["par_factor"]) if "par_factor" in settings else max(1, pcus // shards)
    return {**degrees, "par_factor": par, "utilisation": round(utilisation_of(gemm, degrees), 4)}


def utilisation_of(gemm: Gemm, degrees: Mapping[str, int]) -> float:
    """Compute ``utilisation`` of a mapping with ``SHARD_KEYS``."""
    return utilisation(gemm, degrees["m_shard_degree"], degrees["n_shard_degree"], degrees["k_shard_degree"])


def find_illegal_setting(settings: Mapping[str, Mapping[str, Scalar]], pcus: int) -> str | None:
    """Describe an invalid ``set`` key of a group that has ``pcus`` PCUs; None if there is none."""
    for operator, values in settings.items():
        for key in sorted(SET_KEYS & set(values)):
            value = values[key]
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                return f"'set {key}: {value}' of {operator} is not valid; expected an integer from 1 up"
        wanted = prod(int(values.get(key, 1)) for key in SET_KEYS)
        if wanted > pcus:
            return f"the degrees set for {operator} need {wanted} PCUs, but the section has {pcus}"
    return None
