"""Tiles of a request: chosen, and checked against what the node has and what the PEF was compiled for."""

from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

from sqlalchemy.orm import Session

from rdukit.errors import IllegalValue
from rdukit.pef.file import PefSummary
from rdukit_platform.artifacts.service import get_artifact
from rdukit_platform.artifacts.store import BlobStore
from rdukit_platform.jobs.pef_summary import summary_of
from rdukit_platform.jobs.schemas import JobRequest, StepRequest
from rdukit_platform.jobs.service import HOST_VERBS, default_tiles
from rdukit_platform.nodes.registry import read_capacities, read_linked
from rdukit_platform.nodes.view import NodeCapacity, members_with_room, why_never

#: The input of a job that is a PEF.
PEF: Final = "pef"


def check_nodes(
    tiles: int, nodes: Sequence[NodeCapacity], members: int = 1, linked: Sequence[NodeCapacity] = ()
) -> None:
    """Refuse more tiles, for each member, than any of the nodes would have with all of them in service.

    Args:
        linked: those of the nodes that members may be spread over.

    Raises:
        IllegalValue: the message says what the largest one has.
    """
    whole = [node.repaired() for node in nodes]
    if not whole or any(why_never(tiles * members, node, members) is None for node in whole):
        return
    largest = max(whole, key=lambda node: node.tiles)
    why = why_never(tiles * members, largest, members)
    if members > 1:
        together = sum(members_with_room(tiles, node.repaired()) for node in linked) if len(linked) > 1 else 0
        if together >= members:
            return
        spread = (
            f"the {len(linked)} nodes that members may be spread over have room for {together} of them" if together
            else "members of a job are on one node, as boxes of several have no network between them (node.link_host)"
        )  # fmt: skip
        raise IllegalValue(
            f"members is {members}, each with {tiles} tiles: {why}; {spread}; legal: fewer of them, or fewer tiles",
            field="members",
            legal=f"members times tiles up to {largest.tiles}",
        )
    legal = f"1 to {largest.tiles}"
    raise IllegalValue(f"tiles is {tiles}: {why}; legal: {legal}", field="tiles", legal=legal)


def check_pef(tiles: int, needed: int) -> None:
    """Refuse fewer tiles than a PEF was compiled for.

    Raises:
        IllegalValue: the message says how many it needs.
    """
    if tiles < needed:
        raise IllegalValue(
            f"tiles is {tiles}, but the PEF was compiled for {needed}; legal: {needed} or more, or compile with "
            f"num_tiles {tiles}",
            field="tiles",
            legal=f"{needed} or more",
        )


def check_averages(members: int, pef: PefSummary) -> None:
    """Refuse several members of a PEF that was compiled for one process.

    Raises:
        IllegalValue: the message says how to compile it.
    """
    if members > 1 and not pef.averages_gradients:
        raise IllegalValue(
            f"members is {members}, but the PEF was compiled for one process and averages no gradients; legal: 1, or "
            f"compile with members {members}",
            legal="1",
        )


Request = TypeVar("Request", JobRequest, StepRequest)


def with_tiles(store: BlobStore, session: Session, tenant_id: str, request: Request) -> Request:
    """Return the request with its tiles: those that it names, else those that its PEF needs, else the usual ones.

    Raises:
        IllegalValue: no node has as many, the PEF needs more, or is one process's only. NotFound: the tenant has no
        such PEF. PefCorrupt: what it gives as a PEF is none.
    """
    is_on_host = request.verb in HOST_VERBS
    digest = None if is_on_host else _find_pef(session, tenant_id, request.inputs)
    needed = 0
    if digest is not None:
        pef = summary_of(store, digest, tenant_id)
        check_averages(request.members, pef)
        needed = pef.tiles
    tiles = request.tiles
    if tiles is None:
        tiles = needed or default_tiles(request.verb)
        request = request.model_copy(update={"tiles": tiles})
        if request.members == 1:
            return request
    if tiles:
        check_nodes(tiles, read_capacities(session), request.members, read_linked(session))
    check_pef(tiles, needed)
    return request


def _find_pef(session: Session, tenant_id: str, inputs: Mapping[str, str]) -> str | None:
    """Find the digest of the PEF among a job's inputs; ``None``: there is none, or an earlier step makes it."""
    artifact_id = inputs.get(PEF)
    if artifact_id is None or artifact_id.startswith("@"):
        return None
    artifact = get_artifact(session, tenant_id, artifact_id)
    return None if artifact.is_folder else artifact.digest
