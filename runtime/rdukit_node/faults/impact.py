"""Which leases a hardware event concerns. Pure."""

import random

from rdukit.hardware import NodeSpec
from rdukit_node.faults.checks import Event
from rdukit_node.faults.model import Owner, OwnerOf
from rdukit_node.faults.register import Hits
from rdukit_node.inventory import ComponentKind, rdu_path


def hit_by(node: NodeSpec, event: Event, owner_of: OwnerOf) -> list[Owner]:
    """Leases that ``event`` hits; of one that hits nobody, the owner of its tile for the record."""
    component, hits = event.component, event.entry.hits
    if component.kind is ComponentKind.TILE:
        owner = owner_of(component.path)
        return [] if owner is None else [owner]
    if component.rdu is None or hits is Hits.NOBODY:
        return []
    owners = owners_on(node, component.rdu, owner_of)
    if hits is Hits.RDU or not owners:
        return owners
    chosen = [owner for owner in owners if owner.lease == event.lease] if event.lease is not None else []
    return chosen or [random.Random(f"{event.seed}:{component.path}").choice(owners)]


def owners_on(node: NodeSpec, rdu: int, owner_of: OwnerOf) -> list[Owner]:
    """Everybody with tiles on an RDU, in the order of their first tile."""
    path = rdu_path(node, rdu)
    found = (owner_of(f"{path}/TILE_{tile}") for tile in range(node.chip.tiles))
    return list({owner.lease: owner for owner in found if owner is not None}.values())
