"""The cost model beside the published figures: the benchmark's own code, without its slowest workloads."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from support import shows

pytestmark = shows("profile", "o0", "o3")

BENCHMARKS = Path(__file__).parents[2] / "benchmarks" / "programs"


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        spec = importlib.util.spec_from_file_location("bench_cost_model", BENCHMARKS / "bench_cost_model.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(BENCHMARKS))
    return module


@pytest.mark.long
@pytest.mark.parametrize("workload", ["gpt2 o3 step", "gpt2 o0 step", "bert-large o3"])
def test_the_median_ratio_to_published_training_figures_is_within_one_and_a_half(
    bench: ModuleType, workload: str
) -> None:
    points = list(bench.compare(workload))
    assert len(points) >= 5
    assert bench.medians(points)["all"] <= 1.5
    assert all(p.note for p in points if p.ratio > 1.5)


@pytest.mark.long
def test_decoding_one_sequence_on_eight_sockets_is_within_one_and_a_half(bench: ModuleType) -> None:
    (point,) = bench.compare("llama3-8b decode rate")
    assert point.ratio <= 1.5


def test_every_point_says_whether_a_constant_was_taken_from_it(bench: ModuleType) -> None:
    points = yaml.safe_load((BENCHMARKS / "published_points.yaml").read_text())["points"]
    uses = {use for p in points for use in (p["use"].values() if isinstance(p["use"], dict) else [p["use"]])}
    assert uses == {"calibrated", "held out"}
    assert all(callable(getattr(bench, p["what"])) for p in points)
