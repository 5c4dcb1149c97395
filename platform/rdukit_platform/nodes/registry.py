"""Nodes of the platform as rows: they join, send heartbeats, are lost, and leave.

A node's workers send its heartbeats. The scheduler measures silence by its own clock (``scheduler.watches``), so clocks
of two machines are never compared. The leases of a lost node end at once if another node could run its jobs.
"""

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Final

from sqlalchemy import String, cast, delete, select, update
from sqlalchemy.orm import Session, defer

from rdukit.errors import Conflict, IllegalValue, InvalidArgument, NotFound
from rdukit.files.atomic import write_atomic
from rdukit_platform.db.models import AttemptPartRow, AttemptRow, EndpointReplicaRow, NodeRow
from rdukit_platform.nodes.view import NodeCapacity, NodeLook, date_start
from rdukit_platform.services import is_recent, live_services

#: Seconds after which a node that left or was lost is deleted.
FORGET_S: Final = 24 * 3600.0

#: ``home_id`` of a node whose process ends; no home has this id.
NOBODY: Final = "-"

#: ``lease_expires_at`` of attempts and replicas of an absent node, which ends them at once.
LAPSED: Final = 0.0

#: Largest number of labels of a node.
MAX_NODE_LABELS: Final = 32

#: Name that stands for the only node.
ONLY: Final = "-"


class NodeLife(StrEnum):
    """States of a node."""

    UP = "up"
    #: It accepts nothing new, and leaves when its work is done.
    LEAVING = "leaving"
    LEFT = "left"
    #: Its heartbeats were missing for too long.
    LOST = "lost"


#: States of nodes that send heartbeats.
PRESENT: Final = (str(NodeLife.UP), str(NodeLife.LEAVING))
ABSENT: Final = (str(NodeLife.LOST), str(NodeLife.LEFT))


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """Name of a node, and the facts that its workers know at the start. ``home_id``: see ``read_home_id``."""

    name: str
    home_id: str
    host: str
    labels: Mapping[str, str]
    #: Address of its workers for other nodes; ``None``: no jobs on several nodes.
    link_host: str | None = None


def read_home_id(file: Path) -> str:
    """Return the id of this home folder; it is created on the first call."""
    try:
        return file.read_text().strip()
    except FileNotFoundError:
        write_atomic(file, f"{secrets.token_hex(16)}\n".encode(), mode=0o600)
        return file.read_text().strip()


def join(session: Session, node: NodeIdentity, now: float) -> None:
    """Add a node to the platform; its workers call it when they start.

    Raises:
        Conflict: another node has this name.
    """
    check_name(session, node.name, node.home_id, now)
    row = session.get(NodeRow, node.name, with_for_update=True)
    if row is None:
        row = NodeRow(
            name=node.name, home_id=node.home_id, state=str(NodeLife.UP), capacity=None, leased=[], report={}, beats=0,
            joined_at=now, changed_at=now,
        )  # fmt: skip
        session.add(row)
    if row.home_id != node.home_id or row.state in ABSENT:
        row.state, row.joined_at, row.changed_at = str(NodeLife.UP), now, now
    row.home_id, row.host, row.labels, row.link_host = node.home_id, node.host, dict(node.labels), node.link_host
    row.beats, row.beat_at = row.beats + 1, now


def check_name(session: Session, name: str, home_id: str, now: float) -> None:
    """Check that no node of another home has this name.

    Raises:
        Conflict: another node has this name.
    """
    row = session.get(NodeRow, name, with_for_update=True)
    if (
        row is not None
        and row.home_id not in {home_id, NOBODY}
        and row.state in PRESENT
        and is_recent(row.beat_at, now)
    ):
        raise Conflict(f"node {name!r} is already up on {row.host}; give this node another name: node.name, or --name")


def beat(session: Session, node: NodeIdentity, look: NodeLook | None, now: float) -> NodeLife:
    """Record a node's heartbeat, and its look if that is new. Returns its state.

    A lost node comes back; a node that left stays away until one of its workers starts.

    Raises:
        Conflict: another machine has its name now.
    """
    row = session.get(NodeRow, node.name, with_for_update=True)
    if row is None:
        join(session, node, now)
        row = session.get_one(NodeRow, node.name)
    if row.home_id == NOBODY:
        raise Conflict(f"node {node.name!r} has left, and its process ends")
    if row.home_id != node.home_id:
        raise Conflict(
            f"node {node.name!r} now runs on another machine, {row.host}, because this one was lost for too long"
        )
    if row.state == NodeLife.LOST:
        row.state, row.changed_at = str(NodeLife.UP), now
    row.beats, row.beat_at = row.beats + 1, now
    if look is not None:
        row.capacity = None if look.capacity is None else asdict(look.capacity)
        row.leased, row.report = sorted(look.leased), date_start(look.report, now)
    return NodeLife(row.state)


def capacity_of(row: NodeRow) -> NodeCapacity | None:
    """Return a node's capacity from its last report; ``None``: its daemon does not answer."""
    if row.capacity is None:
        return None
    known = {each.name for each in fields(NodeCapacity)}
    values = {name: tuple(v) if isinstance(v, list) else v for name, v in row.capacity.items() if name in known}
    return NodeCapacity(**values)  # type: ignore[arg-type] # as asdict wrote them


def read_capacities(session: Session) -> list[NodeCapacity]:
    """Return the reported capacities of all nodes that have not left."""
    rows = session.scalars(select(NodeRow).where(NodeRow.state != str(NodeLife.LEFT)))
    return [capacity for row in rows if (capacity := capacity_of(row)) is not None]


def read_linked(session: Session) -> list[NodeCapacity]:
    """Return the reported capacities of the nodes over which a job's members may be spread."""
    rows = session.scalars(select(NodeRow).where(NodeRow.state != str(NodeLife.LEFT), NodeRow.link_host.is_not(None)))
    return [capacity for row in rows if (capacity := capacity_of(row)) is not None]


def read_beats(session: Session) -> dict[str, int]:
    """Return the numbers of heartbeats of the nodes that are present, by name."""
    query = select(NodeRow.name, NodeRow.beats).where(NodeRow.state.in_(PRESENT))
    return dict(session.execute(query).tuples().all())


def read_leaving(session: Session) -> frozenset[str]:
    """Return the names of the leaving nodes."""
    return frozenset(_names(session, (str(NodeLife.LEAVING),)))


def read_rooms(session: Session) -> dict[str, NodeCapacity]:
    """Return the reported capacities, by name, of the nodes that accept new work."""
    query = select(NodeRow).where(NodeRow.state == str(NodeLife.UP)).options(defer(NodeRow.report))
    rows = session.scalars(query)
    return {row.name: capacity for row in rows if (capacity := capacity_of(row)) is not None}


def read_draining(session: Session) -> dict[str, object]:
    """Return the reported cordons of nodes with a draining part, by name.

    The database filters the rows, because reports are large and the scheduler asks in each pass.
    """
    has_draining = cast(NodeRow.report, String).contains('"draining"')
    query = select(NodeRow.name, NodeRow.report).where(NodeRow.state.in_(PRESENT), has_draining)
    return {name: report["cordons"] for name, report in session.execute(query) if report.get("cordons")}


def lose(session: Session, names: Iterable[str], now: float) -> None:
    """Mark nodes as lost."""
    query = update(NodeRow).where(NodeRow.name.in_(list(names)), NodeRow.state.in_(PRESENT))
    session.execute(query.values(state=str(NodeLife.LOST), changed_at=now))


def needs_release(session: Session) -> bool:
    """Return whether any node is not up, so that ``release_absent`` may have work."""
    query = select(NodeRow.name).where(NodeRow.state != str(NodeLife.UP)).limit(1)
    return session.scalars(query).first() is not None


def release_absent(session: Session, now: float) -> None:
    """End the leases on absent nodes if another node is up; mark leaving nodes without work as left.

    Nodes that have been absent for ``FORGET_S`` are deleted.
    """
    away = _names(session, ABSENT)
    if away and _names(session, (str(NodeLife.UP),)):
        is_open = (AttemptRow.ended_at.is_(None), AttemptRow.node.in_(away))
        session.execute(update(AttemptRow).where(*is_open).values(lease_expires_at=LAPSED))
        parts = (AttemptPartRow.node.in_(away), AttemptPartRow.is_open())
        session.execute(update(AttemptPartRow).where(*parts).values(lease_expires_at=LAPSED))
        replicas = (EndpointReplicaRow.node.in_(away), EndpointReplicaRow.ended_at.is_(None))
        session.execute(update(EndpointReplicaRow).where(*replicas).values(lease_expires_at=LAPSED))
    for name in _names(session, (str(NodeLife.LEAVING),)):
        if not is_in_use(session, name):
            query = update(NodeRow).where(NodeRow.name == name, NodeRow.state == str(NodeLife.LEAVING))
            session.execute(query.values(state=str(NodeLife.LEFT), changed_at=now))
    session.execute(delete(NodeRow).where(NodeRow.state.in_(ABSENT), NodeRow.beat_at < now - FORGET_S))


def is_in_use(session: Session, name: str) -> bool:
    """Return whether a node has attempts or replicas that have not ended."""
    attempts = select(AttemptRow.id).where(AttemptRow.node == name, AttemptRow.ended_at.is_(None)).limit(1)
    live = (EndpointReplicaRow.node == name, EndpointReplicaRow.ended_at.is_(None))
    replicas = select(EndpointReplicaRow.id).where(*live).limit(1)
    parts = select(AttemptPartRow.id).where(AttemptPartRow.node == name, AttemptPartRow.is_open()).limit(1)
    return any(session.scalars(query).first() is not None for query in (attempts, parts, replicas))


def leave(session: Session, name: str, now: float) -> NodeRow:
    """Let a node accept nothing new, and leave when its work is done.

    Raises:
        NotFound: there is no such node.
        Conflict: the node is already away.
    """
    row = find_node(session, name)
    if row.state in ABSENT:
        raise Conflict(f"node {row.name} is {row.state} already")
    if row.state != NodeLife.LEAVING:
        row.state, row.changed_at = str(NodeLife.LEAVING), now
    return row


def rejoin(session: Session, name: str, now: float) -> NodeRow:
    """Let a node take jobs again that is leaving, or has left and still sends heartbeats.

    Raises:
        NotFound: there is no such node.
        Conflict: it sends no heartbeats, or its process ends.
    """
    row = find_node(session, name)
    if row.home_id == NOBODY:
        raise Conflict(f"node {row.name} has left, and its process ends; start it again: rdukit node join")
    if row.state in ABSENT and not is_recent(row.beat_at, now):
        raise Conflict(f"node {row.name} is {row.state} and sends no heartbeats; start it again")
    row.state, row.changed_at = str(NodeLife.UP), now
    return row


def let_go(session: Session, name: str, home_id: str) -> bool:
    """Release a node that has left when its process ends; it cannot rejoin after that. Returns whether it had left."""
    row = session.get(NodeRow, name, with_for_update=True)
    if row is None or row.home_id != home_id or row.state != NodeLife.LEFT:
        return False
    row.home_id = NOBODY
    return True


def end_worker(session: Session, name: str, worker: str, now: float) -> None:
    """Record that a worker of a node stops; with the last one the node leaves."""
    if not any(each.node == name and each.id != worker for each in live_services(session, now)):
        query = update(NodeRow).where(NodeRow.name == name, NodeRow.state.in_(PRESENT))
        session.execute(query.values(state=str(NodeLife.LEFT), changed_at=now))


def label(session: Session, name: str, given: Mapping[str, str], removed: Iterable[str]) -> NodeRow:
    """Set labels of a node, and remove labels that were set so; the node's own setting then applies again.

    Raises:
        NotFound: there is no such node.
        IllegalValue: a label to remove was not set, or there would be too many.
    """
    row = find_node(session, name)
    labels = dict(row.given_labels)
    for key in removed:
        if labels.pop(key, None) is None:
            legal = ", ".join(sorted(row.given_labels)) or "none"
            raise IllegalValue(f"node {row.name} has no added label {key[:80]!r}; expected {legal}", legal=legal)
    row.given_labels = {**labels, **given}
    if len(row.all_labels) > MAX_NODE_LABELS:
        raise IllegalValue(
            f"node {row.name} would have {len(row.all_labels)} labels; expected {MAX_NODE_LABELS} at most",
            legal=f"{MAX_NODE_LABELS} at most",
        )
    return row


def read_labels(session: Session) -> dict[str, set[str]]:
    """Return the values of each label on nodes that have not left."""
    found = dict[str, set[str]]()
    for row in session.scalars(select(NodeRow).where(NodeRow.state != str(NodeLife.LEFT))):
        for key, value in row.all_labels.items():
            found.setdefault(key, set()).add(value)
    return found


def find_node(session: Session, name: str) -> NodeRow:
    """Return a node by its name; ``-`` names the only node.

    Raises:
        NotFound: there is no such node.
        InvalidArgument: there are several nodes, and ``-`` was given.
    """
    rows = {row.name: row for row in session.scalars(select(NodeRow).order_by(NodeRow.name))}
    if name in rows:
        return rows[name]
    named = ", ".join(rows) or "none"
    if name != ONLY:
        raise NotFound(f"there is no node {name!r}; expected {named}")
    present = [row for row in rows.values() if row.state != NodeLife.LEFT]
    if len(present) > 1:
        raise InvalidArgument(f"there are several nodes; name one by --node: {named}")
    if not present:
        raise NotFound("no node has joined the platform; join one with: rdukit node join")
    return present[0]


def _names(session: Session, states: Iterable[str]) -> list[str]:
    return list(session.scalars(select(NodeRow.name).where(NodeRow.state.in_(list(states)))))
