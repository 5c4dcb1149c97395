"""``rdukit collective``: plan collectives between RDUs. Other parts add commands by ``rdukit.collective.commands``."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from rdukit.cli.commands import JSON_OPTION, Choice, ExtensibleGroup
from rdukit.cli.tables import Table, print_tables
from rdukit.collectives.events import goal_trace
from rdukit.collectives.faulty_links import MAX_FAULTS, find_faulty_links, rerouted_components
from rdukit.collectives.plan import LARGEST, CollectivePlan, plan_collective
from rdukit.collectives.steps import CollectiveAlgorithm, Op
from rdukit.collectives.topology import GRAMMAR, Machine, break_links, make_machine
from rdukit.errors import InvalidArgument
from rdukit.files.atomic import write_atomic
from rdukit.settings import SND_SOCKET, resolve
from rdukit.snd import SndClient, default_socket
from rdukit.units import format_bytes, format_seconds

F = TypeVar("F", bound=Callable[..., Any])

#: Maximum messages of a written trace.
MAX_MESSAGES: Final = 1_000_000
_UNITS: Final = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}


class VectorSize(click.ParamType[int]):
    """A number of bytes: whole, or with k, M, G (powers of 1000) or Ki, Mi, Gi (of 1024)."""

    name = "BYTES"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?)(k|M|G|Ki|Mi|Gi)?B?", value.strip())
        size = round(float(found[1]) * _UNITS[found[2] or ""]) if found else 0
        if not 1 <= size <= LARGEST:
            self.fail(
                f"{value!r} is not a number of bytes; expected 1 to 1024Gi, such as 4096, 25M, 1G or 25Mi", param, ctx
            )
        return size


def machine_options(command: F) -> F:
    """Give a command ``topology`` and ``broken``."""
    command = click.option(
        "--broken", multiple=True, metavar="LINK",
        help="Broken link, such as node0/xrdu0-xrdu1 or node3.port0; repeatable.",
    )(command)  # fmt: skip
    return click.option("--topology", required=True, metavar="NAME|FILE", help=f"The machine: {GRAMMAR}.")(command)


@click.group(cls=ExtensibleGroup, extended_by="rdukit.collective.commands")
def collective() -> None:
    """Plan collectives between RDUs, nodes and racks, and measure those of this machine.

    Example: rdukit collective plan --ranks 1024 --topology 128xSN30-8 --bytes 1G

    Example: rdukit collective plan --ranks 8 --topology SN30-8 --bytes 1M --json
    """


@collective.command()
@click.option("--ranks", type=click.IntRange(1), required=True, help="Number of ranks that take part.")
@machine_options
@click.option(
    "--faults",
    "use_faults",
    is_flag=True,
    help="Also break links that have active faults on this machine's node, which is node 0.",
)
@click.option(
    "--bytes", "size", type=VectorSize(), required=True, help="Bytes of the complete vector, such as 25M or 1G."
)
@click.option("--op", type=Choice(tuple(map(str, Op))), default=str(Op.ALLREDUCE), show_default=True, help="Operation.")
@click.option(
    "--algorithm",
    type=Choice(tuple(map(str, CollectiveAlgorithm))),
    default=None,
    help="Project this algorithm instead of the fastest.",
)
@click.option("--tiles", type=click.IntRange(1), default=None, help="Tiles of a rank; default: a whole RDU.")
@click.option(
    "--trace-goal", type=click.Path(path_type=Path, dir_okay=False), help="Write the chosen steps as a GOAL schedule."
)
@JSON_OPTION
def plan(
    ranks: int, topology: str, broken: Sequence[str], use_faults: bool, size: int, op: str, algorithm: str | None,
    tiles: int | None, trace_goal: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Compare the algorithms of a collective, and print the chosen one with the reason.

    All times are projected from assumed link figures; --topology FILE.yaml takes your own. Nothing is run.

    Example: rdukit collective plan --ranks 64 --topology 8xSN30-8 --bytes 25M --broken node0/xrdu0-xrdu1

    Example: rdukit collective plan --ranks 8 --topology SN30-8 --bytes 1M --json
    """
    machine = make_machine(topology, tiles or 0)
    machine = break_links(machine, [*broken, *(node_links(machine) if use_faults else ())])
    found = plan_collective(Op(op), machine, ranks, size, None if algorithm is None else CollectiveAlgorithm(algorithm))
    if trace_goal is not None:
        write_trace(trace_goal, found)
    if as_json:
        click.echo(json.dumps(plan_to_dict(found), indent=2))
    else:
        print_tables(plan_tables(found))


def node_links(machine: Machine) -> tuple[str, ...]:
    """Return the links that active faults of this machine's node take out of service; the node is the first one.

    Raises:
        Unavailable: no node daemon runs. InvalidArgument: the machine's nodes lack a faulty component.
    """
    path = resolve(SND_SOCKET)
    with SndClient(Path(path).expanduser() if path else default_socket()) as client:
        faults = client.call("faults", limit=MAX_FAULTS)["faults"]
    found = find_faulty_links(machine, rerouted_components(faults))
    for component in found.unused:
        click.echo(f"{component} is out of service; it connects the host, so no rank uses it", err=True)
    return found.broken


def write_trace(path: Path, found: CollectivePlan) -> None:
    """Write the chosen algorithm's messages as a GOAL schedule.

    Raises:
        InvalidArgument: there are no messages, or too many for a file.
    """
    if found.chosen is None:
        raise InvalidArgument(
            "--trace-goal needs messages, and a single rank sends none; expected --ranks of 2 or more"
        )
    text = goal_trace(found.chosen, found.op, found.machine, found.ranks, found.size, most=MAX_MESSAGES)
    write_atomic(path, text.encode())
    click.echo(f"wrote {path}", err=True)


def plan_to_dict(found: CollectivePlan) -> dict[str, Any]:
    """Return plain values for JSON; seconds and bytes, unrounded."""
    return {
        "op": found.op,
        "topology": found.machine.name,
        "figures": found.machine.figures,
        "links": machine_to_dicts(found.machine),
        "ranks": found.ranks,
        "bytes": found.size,
        "chosen": found.chosen,
        "why": found.why,
        "projected_s": found.terms.seconds,
        "candidates": [
            {"algorithm": c.algorithm, "why_not": c.why_not}
            if c.terms is None
            else {"algorithm": c.algorithm, **asdict(c.terms), "projected_s": c.seconds}
            for c in found.candidates
        ],
        "crossovers": [{"from_bytes": c.size, "algorithm": c.algorithm} for c in found.crossovers],
        "busiest_link_bytes": found.traffic,
        "notes": list(found.notes),
    }


def machine_to_dicts(machine: Machine) -> list[dict[str, Any]]:
    """Return the machine's levels for JSON; levels of one unit are left out."""
    return [asdict(level) for level in machine.levels if level.size > 1]


def plan_tables(found: CollectivePlan) -> list[Table]:
    """Return choice, candidates and crossovers as tables."""
    chosen = "-" if found.chosen is None else f"{found.chosen}, {format_seconds(found.terms.seconds)} (projected)"
    head = [
        ("ranks", f"{found.ranks} of {found.machine.ranks}"),
        ("chosen", chosen),
        ("why", found.why),
        *(("note", note) for note in found.notes),
        ("figures", found.machine.figures),
    ]
    rows = tuple(
        (c.algorithm, "-", "-", "-", "-", f"not: {c.why_not}")
        if c.terms is None
        else (
            c.algorithm, format_seconds(c.terms.latency_s), format_seconds(c.terms.bandwidth_s),
            format_seconds(c.terms.add_s), format_seconds(c.seconds),
            "<- chosen" if c.algorithm is found.chosen else "",
        )
        for c in found.candidates
    )  # fmt: skip
    tables = [Table(f"{found.op} of {format_bytes(found.size)} on {found.machine.name}", ("", ""), tuple(head))]
    if found.candidates:
        columns = ("algorithm", "latency", "bandwidth", "adding", "sum", "")
        tables.append(Table("Candidates (projected)", columns, rows, frozenset(columns[1:5])))
        crossed = tuple((format_bytes(c.size), c.algorithm) for c in found.crossovers)
        tables.append(Table("Fastest by size", ("from", "algorithm"), crossed, frozenset({"from"})))
        tables.append(links_table(found))
    return tables


def links_table(found: CollectivePlan) -> Table:
    """Return a row for each level of links: the assumed figures, and the chosen algorithm's traffic on the busiest."""
    rows = tuple(
        (
            level.name, str(level.size), f"{level.wiring} x{level.ports}", format_seconds(level.latency_s),
            f"{level.bandwidth / 1e9:.4g} GB/s",
            format_bytes(round(found.traffic[level.name])) if level.name in found.traffic else "-",
        )
        for level in found.machine.levels
        if level.size > 1
    )  # fmt: skip
    columns = ("level", "units", "links", "latency", "bandwidth", "busiest, one way")
    return Table("Links (assumed)", columns, rows, frozenset(columns) - {"level", "links"})
