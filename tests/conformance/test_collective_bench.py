"""``rdukit collective bench`` as its user runs it: a row for each size, and no wrong element."""

import json

import pytest
from click.testing import CliRunner

from rdukit.collectives.steps import Op
from rdukit.errors import InvalidArgument
from rdukit_runtime.collectives.bench import bus_factor
from rdukit_runtime.collectives.bench_cli import bench
from support import shows

pytestmark = shows("collective", "collectives")


@pytest.mark.parametrize(
    ("op", "dtype", "more"),
    [
        ("allreduce", "bf16", ["--in-place"]),
        pytest.param("allreduce", "f32", [], marks=pytest.mark.long),
        pytest.param("reduce-scatter", "f32", [], marks=pytest.mark.long),
    ],
)
def test_each_size_has_a_row_of_positive_figures_and_no_wrong_element(op: str, dtype: str, more: list[str]) -> None:
    options = [
        "--ranks",
        "3",
        "--bytes",
        "1k",
        "--bytes",
        "300k",
        "--op",
        op,
        "--dtype",
        dtype,
        "--rounds",
        "1",
        "--json",
        *more,
    ]
    made = CliRunner().invoke(bench, options, catch_exceptions=False)
    rows = json.loads(made.stdout)
    assert [round(row["size"], -2) for row in rows] == [1000, 300_000]
    for row in rows:
        assert row["wrong"] == 0 and min(row["seconds"], row["gloo_seconds"], row["ratio"]) > 0
        assert row["bus_gb_s"] == pytest.approx(row["algorithm_gb_s"] * bus_factor(Op(op), 3))


def test_a_mistyped_operation_is_refused_with_the_nearest() -> None:
    made = CliRunner().invoke(bench, ["--op", "allreduc"])
    assert made.exit_code == 2 and "Did you mean 'allreduce'?" in made.output


def test_only_an_allreduce_is_measured_in_place() -> None:
    with pytest.raises(InvalidArgument, match="--in-place is for allreduce only, not for broadcast"):
        CliRunner().invoke(bench, ["--op", "broadcast", "--in-place"], catch_exceptions=False)


def test_a_link_of_a_ring_carries_a_part_of_a_vector_or_nearly_twice_it() -> None:
    assert [bus_factor(op, 4) for op in Op] == [1.5, 0.75, 0.75, 1.0]
