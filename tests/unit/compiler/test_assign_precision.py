"""Device dtypes of values, and numbers that the device's dtype cannot hold."""

import math
from dataclasses import replace

import pytest
import torch

from rdukit_compiler.ir import ValueKind
from rdukit_compiler.passes.assign_precision import Precision, assign_precision
from support import shows
from support.graphs import GraphBuilder

pytestmark = shows("precision")


def limit(value: float, precision: str) -> float:
    """The number that ``clamp_min`` takes after the pass."""
    build = GraphBuilder()
    build.op("clamp_min", build.input("x", 2, 3), value, name="y")
    graph = assign_precision(build.build("y"), Precision(precision, False))
    number = graph.operators[-1].args[1]
    assert isinstance(number, float)
    return number


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_numbers_beyond_bf16_become_its_largest(sign: float) -> None:
    assert limit(sign * torch.finfo(torch.float32).max, "bf16") == sign * torch.finfo(torch.bfloat16).max


def test_infinity_nan_and_small_numbers_stay() -> None:
    assert limit(-math.inf, "bf16") == -math.inf
    assert math.isnan(limit(math.nan, "bf16"))
    assert limit(-1e4, "bf16") == -1e4


def test_in_f32_every_number_stays() -> None:
    assert limit(torch.finfo(torch.float32).min, "f32") == torch.finfo(torch.float32).min


@pytest.mark.parametrize(("computes", "expected"), [(False, "bfloat16"), (True, "float32")])
def test_a_cache_whose_rows_are_only_moved_is_rounded_and_one_of_what_it_was_is_not(
    computes: bool, expected: str
) -> None:
    build = GraphBuilder()
    cache = build._value("cache", ValueKind.BUFFER, (4, 8), "float32")
    source, target = (build.input(name, 1, dtype="int64") for name in ("source", "target"))
    row = build.op("index_select", cache, 0, source, shape=(1, 8))
    placed = build.op("index_copy", cache, 0, target, build.op("neg", row) if computes else row)
    graph = replace(build.build(placed), updates={"cache": placed})
    assert assign_precision(graph, Precision("bf16", False)).values["cache"].dtype == expected
