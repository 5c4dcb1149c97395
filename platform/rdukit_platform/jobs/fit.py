"""Whether a job can ever have its tiles (pure): what the node has, and what its PEF was compiled for."""

from typing import Final

from rdukit.errors import IllegalValue
from rdukit_platform.scheduler.decide import NodeView, why_never

#: The input of a job that is a PEF.
PEF: Final = "pef"


def check_node(tiles: int, node: NodeView | None) -> None:
    """Refuse more tiles than the node would have with all of them in service.

    Raises:
        IllegalValue: the message says what the node has.
    """
    if node is None:
        return
    whole = node.repaired()
    why = why_never(tiles, whole)
    if why is not None:
        raise IllegalValue(f"tiles is {tiles}: {why}; legal: 1 to {whole.tiles}", legal=f"1 to {whole.tiles}")


def check_pef(tiles: int, needed: int) -> None:
    """Refuse fewer tiles than a PEF was compiled for.

    Raises:
        IllegalValue: the message says how many it needs.
    """
    if tiles < needed:
        raise IllegalValue(
            f"tiles is {tiles}, but the PEF was compiled for {needed}; legal: {needed} or more, or compile with "
            f"num_tiles {tiles}",
            legal=f"{needed} or more",
        )
