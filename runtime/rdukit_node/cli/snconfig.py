"""``snconfig``: show the node and the host, and set what can be set.

Source: runtime reference 5. ``topo``, ``power``, ``--json`` and the names in the JSON files are ours.
"""

from collections.abc import Callable, Mapping
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
#: Seconds over which the load is taken.
_WINDOW_S: Final = 0.5
_RULED: Final = banner("NODE Info")

#: Parts of a node or host: name → (values, lines without the first banner).
Part = tuple[Tree, list[str]]


def _read_static(reader: Reader, now: datetime) -> Part:
    inventory = reader.ask("inventory")["components"]
    tree = static_tree(_platform(reader), inventory, _stamp(now))
    return tree, static_lines(tree)


def _read_dynamic(reader: Reader, now: datetime) -> Part:
    status = reader.ask("status")
    tree = dynamic_tree(
        status["platform"], reader.ask("op_state")["rdus"], status["tiles"], status["leases"], _stamp(now)
    )
    return tree, dynamic_lines(tree)


def _read_op_state(reader: Reader, now: datetime) -> Part:
    rows: list[Row] = reader.ask("op_state")["rdus"]
    return {"timestamp": _stamp(now), "rdus": rows}, op_state_lines(rows)


def _read_topology(reader: Reader, now: datetime) -> Part:
    found = topology([row["comp_name"] for row in reader.ask("op_state")["rdus"]])
    return {"timestamp": _stamp(now), **found}, topology_lines(found)


def _read_power(reader: Reader, now: datetime) -> Part:
    readings = []
    for pause_s in (0.0, _WINDOW_S):
        SystemClock().sleep(pause_s)
        status = reader.ask("status")
        readings.append(Reading(reader.ask("counters"), status))
    rows: list[Row] = [each.as_json() for each in emulated_readings(*readings)]
    return {"timestamp": _stamp(now), "is_emulated": True, "rdus": rows}, power_lines(rows)


_NODE_PARTS: Final[Mapping[str, Callable[[Reader, datetime], Part]]] = {
    "static": _read_static, "dynamic": _read_dynamic, "op-state": _read_op_state, "topo": _read_topology,
    "power": _read_power,
}  # fmt: skip

#: Every form, in lower case: words → parts of the node that it shows. Source: runtime reference 5; topo is ours.
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
@json_option
@node_options
def snconfig(words: tuple[str, ...], folder: Path | None, as_json: bool, socket_file: Path | None) -> None:
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
    """
    form = tuple(word.lower() for word in words)
    if form[:2] == ("set", "hugepages"):
        _set_huge_pages(form[2:], as_json)
        return
    now = datetime.fromtimestamp(SystemClock().now())
    if form in _NODE_FORMS:
        with Reader(socket_file, read_stored) as reader:
            parts = {name: _NODE_PARTS[name](reader, now) for name in _NODE_FORMS[form]}
            reader.say_age(_TOOL)
        head, kind = _RULED, "node"
    elif form in _HOST_FORMS:
        facts = {"Timestamp": _stamp(now), **read_host()}
        parts, head, kind = {"all": ({**facts}, host_lines(facts))}, [], "host"
    elif form in _RDMA_FORMS:
        parts, head, kind = {"rdma-dev": ({"rdma_devices": []}, rdma_lines([]))}, [], ""
    else:
        raise InvalidArgument(f"no form {' '.join(words)!r}; legal: {', '.join(_FORMS)}")
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
    """Return name of a file that ``-j`` writes: ``show_node_static_<date>_<time>.json``."""
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
        raise InvalidArgument(f"set hugepages takes one whole number of 1 GiB pages, not {' '.join(words)!r}")
    count = int(words[0])
    before = set_huge_pages(count)
    answer = {"huge_pages": count, "before": before}
    click.echo(json_text(answer) if as_json else f"Huge pages of 1 GiB: {count} (before: {before})")


def _platform(reader: Reader) -> str:
    return str(reader.ask("hello")["platform"])


def _stamp(now: datetime) -> str:
    return now.strftime("%Y-%m-%d %H:%M:%S")


def main() -> None:
    """Entry point."""
    run_command(snconfig)


if __name__ == "__main__":
    main()
