"""Tiles of a request: choose them, and check them against the nodes and the PEF."""

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

#: Slot of a job's PEF input.
PEF: Final = "pef"


def check_nodes(
    tiles: int, nodes: Sequence[NodeCapacity], members: int = 1, linked: Sequence[NodeCapacity] = ()
) -> None:
    """Refuse more tiles per member than the largest node has with all its tiles in service.

    Args:
        linked: nodes over which members may be spread.

    Raises:
        IllegalValue: the message names the largest node's tiles.
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
            f"the {len(linked)} nodes that members may use have room for {together} of them" if together
            else "members of a job run on one node, because boxes of different nodes have no network between them "
            "(node.link_host)"
        )  # fmt: skip
        raise IllegalValue(
            f"members is {members}, each with {tiles} tiles: {why}; {spread}; request fewer members or fewer tiles",
            field="members",
            legal=f"members times tiles up to {largest.tiles}",
        )
    legal = f"1 to {largest.tiles}"
    raise IllegalValue(f"tiles is {tiles}: {why}; expected {legal}", field="tiles", legal=legal)


def check_pef(tiles: int, needed: int) -> None:
    """Refuse fewer tiles than a PEF was compiled for.

    Raises:
        IllegalValue: the message has the number that the PEF needs.
    """
    if tiles < needed:
        raise IllegalValue(
            f"tiles is {tiles}, but the PEF was compiled for {needed}; expected {needed} or more, or compile with "
            f"num_tiles {tiles}",
            field="tiles",
            legal=f"{needed} or more",
        )


def check_averages(members: int, pef: PefSummary) -> None:
    """Refuse several members if the PEF was compiled for one process.

    Raises:
        IllegalValue: the PEF cannot average; the message says how to compile it.
    """
    if members > 1 and not pef.averages_gradients:
        raise IllegalValue(
            f"members is {members}, but the PEF was compiled for one process and does not average gradients; expected "
            f"1, or compile with members {members}",
            legal="1",
        )


Request = TypeVar("Request", JobRequest, StepRequest)


def with_tiles(store: BlobStore, session: Session, tenant_id: str, request: Request) -> Request:
    """Return the request with its tiles: its own, else the PEF's, else the default.

    Raises:
        IllegalValue: no node has that many tiles, the PEF needs more, or it was compiled for one process. NotFound: the
        tenant has no such PEF. PefCorrupt: its PEF input cannot be read as a PEF.
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
    """Find the digest of a job's PEF; ``None``: the job has none yet, or the input is a folder."""
    artifact_id = inputs.get(PEF)
    if artifact_id is None or artifact_id.startswith("@"):
        return None
    artifact = get_artifact(session, tenant_id, artifact_id)
    return None if artifact.is_folder else artifact.digest
