"""``snconfig``: show the node and the host, and change settings.

Source: runtime reference 5. ``topo``, ``power``, ``--json`` and the names in the JSON files are ours.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

import click

from rdukit import __version__
from rdukit.cli import run_command
from rdukit.errors import InvalidArgument
from rdukit.files.atomic import write_json_atomic
from rdukit.interfaces import SystemClock
from rdukit_node.cli.node_views import (
    Row,
    Tree,
    banner,
    dynamic_lines,
    dynamic_tree,
    host_lines,
    op_state_lines,
    power_lines,
    rdma_lines,
    rdus_of_job,
    rows_around,
    static_lines,
    static_tree,
    topology,
    topology_lines,
)
from rdukit_node.cli.output import Reader, json_option, json_text, node_options, read_stored
from rdukit_node.host_info import read_host, set_huge_pages
from rdukit_node.telemetry.emulated import emulated_readings
from rdukit_node.telemetry.sampling import Reading

_TOOL: Final = "snconfig"
#: Seconds over which the load is measured.
_WINDOW_S: Final = 0.5
_RULED: Final = banner("NODE Info")

#: Parts of a node or host: name → (values, lines without the first banner).
Part = tuple[Tree, list[str]]


class NodeRows:
    """A node's rows about components: all, or the RDUs on which a job holds tiles, with their parts."""

    def __init__(self, reader: Reader, now: datetime, job: str | None) -> None:
        """Query the RDUs of ``job``."""
        self.now = now
        self.ask = reader.ask
        self._rdus = None if job is None else rdus_of_job(self.ask("status"), job)

    def keep(self, rows: Sequence[Row]) -> list[Row]:
        """Return the rows of these RDUs, of their parts and of their modules."""
        return list(rows) if self._rdus is None else rows_around(rows, self._rdus)


def _read_static(node: NodeRows) -> Part:
    inventory = node.keep(node.ask("inventory")["components"])
    tree = static_tree(str(node.ask("hello")["platform"]), inventory, _stamp(node.now))
    return tree, static_lines(tree)


def _read_dynamic(node: NodeRows) -> Part:
    status, rdus = node.ask("status"), node.keep(node.ask("op_state")["rdus"])
    tree = dynamic_tree(status["platform"], rdus, status["tiles"], status["leases"], _stamp(node.now))
    return tree, dynamic_lines(tree)


def _read_op_state(node: NodeRows) -> Part:
    rows = node.keep(node.ask("op_state")["rdus"])
    return {"timestamp": _stamp(node.now), "rdus": rows}, op_state_lines(rows)


def _read_topology(node: NodeRows) -> Part:
    found = topology([row["comp_name"] for row in node.keep(node.ask("op_state")["rdus"])])
    return {"timestamp": _stamp(node.now), **found}, topology_lines(found)


def _read_power(node: NodeRows) -> Part:
    readings = []
    for pause_s in (0.0, _WINDOW_S):
        SystemClock().sleep(pause_s)
        status = node.ask("status")
        readings.append(Reading(node.ask("counters"), status))
    rows = node.keep([each.as_json() for each in emulated_readings(*readings)])
    return {"timestamp": _stamp(node.now), "is_emulated": True, "rdus": rows}, power_lines(rows)


_NODE_PARTS: Final[Mapping[str, Callable[[NodeRows], Part]]] = {
    "static": _read_static, "dynamic": _read_dynamic, "op-state": _read_op_state, "topo": _read_topology,
    "power": _read_power,
}  # fmt: skip

#: All forms of the command, in lower case, with the shown parts of the node. Source: runtime reference 5; topo is ours.
_NODE_FORMS: Final[Mapping[tuple[str, ...], tuple[str, ...]]] = {
    ("show", "node", "static"): ("static",),
    ("show", "node", "dynamic"): ("dynamic",),
    ("show", "node", "all"): ("static", "dynamic"),
    ("show", "node"): ("static", "dynamic"),
    ("show", "node", "op-state"): ("op-state",),
    ("show", "node", "topo"): ("topo",),
    ("show", "node", "power"): ("power",),
}
_HOST_FORMS: Final = (("show", "host", "all"), ("show", "host"))
_RDMA_FORMS: Final = (("show", "rdma-dev"), ("rdma-dev",))
_FORMS: Final = (
    "show Node static|dynamic|all|op-state|topo|power", "show Host all", "show rdma-dev", "rdma-dev", "set hugepages N",
)  # fmt: skip


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="snconfig")
@click.argument("words", nargs=-1, required=True, metavar="FORM")
@click.option("-j", "folder", type=click.Path(path_type=Path), metavar="DIR", help="Also write JSON files into DIR.")
@click.option("--job", metavar="ID", help="With show Node: only RDUs on which this job holds tiles.")
@json_option
@node_options
def snconfig(
    words: tuple[str, ...], folder: Path | None, job: str | None, as_json: bool, socket_file: Path | None
) -> None:
    """Show the node's configuration and state, and the host's.

    \b
    Forms:
      show Node static      platform, modules, chips, tiles, links, memory
      show Node dynamic     free tiles, owners, and the word perfect
      show Node all         both
      show Node op-state    operational state of each RDU
      show Node topo        how the RDUs are joined
      show Node power       power, temperature, clock of each RDU, emulated
      show Host all         processor, memory, huge pages
      show rdma-dev         RDMA devices
      set hugepages N       reserve N host pages of 1 GiB (root)

    Example: snconfig show Node dynamic | grep perfect

    Example: snconfig show Node power --json
    """
    form = tuple(word.lower() for word in words)
    if job is not None and form[:2] != ("show", "node"):
        raise InvalidArgument(f"--job is only for show Node, not for {' '.join(words)!r}; leave it out")
    if form[:2] == ("set", "hugepages"):
        _set_huge_pages(form[2:], as_json)
        return
    now = datetime.fromtimestamp(SystemClock().now())
    if form in _NODE_FORMS:
        with Reader(socket_file, read_stored) as reader:
            node = NodeRows(reader, now, job)
            parts = {name: _NODE_PARTS[name](node) for name in _NODE_FORMS[form]}
            reader.say_age(_TOOL)
        head, kind = _RULED, "node"
    elif form in _HOST_FORMS:
        facts = {"Timestamp": _stamp(now), **read_host()}
        parts, head, kind = {"all": ({**facts}, host_lines(facts))}, [], "host"
    elif form in _RDMA_FORMS:
        parts, head, kind = {"rdma-dev": ({"rdma_devices": []}, rdma_lines([]))}, [], ""
    else:
        raise InvalidArgument(f"no form {' '.join(words)!r}; expected {', '.join(_FORMS)}")
    _print_parts(parts, head, as_json)
    if folder is not None:
        for name, (values, _) in parts.items():
            file = folder / file_name((kind, name), now)
            try:
                write_json_atomic(file, values)
            except OSError as cause:
                raise InvalidArgument(f"-j {folder}: {file.name} cannot be written: {cause.strerror}") from cause
            click.echo(str(file), err=as_json)


def file_name(form: tuple[str, ...], now: datetime) -> str:
    """Return the name of a file that ``-j`` writes: ``show_node_static_<date>_<time>.json``."""
    words = [word.replace("-", "_") for word in ("show", *form) if word]
    return "_".join([*words, now.strftime("%Y-%m-%d_%H-%M-%S")]) + ".json"


def _print_parts(parts: Mapping[str, Part], head: list[str], as_json: bool) -> None:
    if as_json:
        values = [each for each, _ in parts.values()]
        click.echo(json_text(values[0] if len(values) == 1 else {name: each for name, (each, _) in parts.items()}))
        return
    lines = list(head)
    for _, part_lines in parts.values():
        lines += part_lines
    click.echo("\n".join(lines))


def _set_huge_pages(words: tuple[str, ...], as_json: bool) -> None:
    if len(words) != 1 or not words[0].isdigit() or len(words[0]) > 9:
        raise InvalidArgument(f"set hugepages got {' '.join(words)!r}; expected one whole number of 1 GiB pages")
    count = int(words[0])
    before = set_huge_pages(count)
    answer = {"huge_pages": count, "before": before}
    click.echo(json_text(answer) if as_json else f"Huge pages of 1 GiB: {count} (before: {before})")


def _stamp(now: datetime) -> str:
    return now.strftime("%Y-%m-%d %H:%M:%S")


def main() -> None:
    """Entry point."""
    run_command(snconfig)


if __name__ == "__main__":
    main()
