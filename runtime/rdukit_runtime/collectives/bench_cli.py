"""``rdukit collective bench``: times of collectives on this machine. torch is imported when it runs, not for help."""

import json
from typing import TYPE_CHECKING

import click

from rdukit.cli.commands import JSON_OPTION, Choice
from rdukit.collectives.cli import VectorSize
from rdukit.collectives.steps import Op
from rdukit.errors import InvalidArgument

if TYPE_CHECKING:
    from rdukit.cli.tables import Table
    from rdukit_runtime.collectives.bench import BenchRow

#: Bytes of the complete vectors that are measured by default.
SIZES = ("4k", "256k", "1M", "16M")


@click.command()
@click.option(
    "--ranks", type=click.IntRange(2, 64), default=2, show_default=True, help="Number of participating processes."
)
@click.option(
    "--bytes", "sizes", type=VectorSize(), multiple=True, help=f"Bytes of the complete vector; repeat for more.  "
    f"[default: {', '.join(SIZES)}]",
)  # fmt: skip
@click.option("--op", type=Choice(tuple(map(str, Op))), default=str(Op.ALLREDUCE), show_default=True, help="Operation.")
@click.option("--dtype", type=Choice(("f32", "bf16")), default="f32", show_default=True, help="Type of the values.")
@click.option("--rounds", type=click.IntRange(1), default=9, show_default=True, help="Number of calls for the median.")
@click.option("--in-place", is_flag=True, help="Put the vector of an allreduce into shared memory.")
@JSON_OPTION
def bench(
    ranks: int, sizes: tuple[int, ...], op: str, dtype: str, rounds: int, in_place: bool, as_json: bool
) -> None:  # fmt: skip
    """Measure collectives between processes of this machine, rdukit's and gloo's in turn.

    A vector's bytes over the time is the algorithm's bandwidth. The bus's figure is the load of a ring's link, so that
    numbers of ranks and operations can be compared. Elements are wrong if they differ from the sum in rank order.

    Example: rdukit collective bench --ranks 4 --bytes 16M

    Example: rdukit collective bench --ranks 2 --in-place
    """
    from rdukit.cli.tables import print_tables
    from rdukit_runtime.collectives.bench import BenchRequest, measure_all

    if in_place and op != Op.ALLREDUCE:
        raise InvalidArgument(f"--in-place is for allreduce only, not for {op}; leave it out")
    given = sizes or tuple(VectorSize().convert(size, None, None) for size in SIZES)
    rows = measure_all(BenchRequest(Op(op), dtype, given, rounds, in_place), ranks)
    if as_json:
        click.echo(json.dumps([row.as_dict() for row in rows], indent=2))
    else:
        print_tables([bench_table(rows, ranks, op, dtype)])


def bench_table(rows: "list[BenchRow]", ranks: int, op: str, dtype: str) -> "Table":
    """Return a row for each size."""
    from rdukit.cli.tables import Table
    from rdukit.units import format_bytes, format_seconds

    columns = ("bytes", "time", "algorithm GB/s", "bus GB/s", "wrong", "gloo", "ratio", "ratio by CPU")
    shown = tuple(
        (
            format_bytes(row.size), format_seconds(row.seconds), f"{row.algorithm_gb_s:.3g}", f"{row.bus_gb_s:.3g}",
            str(row.wrong), format_seconds(row.gloo_seconds), f"{row.gloo_seconds / row.seconds:.2f}",
            f"{row.gloo_cpu_s / row.cpu_s:.2f}" if row.cpu_s else "-",
        )
        for row in rows
    )  # fmt: skip
    return Table(f"{op}, {ranks} ranks, {dtype} (medians, measured here)", columns, shown, frozenset(columns))
