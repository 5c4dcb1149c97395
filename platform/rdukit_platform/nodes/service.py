"""Asks the node daemon what there is."""

from pathlib import Path
from typing import Any, Final

from rdukit.errors import RdukitError
from rdukit.snd import SndClient
from rdukit_platform.nodes.condition import active_faults, node_health, view_for_scheduler
from rdukit_platform.scheduler.decide import NodeView

ANSWER_TIMEOUT_S: Final = 2.0
#: Active faults that are shown; a node with more of them needs its own tools.
MAX_FAULTS: Final = 200


def read_nodes(snd_socket: Path) -> list[dict[str, Any]]:
    """The nodes with their tiles, who holds them, and what is broken, for people and the console.

    ``state`` says whether the daemon answers (``up``, ``unreachable``), ``health`` how the node is; a daemon that does
    not know of faults has none.
    """
    try:
        with SndClient(snd_socket, timeout_s=ANSWER_TIMEOUT_S) as snd:
            hello, status = snd.call("hello"), dict(snd.status())
            knows_faults = "faults" in (hello.get("features") or [])
            faults = snd.call("faults", limit=MAX_FAULTS)["faults"] if knows_faults else []
    except RdukitError as error:
        return [{"name": "local", "state": "unreachable", "error": error.message, "tiles": []}]
    status.pop("ok", None)
    return [
        {
            "name": str(hello.get("node") or "local"),
            "state": "up",
            "version": hello.get("version"),
            **status,
            "health": node_health(status),
            "faults": active_faults(faults),
        }
    ]


def find_node_view(snd_socket: Path) -> NodeView | None:
    """What the scheduler needs to know of the node; ``None`` if its daemon does not answer."""
    try:
        with SndClient(snd_socket, timeout_s=ANSWER_TIMEOUT_S) as snd:
            return view_for_scheduler(snd.status())
    except RdukitError:
        return None
