"""Orders to nodes: operations of a node's daemon that an administrator requests, carried out by a worker there.

An order is a row; taking it and answering it update the row. The broker only wakes the workers.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from rdukit.errors import RdukitError, Unavailable, error_from_body
from rdukit_platform.db.engine import Database
from rdukit_platform.db.models import NodeOrderRow
from rdukit_platform.db.rows import new_id

#: Seconds that the caller waits for the answer, and seconds between polls.
ANSWER_S: Final = 12.0
LOOK_S: Final = 0.05
#: Seconds after which an abandoned order is removed.
KEEP_S: Final = 60.0


def order(
    database: Database, wake_node: Callable[[str], None], node: str, operation: str, by: str,
    arguments: Mapping[str, object], now: float,
) -> dict[str, Any]:  # fmt: skip
    """Ask a node's worker to call an operation of its daemon. Returns the daemon's answer.

    Raises:
        Unavailable: no worker of the node took the order or answered; an untaken order is withdrawn.
        RdukitError: the daemon refused.
    """
    order_id = new_id("ord")
    with database.write() as session:
        session.execute(delete(NodeOrderRow).where(NodeOrderRow.created_at < now - KEEP_S))
        session.add(
            NodeOrderRow(
                id=order_id, node=node, operation=operation, arguments=dict(arguments), ordered_by=by, created_at=now
            )
        )
    wake_node(node)
    deadline = time.monotonic() + ANSWER_S
    while True:
        with database.read() as session:
            answer = session.scalars(select(NodeOrderRow.answer).where(NodeOrderRow.id == order_id)).one_or_none()
        if answer is not None or time.monotonic() > deadline:
            break
        time.sleep(LOOK_S)
    with database.write() as session:
        session.execute(delete(NodeOrderRow).where(NodeOrderRow.id == order_id))
    if answer is None:
        raise Unavailable(f"no worker of node {node} has answered within {ANSWER_S:g} s; see: rdukit node list")
    if "error" in answer:
        raise error_from_body(answer)
    found: Any = answer["ok"]
    return dict(found)


def has_orders(session: Session, node: str) -> bool:
    """Return whether an order waits for a worker of a node."""
    waiting = (NodeOrderRow.node == node, NodeOrderRow.taken_at.is_(None))
    return session.scalars(select(NodeOrderRow.id).where(*waiting).limit(1)).first() is not None


def take_orders(session: Session, node: str, now: float) -> Sequence[NodeOrderRow]:
    """Take a node's open orders whose callers still wait."""
    waiting = (NodeOrderRow.node == node, NodeOrderRow.taken_at.is_(None))
    return session.scalars(update(NodeOrderRow).where(*waiting).values(taken_at=now).returning(NodeOrderRow)).all()


def answer_order(session: Session, order_id: str, answer: Mapping[str, object] | RdukitError) -> None:
    """Store the daemon's answer."""
    if isinstance(answer, RdukitError):
        reply: dict[str, object] = {
            "error": {"code": answer.code, "message": answer.message, "detail": dict(answer.detail)}
        }
    else:
        reply = {"ok": dict(answer)}
    session.execute(update(NodeOrderRow).where(NodeOrderRow.id == order_id).values(answer=reply))
