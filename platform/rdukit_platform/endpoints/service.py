"""Operations of a tenant on endpoints: create, read, change, roll back, delete.

A change only records the wanted state; the scheduler's reconciler and the workers bring it about. Every function runs
in the caller's transaction.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from rdukit.errors import Conflict, IllegalValue, InvalidArgument, NotFound, name_legal, suggest
from rdukit.pef.file import Answers
from rdukit_platform.artifacts.service import get_artifact
from rdukit_platform.artifacts.store import BlobStore
from rdukit_platform.catalog.experts import get_expert, selector_of
from rdukit_platform.catalog.model import Boxes, Selector
from rdukit_platform.catalog.own import with_own
from rdukit_platform.db.models import EndpointReplicaRow, EndpointRevisionRow, EndpointRow
from rdukit_platform.db.rows import new_id, read_page
from rdukit_platform.endpoints.bundles import CheckedBundle, keep_parts
from rdukit_platform.endpoints.quota import check_tiles
from rdukit_platform.endpoints.schemas import IDLE_S, RevisionRequest
from rdukit_platform.jobs.fit import check_nodes, check_pef
from rdukit_platform.jobs.pef_summary import summary_of
from rdukit_platform.nodes.registry import read_capacities

#: Largest number of replicas shown: live ones, and some ended ones.
MAX_REPLICAS: Final = 20
MAX_NAMED: Final = 20


@dataclass(frozen=True, slots=True)
class ServedParts:
    """Box and artifacts that a revision serves, checked."""

    box: Selector
    pef_id: str
    checkpoint_id: str | None
    expert_id: str | None
    tiles: int
    bundle: CheckedBundle | None = None


def resolve_serving(
    session: Session, boxes: Boxes, store: BlobStore, tenant_id: str, request: RevisionRequest,
    bundle: CheckedBundle | None = None,
) -> ServedParts:  # fmt: skip
    """Find and check the model of a request.

    Args:
        bundle: the bundle that the request names, checked.
    Raises:
        NotFound: the tenant has no such expert, box or artifact.
        InvalidArgument: it names an expert and a box, or neither; or its PEF is missing or invalid.
        IllegalValue: no node has that many tiles, or the PEF needs more.
        PermissionDenied: the tenant may not run boxes of its own.
    """
    if bundle is not None:
        return _serve_bundle(session, boxes, tenant_id, request, bundle)
    expert_id, pef_id, checkpoint_id = None, request.pef, request.checkpoint
    if (request.expert is None) == (request.box is None):
        raise InvalidArgument(
            "an endpoint serves an expert, a bundle, or a box with a PEF and a checkpoint; name exactly one",
            field="expert",
        )
    if request.expert is not None:
        expert = get_expert(session, tenant_id, request.expert)
        if expert.deprecated_at is not None:
            raise Conflict(
                f"expert {selector_of(expert)} is deprecated: {expert.deprecated_reason}; name another one",
                field="expert",
            )
        expert_id, asked = expert.id, str(Selector(expert.box, expert.box_version))
        pef_id, checkpoint_id = pef_id or expert.pef_id, checkpoint_id or expert.checkpoint_id
        if pef_id is None:
            raise InvalidArgument(
                f"expert {selector_of(expert)} was trained without a PEF; name a PEF to serve it", field="pef"
            )
    else:
        asked = str(request.box)
        if pef_id is None:
            raise InvalidArgument(
                "a box needs a PEF to serve; name a PEF's artifact, as listed by rdukit artifact list", field="pef"
            )
    box = with_own(session, boxes, tenant_id, [asked]).box(asked)
    pef = get_artifact(session, tenant_id, pef_id)
    if pef.is_folder:
        raise InvalidArgument(f"artifact {pef_id} is a folder; expected a PEF", field="pef")
    if checkpoint_id is not None:
        get_artifact(session, tenant_id, checkpoint_id)
    summary = summary_of(store, pef.digest, tenant_id)
    needed = summary.tiles
    if summary.answers is Answers.NOTHING:
        raise InvalidArgument(
            f"the PEF {pef_id} was compiled to train and returns only its loss; name one that {box.name} compiled "
            "with purpose=serve",
            field="pef",
        )
    if request.tiles is not None:
        check_nodes(request.tiles, read_capacities(session))
        check_pef(request.tiles, needed)
    return ServedParts(
        Selector(box.name, box.version), pef_id, checkpoint_id, expert_id, request.tiles or max(needed, 1)
    )


def _serve_bundle(
    session: Session, boxes: Boxes, tenant_id: str, request: RevisionRequest, bundle: CheckedBundle
) -> ServedParts:
    if (request.expert, request.pef, request.checkpoint) != (None,) * 3:
        raise InvalidArgument(
            "a bundle names its own PEFs and checkpoints; leave out expert, pef and checkpoint", field="bundle"
        )
    box = with_own(session, boxes, tenant_id, [asked := request.box or bundle.box]).box(asked)
    if request.tiles is not None:
        check_nodes(request.tiles, read_capacities(session))
        check_pef(request.tiles, bundle.tiles)
    tiles = request.tiles or bundle.tiles
    return ServedParts(Selector(box.name, box.version), bundle.pef_id, None, None, tiles, bundle)


def create_endpoint(
    session: Session, tenant_id: str, name: str, serving: ServedParts, replicas: int, now: float, idle_s: float = 0.0
) -> EndpointRow:
    """Add an endpoint with its first revision.

    Raises:
        Conflict: the tenant has an endpoint of this name.
        IllegalValue: ``idle_s`` is too short.
        QuotaExceeded: it exceeds the tenant's tiles.
    """
    if _find(session, tenant_id, name) is not None:
        raise Conflict(f"endpoint {name!r} already exists; change it with: rdukit endpoint update {name}", field="name")
    row = EndpointRow(
        id=new_id("end"), tenant_id=tenant_id, name=name, held_name=name, revision=1, replicas=replicas,
        idle_s=_check_idle(idle_s), created_at=now, updated_at=now,
    )  # fmt: skip
    check_tiles(session, row, replicas, serving.tiles)
    session.add(row)
    session.flush()
    _add_revision(session, row, serving, now)
    return row


@dataclass(frozen=True, slots=True)
class EndpointChange:
    """Change of an endpoint; ``None`` means unchanged."""

    serving: ServedParts | None = None
    replicas: int | None = None
    #: Percent of the calls for the new revision, or for the present canary.
    canary: int | None = None
    #: 0: it keeps its replicas.
    idle_s: float | None = None


def change_endpoint(session: Session, row: EndpointRow, change: EndpointChange, now: float) -> EndpointRow:
    """Change the wanted state. A new revision replaces the old one gradually, or becomes the canary.

    Raises:
        InvalidArgument: the request changes nothing.
        Conflict: a percentage is given without a new revision or a canary.
        IllegalValue: ``idle_s`` is too short.
        QuotaExceeded: it wants more tiles than before, and exceeds the tenant's.
    """
    if change == EndpointChange():
        raise InvalidArgument(
            "no change was given; name replicas, an expert, a box with its artifacts, a canary's percent, or an "
            "idle time"
        )
    if change.canary is not None and change.serving is None and row.canary is None:
        raise Conflict(
            f"endpoint {row.name!r} has no canary; name an expert, or a box with its artifacts, for the canary"
        )
    replicas = row.replicas if change.replicas is None else change.replicas
    if change.serving is not None and change.canary is None:
        check_tiles(session, row, replicas, change.serving.tiles)
    else:
        canary = None if row.canary is None else _tiles_of(session, row, row.canary)
        canary = canary if change.serving is None else change.serving.tiles
        percent = row.canary_percent if change.canary is None else change.canary
        check_tiles(session, row, replicas, _tiles_of(session, row, row.revision), canary, percent)
    if change.serving is not None:
        number = _add_revision(session, row, change.serving, now).number
        row.updated_at = now
        if change.canary is None:
            row.revision, row.canary, row.canary_percent = number, None, None
        else:
            row.canary = number
    if change.canary is not None:
        row.canary_percent = change.canary
    if change.replicas is not None:
        row.replicas = change.replicas
    if change.idle_s is not None:
        row.idle_s = _check_idle(change.idle_s)
        row.called_at = now
    return row


def promote_canary(session: Session, row: EndpointRow, now: float) -> EndpointRow:
    """Make the canary the wanted revision; it takes over one replica at a time.

    Raises:
        Conflict: there is no canary.
        QuotaExceeded: its replicas need more tiles than before, and exceed the tenant's.
    """
    if row.canary is None:
        raise Conflict(f"endpoint {row.name!r} has no canary; all calls go to revision {row.revision}")
    check_tiles(session, row, row.replicas, _tiles_of(session, row, row.canary))
    row.revision, row.canary, row.canary_percent, row.updated_at = row.canary, None, None, now
    return row


def roll_back(session: Session, row: EndpointRow, number: int | None, now: float) -> EndpointRow:
    """Make an earlier revision the wanted one again, by default the previous one. A canary ends, too.

    Raises:
        Conflict: there is no earlier revision, or the named one is already wanted.
        NotFound: there is no such revision.
        QuotaExceeded: that revision needs more tiles, and exceeds the tenant's.
    """
    if row.canary is not None:
        row.canary, row.canary_percent, row.updated_at = None, None, now
        if number in {None, row.revision}:
            return row
    numbers = [revision.number for revision in revisions_of(session, row)]
    if number is None:
        earlier = [each for each in numbers if each < row.revision]
        if not earlier:
            raise Conflict(f"endpoint {row.name!r} runs revision {row.revision}, which is the first")
        number = max(earlier)
    if number not in numbers:
        raise NotFound(
            f"endpoint {row.name!r} has no revision {number}; expected {', '.join(map(str, numbers))}", legal=numbers
        )
    if number == row.revision:
        raise Conflict(f"endpoint {row.name!r} already runs revision {number}")
    check_tiles(session, row, row.replicas, _tiles_of(session, row, number))
    row.revision, row.updated_at = number, now
    return row


def delete_endpoint(row: EndpointRow, now: float) -> None:
    """Delete an endpoint: its replicas are no longer wanted, and its name is free."""
    row.deleted_at, row.held_name = now, None


def get_endpoint(session: Session, tenant_id: str, name: str, *, is_locked: bool = False) -> EndpointRow:
    """Return one of the tenant's endpoints.

    Raises:
        NotFound: the tenant has no endpoint of this name.
    """
    row = _find(session, tenant_id, name, is_locked=is_locked)
    if row is None:
        query = select(EndpointRow.name).where(EndpointRow.tenant_id == tenant_id, EndpointRow.held_name.is_not(None))
        legal = list(session.scalars(query.order_by(EndpointRow.name).limit(MAX_NAMED)))
        meant = suggest(name, legal)
        raise NotFound(
            f"unknown endpoint {name!r}; {name_legal(legal)}; create one with: rdukit endpoint create"
            f"{meant and '.' + meant}",
            legal=legal,
        )
    return row


def list_endpoints(
    session: Session, tenant_id: str, limit: int = 50, cursor: str | None = None
) -> tuple[list[EndpointRow], str | None]:
    """Return the tenant's endpoints, newest first, and the cursor of the next page.

    Raises:
        InvalidArgument: limit or cursor are not valid.
    """
    query = select(EndpointRow).where(EndpointRow.tenant_id == tenant_id, EndpointRow.held_name.is_not(None))
    return read_page(session, query, EndpointRow.created_at, EndpointRow.id, limit, cursor)


def revisions_of(session: Session, row: EndpointRow) -> Sequence[EndpointRevisionRow]:
    """Return an endpoint's revisions, oldest first."""
    query = select(EndpointRevisionRow).where(EndpointRevisionRow.endpoint_id == row.id)
    return session.scalars(query.order_by(EndpointRevisionRow.number)).all()


def replicas_of(session: Session, row: EndpointRow) -> Sequence[EndpointReplicaRow]:
    """Return up to ``MAX_REPLICAS`` replicas of an endpoint: live ones first, then the latest ended ones."""
    query = select(EndpointReplicaRow).where(EndpointReplicaRow.endpoint_id == row.id)
    is_over = EndpointReplicaRow.ended_at.is_not(None)
    query = query.order_by(is_over, EndpointReplicaRow.created_at.desc(), EndpointReplicaRow.id)
    return session.scalars(query.limit(MAX_REPLICAS)).all()


def _check_idle(idle_s: float) -> float | None:
    if 0 < idle_s < IDLE_S[0]:
        raise IllegalValue(
            f"idle_s is {idle_s:g}; expected 0 (never), or {IDLE_S[0]:.0f} to {IDLE_S[1]:.0f} (30 days)", field="idle_s"
        )
    return idle_s or None


def _find(session: Session, tenant_id: str, name: str, *, is_locked: bool = False) -> EndpointRow | None:
    query = select(EndpointRow).where(EndpointRow.tenant_id == tenant_id, EndpointRow.held_name == name)
    return session.scalars(query.with_for_update() if is_locked else query).one_or_none()


def _add_revision(session: Session, row: EndpointRow, serving: ServedParts, now: float) -> EndpointRevisionRow:
    of_row = select(func.max(EndpointRevisionRow.number)).where(EndpointRevisionRow.endpoint_id == row.id)
    bundle = serving.bundle
    if bundle is not None:
        keep_parts(session, row.tenant_id, bundle)
    revision = EndpointRevisionRow(
        id=new_id("rev"), endpoint_id=row.id, number=(session.scalars(of_row).one() or 0) + 1, box=serving.box.name,
        box_version=serving.box.version, pef_id=serving.pef_id, checkpoint_id=serving.checkpoint_id,
        expert_id=serving.expert_id, tiles=serving.tiles, created_at=now,
        **({} if bundle is None else {"bundle_id": bundle.bundle_id, "models": list(bundle.models)}),
    )  # fmt: skip
    session.add(revision)
    session.flush()
    return revision


def _tiles_of(session: Session, row: EndpointRow, number: int) -> int:
    """Return the number of tiles of a revision's replica."""
    query = select(EndpointRevisionRow.tiles).where(
        EndpointRevisionRow.endpoint_id == row.id, EndpointRevisionRow.number == number
    )
    return session.scalars(query).one()
