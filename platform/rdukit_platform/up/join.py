"""``rdukit node join`` from its lock to its end: a node daemon and a worker for a platform that runs elsewhere."""

import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Final

from sqlalchemy.exc import DBAPIError

from rdukit.errors import InvalidArgument, Unavailable
from rdukit.interfaces import SystemClock
from rdukit.settings import HOME, LOG_LEVEL, resolve
from rdukit_platform.db.engine import Database, wait_until_reachable
from rdukit_platform.db.models import NodeRow
from rdukit_platform.nodes.registry import NodeLife, read_home_id
from rdukit_platform.settings import BROKER_URL, DATABASE_URL, Home
from rdukit_platform.up.run import READY_TIMEOUT_S, take_lock
from rdukit_platform.up.supervisor import Supervisor, list_node_children

#: Seconds between two looks whether the node has left.
LOOK_S: Final = 1.0
DATABASE_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class JoinedNode:
    """A node that has joined."""

    name: str
    home: str
    pid: int
    pids: dict[str, int]
    ready_s: float


def run_node(
    variables: Mapping[str, str], open_home: Callable[[], Home], announce: Callable[[JoinedNode], None]
) -> None:
    """Start the parts of a node, call ``announce`` when it has joined, and stay until SIGTERM or until it has left.

    Args:
        variables: of the environment, which name the platform.

    Raises:
        InvalidArgument: neither these nor the settings name the platform's database and broker.
        Conflict: another process has this home. Unavailable: a part does not come up; the message has its last words.
    """
    began = time.monotonic()
    os.environ |= variables  # for what is resolved here, and for the children
    for setting in (DATABASE_URL, BROKER_URL):
        if not resolve(setting):
            raise InvalidArgument(
                f"{setting.name} says nothing; a node joins the platform whose database and broker the settings, the "
                "environment or the options --database and --broker name"
            )
    home = open_home()
    name = home.node_name()
    lock = take_lock(home)
    stopping = False

    def ask_to_stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, ask_to_stop)
    watcher = _Watcher(Database.of_home(home), name, read_home_id(home.node_id_file), time.time())
    environment = {**os.environ, HOME.variable: str(home.folder)}
    environment.setdefault(LOG_LEVEL.variable, "INFO")
    supervisor = Supervisor(list_node_children(home), home.logs, environment)
    try:
        wait_until_reachable(watcher.database, DATABASE_S, SystemClock())
        supervisor.start()
        if not supervisor.watch(lambda: stopping or watcher.state() is NodeLife.UP, READY_TIMEOUT_S):
            raise Unavailable(
                f"node {name} had not joined after {READY_TIMEOUT_S:g} s; logs are in {home.logs}\n"
                f"{supervisor.last_words()}".rstrip()
            )
        if not stopping:
            ready_s = round(time.monotonic() - began, 2)
            announce(JoinedNode(name, str(home.folder), os.getpid(), supervisor.pids(), ready_s))
            supervisor.watch(lambda: stopping or watcher.state() is NodeLife.LEFT)
    finally:
        supervisor.stop()
        watcher.database.close()
        os.close(lock)


class _Watcher:
    """Looks how the platform sees this node, now and then."""

    def __init__(self, database: Database, name: str, home_id: str, since: float) -> None:
        self.database, self._name, self._home_id, self._since = database, name, home_id, since
        self._looked_at, self._state = float("-inf"), NodeLife.LOST

    def state(self) -> NodeLife:
        """Return the node's state; ``LOST`` until it has joined."""
        if time.monotonic() - self._looked_at >= LOOK_S:
            self._looked_at = time.monotonic()
            try:
                with self.database.read() as session:
                    row = session.get(NodeRow, self._name)
            except DBAPIError:
                return self._state
            if row is not None and row.home_id == self._home_id and row.beat_at >= self._since and row.capacity:
                self._state = NodeLife(row.state)
        return self._state
