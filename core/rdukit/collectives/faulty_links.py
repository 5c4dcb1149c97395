"""Links of a topology that a node's faults take out of service. Pure.

The vendor publishes no wiring of an RDU's PCIe links, so ours is an assumption: in the order of their numbers they lead
to the other RDUs of the XRDU, to the other XRDUs of the node, and to the RDU's port of the network between nodes. All
others lead to the host. A pair of XRDUs counts as broken when one of its links is.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rdukit.collectives.topology import Machine, Wiring
from rdukit.errors import InvalidArgument

#: Action of a fault that takes a link out of service.
REROUTE: Final = "reroute"
#: Faults that are read from a node.
MAX_FAULTS: Final = 1000
_PATH: Final = re.compile(r"(?:/NODE)?/XRDU_(\d{1,6})/RDU_(\d{1,6})/PCIE_(\d{1,6})")


@dataclass(frozen=True, slots=True)
class FaultyLinks:
    """``broken``: names of links, for ``break_links``. ``unused``: components that carry no traffic between ranks."""

    broken: tuple[str, ...]
    unused: tuple[str, ...]


def find_faulty_links(machine: Machine, components: Iterable[str], node: int = 0) -> FaultyLinks:
    """Return the links of node number ``node`` that the PCIe links ``components`` are, such as
    ``/NODE/XRDU_0/RDU_1/PCIE_2``.

    Raises:
        InvalidArgument: the machine has no such node or component.
    """
    sizes = {level.name: level.size for level in machine.levels}
    nodes = sizes.get("node", 1) * sizes.get("rack", 1)
    if not 0 <= node < nodes:
        raise InvalidArgument(f"{machine.name} has no node {node}; expected 0 to {nodes - 1}")
    broken, unused = dict[str, None](), list[str]()
    for path in components:
        name = _link_of(machine, sizes, path, node)
        if name is None:
            unused.append(path)
        else:
            broken[name] = None
    return FaultyLinks(tuple(broken), tuple(unused))


def rerouted_components(faults: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the components that active faults, as the node daemon lists them, take out of the traffic."""
    return tuple(dict.fromkeys(str(row["comp_name"]) for row in faults if row["action"] == REROUTE))


def _link_of(machine: Machine, sizes: Mapping[str, int], path: str, node: int) -> str | None:
    """Return the name of the link that a component is; None: it leads to the host."""
    rdus, xrdus = sizes.get("rdu", 1), sizes.get("xrdu", 1)
    found = _PATH.fullmatch(path)
    if found is None or int(found[1]) >= xrdus or int(found[2]) >= rdus:
        raise InvalidArgument(
            f"{machine.name} has no link {path!r}; expected a PCIe link of an RDU, from /NODE/XRDU_0/RDU_0/PCIE_0 to "
            f"/NODE/XRDU_{xrdus - 1}/RDU_{rdus - 1}"
        )
    xrdu, rdu, link = map(int, found.groups())
    racks = [f"rack{node // sizes.get('node', 1)}"] if sizes.get("rack", 1) > 1 else []
    names = [f"node{node % sizes['node']}"] if sizes.get("node", 1) > 1 else []
    above = [*racks, *names]
    if link < rdus - 1:
        units = [f"xrdu{xrdu}"] if xrdus > 1 else []
        return "/".join([*above, *units, _pair("rdu", rdu, link)])
    link -= rdus - 1
    if link < xrdus - 1:
        return "/".join([*above, _pair("xrdu", xrdu, link)])
    level = next((level for level in machine.levels if level.name == "node" and level.size > 1), None)
    port = xrdu * rdus + rdu
    if link == xrdus - 1 and level is not None and level.wiring is Wiring.SWITCH and port < level.ports:
        return "/".join([*racks, f"{names[0]}.port{port}"])
    return None


def _pair(kind: str, own: int, place: int) -> str:
    """Return the link from unit ``own`` to the ``place``-th of the others."""
    other = place if place < own else place + 1
    return f"{kind}{min(own, other)}-{kind}{max(own, other)}"
