"""The worker's duties for its node: send heartbeats, report the daemon's state, and carry out orders."""

import logging
import threading
from dataclasses import replace
from typing import Final

import redis
from sqlalchemy.exc import DBAPIError

from rdukit.errors import RdukitError
from rdukit_platform.nodes import registry
from rdukit_platform.nodes.orders import answer_order, has_orders, take_orders
from rdukit_platform.nodes.registry import NodeIdentity, NodeLife
from rdukit_platform.nodes.view import NodeLook, change_node, look_at_node
from rdukit_platform.worker.context import WorkerContext

logger = logging.getLogger(__name__)

#: Seconds between heartbeats, and between checks of the daemon; changes are reported at once.
BEAT_S: Final = 1.0
LOOK_S: Final = 0.5
STOP_S: Final = 5.0


class NodeAgent:
    """Thread of a worker process that speaks for its node; each worker of the node has one."""

    def __init__(self, context: WorkerContext, identity: NodeIdentity) -> None:
        self._context, self._identity = context, identity
        self._told: NodeLook | None = None
        self._beaten_at = float("-inf")
        #: The node accepts further jobs, by the last answer of the platform.
        self.is_up = True
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="node", daemon=True)

    def start(self) -> None:
        """Join the platform, and start the thread.

        Raises:
            Conflict: another node has this name.
        """
        with self._context.database.write() as session:
            registry.join(session, self._identity, self._context.clock.now())
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; the last worker of a node makes the node leave."""
        self._stop.set()
        self._thread.join(STOP_S)
        context = self._context
        try:
            with context.database.write() as session:
                registry.end_worker(session, self._identity.name, context.name, context.clock.now())
        except DBAPIError as error:
            logger.warning("node not left node=%s error=%s", self._identity.name, error)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._look()
            except (DBAPIError, RdukitError) as error:
                logger.warning("node not told node=%s error=%s", self._identity.name, error)
            try:
                self._context.notifier.wait_for_node(self._identity.name, LOOK_S)
            except redis.RedisError:
                self._stop.wait(LOOK_S)

    def _look(self) -> None:
        context, name = self._context, self._identity.name
        with context.database.read() as session:
            is_ordered = has_orders(session, name)
        if is_ordered:
            self._take_orders()
        look = look_at_node(context.home.snd_socket, name)
        if self._told is not None and _is_same(look, self._told):
            if context.clock.monotonic() - self._beaten_at < BEAT_S:
                return
            self._beat(None)
        else:
            self._beat(look)
            if self._told is None or (self._told.capacity, self._told.leased) != (look.capacity, look.leased):
                context.notifier.wake()
            self._told = look

    def _beat(self, look: NodeLook | None) -> None:
        context = self._context
        with context.database.write(is_durable=False) as session:
            state = registry.beat(session, self._identity, look, context.clock.now())
        self._beaten_at, self.is_up = context.clock.monotonic(), state is NodeLife.UP

    def _take_orders(self) -> None:
        context, name = self._context, self._identity.name
        with context.database.write() as session:
            orders = take_orders(session, name, context.clock.now())
        for order in orders:
            answer: dict[str, object] | RdukitError
            try:
                answer = change_node(context.home.snd_socket, order.operation, order.ordered_by, order.arguments)
            except RdukitError as error:
                answer = error
            logger.info("order taken node=%s operation=%s by=%s", name, order.operation, order.ordered_by)
            # A caller with the answer must see the node's new state.
            look = look_at_node(context.home.snd_socket, name)
            self._beat(look)
            self._told = look
            with context.database.write() as session:
                answer_order(session, order.id, answer)
            context.notifier.wake()


def _is_same(one: NodeLook, other: NodeLook) -> bool:
    """Return whether two looks are equal, apart from the daemon's uptime."""
    return _timeless(one) == _timeless(other)


def _timeless(look: NodeLook) -> NodeLook:
    return replace(look, report={key: value for key, value in look.report.items() if key != "uptime_s"})
