"""Taking a reading of a node: the thin shell under ``sampling``."""

from collections.abc import Mapping
from typing import Any, Protocol

from rdukit_node.telemetry.sampling import Reading


class Node(Protocol):
    """Whoever answers a node's operations: a connection to its daemon."""

    def call(self, op: str) -> Mapping[str, Any]:
        """The answer; see ``docs/design/node.md``."""
        ...


def take_reading(node: Node, with_components: bool = False) -> Reading:
    """Ask for counters and status, and for the inventory if wanted.

    Counters come last, so that their time is that of the reading.

    Raises:
        Unavailable: the daemon went away.
    """
    components = node.call("inventory")["components"] if with_components else ()
    status = node.call("status")
    return Reading(node.call("counters"), status, components)
