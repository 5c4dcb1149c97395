"""Place of boxes in Slurm: this machine's node, its partition, and the resource that counts tiles."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rdukit.errors import InvalidArgument
from rdukit.settings import Setting

SLURM_PARTITION: Final = Setting(
    "slurm.partition", "", "Slurm partition for job boxes; default: the cluster's default partition.", str
)
SLURM_NODE: Final = Setting(
    "slurm.node", "", "Slurm's node name of this machine; default: the node with this host.", str
)
SLURM_GRES: Final = Setting(
    "slurm.gres", "rdu_tile",
    "Slurm generic resource that counts tiles: a job requests one per tile; empty: none.", str,
)  # fmt: skip
SLURM_OPTIONS: Final = Setting(
    "slurm.options", "", "Further sbatch options for all boxes, such as `--account=ml --cpus-per-task=4`.", str
)
SLURM_WAIT_S: Final = Setting(
    "slurm.wait_s", 300.0,
    "Seconds that a box may wait for its Slurm allocation before its job returns its tiles and is queued again.",
    float,
)  # fmt: skip
#: Options that rdukit sets, so ``slurm.options`` may not.
RESERVED: Final = frozenset({
    "job-name", "J", "comment", "output", "o", "error", "e", "input", "i", "open-mode", "chdir", "D", "nodelist", "w",
    "nodes", "N", "ntasks", "n", "partition", "p", "gres", "export", "export-file", "get-user-env", "requeue",
    "no-requeue", "parsable", "array", "a", "wrap", "time", "t", "wait", "W", "uid", "gid", "clusters", "M",
    "test-only",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class SlurmPlace:
    """Place where boxes run: a node of Slurm, and the requested resources."""

    #: Slurm's name of this machine.
    node: str
    #: Empty: the cluster's default.
    partition: str = ""
    #: Name of the generic resource that counts tiles; empty: none is requested.
    gres: str = "rdu_tile"
    #: Further options of ``sbatch``.
    options: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """A node as ``scontrol show node --oneliner`` shows it."""

    name: str
    host: str
    state: str
    partitions: Sequence[str]
    #: Numbers of generic resources by name.
    gres: Mapping[str, int]


def read_nodes(text: str) -> list[SlurmNode]:
    """Parse the output of ``scontrol``, one node per line."""
    nodes = []
    for line in text.splitlines():
        fields = dict(word.partition("=")[::2] for word in line.split())
        if "NodeName" in fields:
            host = fields.get("NodeHostName", fields["NodeName"])
            names = [name for name in fields.get("Partitions", "").split(",") if name]
            gres = _read_gres(fields.get("Gres", ""))
            nodes.append(SlurmNode(fields["NodeName"], host, fields.get("State", ""), names, gres))
    return nodes


def find_node(nodes: Sequence[SlurmNode], wanted: str, host: str) -> SlurmNode:
    """Return this machine's node: the one named ``wanted``, or the one on ``host``.

    Raises:
        InvalidArgument: no node matches, or several do.
    """
    short = host.partition(".")[0]
    found = [node for node in nodes if (node.name == wanted if wanted else node.host.partition(".")[0] == short)]
    if len(found) == 1:
        return found[0]
    legal = ", ".join(f"{node.name} (on {node.host})" for node in nodes[:8]) or "none"
    what = f"slurm.node is {wanted!r}" if wanted else f"Slurm has {len(found) or 'no'} nodes on this machine, {host}"
    raise InvalidArgument(f"{what}; set slurm.node to this machine's node, one of {legal}")


def check_node(node: SlurmNode, place: SlurmPlace, partitions: Sequence[str]) -> None:
    """Refuse a place whose partition or resource the node does not have.

    Raises:
        InvalidArgument: the message lists what exists.
    """
    if place.partition and place.partition not in partitions:
        legal = ", ".join(partitions) or "none"
        raise InvalidArgument(f"slurm.partition is {place.partition!r}; expected one of {legal}")
    if place.partition and place.partition not in node.partitions:
        legal = ", ".join(node.partitions) or "none"
        raise InvalidArgument(f"slurm.partition is {place.partition!r}, but node {node.name} is in: {legal}")
    if place.gres and not node.gres.get(place.gres):
        legal = ", ".join(f"{name}:{count}" for name, count in node.gres.items()) or "none"
        raise InvalidArgument(
            f"slurm.gres is {place.gres!r}, but node {node.name} has: {legal}; declare it in slurm.conf and "
            "gres.conf, or leave slurm.gres empty"
        )


def read_options(text: str) -> list[str]:
    """Read further options of ``sbatch``, each as ``--name=value`` or ``--name``.

    Raises:
        InvalidArgument: the text is malformed, or has an option that the platform sets itself.
    """
    try:
        words = shlex.split(text)
    except ValueError as cause:
        raise InvalidArgument(f"slurm.options is {text!r}, which cannot be read: {cause}") from cause
    for word in words:
        name = word.lstrip("-").partition("=")[0]
        if not word.startswith("--") or not name:
            raise InvalidArgument(f"slurm.options has {word!r}; expected words such as --account=NAME")
        if name in RESERVED:
            raise InvalidArgument(f"slurm.options has --{name}, which the platform sets itself; leave it out")
    return words


def _read_gres(text: str) -> dict[str, int]:
    found = dict[str, int]()
    for part in re.sub(r"\([^)]*\)", "", text).split(","):
        name, _, rest = part.partition(":")
        count = rest.rpartition(":")[2]
        if count.isdecimal():
            found[name] = found.get(name, 0) + int(count)
    return found
