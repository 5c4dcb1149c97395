"""Orders to nodes: what an administrator wants a node's daemon to do, by way of a worker of that node.

An order is a row; who takes it, and its answer, are updates of it. The broker only says that there is one.
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

#: Seconds that whoever orders waits for the answer, and how often it looks.
ANSWER_S: Final = 12.0
LOOK_S: Final = 0.05
#: Seconds after which an order is removed that nobody waits for any more.
KEEP_S: Final = 60.0


def order(
    database: Database, wake_node: Callable[[str], None], node: str, operation: str, by: str,
    arguments: Mapping[str, object], now: float,
) -> dict[str, Any]:  # fmt: skip
    """Have a worker of a node ask its daemon for something. Returns the daemon's answer.

    Raises:
        Unavailable: no worker of the node took it, or none has answered; an order that was not taken is withdrawn.
        RdukitError: what the daemon said.
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
    """Take the orders to a node that nobody has taken and that somebody still waits for."""
    waiting = (NodeOrderRow.node == node, NodeOrderRow.taken_at.is_(None))
    return session.scalars(update(NodeOrderRow).where(*waiting).values(taken_at=now).returning(NodeOrderRow)).all()


def answer_order(session: Session, order_id: str, answer: Mapping[str, object] | RdukitError) -> None:
    """Write down what the daemon answered."""
    if isinstance(answer, RdukitError):
        reply: dict[str, object] = {
            "error": {"code": answer.code, "message": answer.message, "detail": dict(answer.detail)}
        }
    else:
        reply = {"ok": dict(answer)}
    session.execute(update(NodeOrderRow).where(NodeOrderRow.id == order_id).values(answer=reply))
