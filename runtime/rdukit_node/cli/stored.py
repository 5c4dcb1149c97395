"""Answers of a node whose daemon does not run, from its fault database, opened read-only.

Source: ours; that reads go on while the daemon is down is a wish of administrators (runtime reference 12).
"""

from collections.abc import Mapping

from rdukit.errors import Unavailable
from rdukit.hardware import NODES
from rdukit.interfaces import SystemClock
from rdukit_node.cli.output import Answer
from rdukit_node.inventory import ComponentKind, components
from rdukit_node.paths import NodePaths


def read_stored(paths: NodePaths, op: str, arguments: Mapping[str, object]) -> Answer:
    """The answer to ``op``. Without a daemon nobody holds tiles, so that ``status`` has no leases.

    Raises:
        Unavailable: only a running daemon knows this, or the file cannot be read. InvalidArgument: it is not ours.
    """
    from rdukit_node.faults.store import FaultStore  # sqlite3: a part of each start that a daemon makes needless

    with FaultStore.read_only(paths.database) as reader:
        age_s = reader.age_s(SystemClock().now())
        if op in {"hello", "status"}:
            return Answer(stored_status(reader.inventory()), age_s)
        return Answer(reader.answer(op, arguments), age_s)


def stored_status(inventory: list[dict[str, object]]) -> dict[str, object]:
    """What an inventory tells of a node's status: its platform and the health of its tiles.

    Raises:
        Unavailable: it is empty, as before a node's first start.
    """
    if not inventory:
        raise Unavailable("the node's database has no inventory yet; start the node once with: rdukit node start")
    tiles = [row for row in inventory if row["kind"] == ComponentKind.TILE]
    return {
        "platform": platform_of(inventory),
        "tiles": [{"path": row["comp_name"], "lease": None, "health": row["health"]} for row in tiles],
        "leases": [],
    }


def platform_of(inventory: list[dict[str, object]]) -> str:
    """The platform that has exactly these components; ``unknown`` if none has."""
    paths = [str(row["comp_name"]) for row in inventory]
    return next((name for name, node in NODES.items() if [each.path for each in components(node)] == paths), "unknown")
