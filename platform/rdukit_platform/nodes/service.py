"""Asks the node daemon what there is."""

from pathlib import Path

from rdukit.errors import RdukitError
from rdukit.snd import SndClient
from rdukit_platform.scheduler.decide import NodeView

ANSWER_TIMEOUT_S = 2.0


def read_nodes(snd_socket: Path) -> list[dict[str, object]]:
    """The nodes with their tiles and who holds them, for people and the console. A silent daemon is a node too."""
    try:
        with SndClient(snd_socket, timeout_s=ANSWER_TIMEOUT_S) as snd:
            hello, status = snd.call("hello"), dict(snd.status())
    except RdukitError as error:
        return [{"name": "local", "state": "unreachable", "error": error.message, "tiles": []}]
    status.pop("ok", None)
    return [{"name": str(hello.get("node") or "local"), "state": "up", "version": hello.get("version"), **status}]


def find_node_view(snd_socket: Path) -> NodeView | None:
    """What the scheduler needs to know of the node; ``None`` if its daemon does not answer."""
    try:
        with SndClient(snd_socket, timeout_s=ANSWER_TIMEOUT_S) as snd:
            status = snd.status()
    except RdukitError:
        return None
    healthy = [tile for tile in status["tiles"] if is_usable(tile)]
    applications = {lease["application"] for lease in status.get("leases", [])}
    limit = int(status.get("max_applications") or len(healthy))
    return NodeView(
        tiles=len(healthy),
        free_tiles=sum(1 for tile in healthy if not tile.get("lease")),
        free_applications=max(limit - len(applications), 0),
    )


def is_usable(tile: dict[str, object]) -> bool:
    """Whether a tile of ``status`` can be leased at all."""
    return str(tile.get("health", "online")).lower() in {"online", "ok", "healthy", "good", "present", "up", ""}
