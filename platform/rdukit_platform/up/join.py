"""``rdukit node join`` from its lock to its end: a node daemon and a worker for a platform that runs elsewhere."""

import logging
import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from types import FrameType
from typing import Final
from urllib.parse import urlsplit

from sqlalchemy import select
from sqlalchemy.exc import DBAPIError

from rdukit.errors import Conflict, InvalidArgument, NotFound, Unavailable
from rdukit.interfaces import Clock, SystemClock
from rdukit.settings import HOME, LOG_LEVEL, resolve
from rdukit.telemetry.spans import name_service
from rdukit_platform.artifacts.store import BlobStore
from rdukit_platform.artifacts.stores.opening import open_store
from rdukit_platform.db.engine import Database, wait_until_reachable
from rdukit_platform.db.migrate import read_revision
from rdukit_platform.db.models import ArtifactRow, NodeRow
from rdukit_platform.jobs.broker import Notifier
from rdukit_platform.nodes.registry import NodeLife, check_name, let_go, read_home_id
from rdukit_platform.settings import ARTIFACTS_STORE, BROKER_URL, DATABASE_URL, Home
from rdukit_platform.up.run import READY_TIMEOUT_S, take_lock
from rdukit_platform.up.supervisor import Supervisor, list_node_children

logger = logging.getLogger(__name__)

#: Seconds between checks whether the node has left.
LOOK_S: Final = 1.0
#: Seconds in which database and broker must answer: they may start at the same time.
ANSWER_S: Final = 30.0
#: Number of artifacts looked for, since one may be removed meanwhile.
LOOKED_AT: Final = 8


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
) -> str | None:
    """Start the parts of a node, call ``announce`` when it has joined, and stay until SIGTERM or until it has left.

    Returns the node's name if it has left, ``None`` if it was stopped.

    Args:
        variables: environment variables that name the platform.

    Raises:
        InvalidArgument: neither these nor the settings name the platform's database and broker.
        NotFound: the database is not a platform's, or the artifacts are not the platform's. Conflict: another process
        has this home, or another node its name.
        Unavailable: database or broker do not answer, or a part does not come up; the message has its last words.
    """
    began = time.monotonic()
    name_service("up")
    os.environ |= variables  # for what is resolved here, and for the children
    for setting in (DATABASE_URL, BROKER_URL):
        if not resolve(setting):
            raise InvalidArgument(
                f"{setting.name} is empty; name the platform's database and broker in the settings, the environment, "
                "or by --database and --broker"
            )
    home = open_home()
    lock = take_lock(home)
    try:
        # Before the start, a signal ends this process in the usual way.
        with closing(open_platform(home, SystemClock())) as database:
            check_artifacts(database, open_store(home))
            return _run(home, database, began, announce)
    finally:
        os.close(lock)


def open_platform(home: Home, clock: Clock) -> Database:
    """Return the database of the platform that the settings name; its broker answers as well.

    Raises:
        InvalidArgument: a URL is not valid. NotFound: the database is not a platform's.
        Unavailable: database or broker have not answered for ``ANSWER_S``.
    """
    file = home.database_file()
    if file is not None and not file.is_file():  # opening it would create it
        raise NotFound(
            f"there is no database {file}; name a platform's database, which rdukit up or its gateway creates"
        )
    try:
        notifier = Notifier(home.broker_url())
    except ValueError as cause:
        raise InvalidArgument(
            f"broker.url is not the URL of a broker: {cause}; expected such as redis://mq:6379/0 or "
            "redis+socket:///srv/rdukit/run/valkey.sock"
        ) from cause
    database = Database.of_home(home)
    with ExitStack() as undo, closing(notifier):
        undo.callback(database.close)
        where = database.url.render_as_string(hide_password=True)
        try:
            wait_until_reachable(database, ANSWER_S, clock)
            with database.read() as session:
                revision = read_revision(session.connection())
        except DBAPIError as cause:
            why = next(iter(str(cause.orig).splitlines()), "")
            raise Unavailable(f"database {where} does not answer: {why}") from cause
        if revision is None:
            raise NotFound(
                f"database {where} does not belong to a platform, because it lacks the tables; name a "
                "platform's database"
            )
        _wait_for_broker(notifier, clock)
        undo.pop_all()
    return database


def check_artifacts(database: Database, store: BlobStore) -> None:
    """Refuse a store without any of the platform's newest artifacts, because other nodes would miss outputs made here.

    Raises:
        NotFound: it is another folder or bucket than the platform's.
    """
    with database.read() as session:
        newest = select(ArtifactRow.digest).where(ArtifactRow.deleted_at.is_(None))
        digests = list(session.scalars(newest.order_by(ArtifactRow.created_at.desc()).limit(LOOKED_AT)))
    if digests and not any(store.has(digest) for digest in digests):
        raise NotFound(
            f"{store.where} has none of the platform's {len(digests)} newest artifacts; name the platform's folder or "
            f"bucket: --artifacts, or {ARTIFACTS_STORE.name}"
        )


def _wait_for_broker(notifier: Notifier, clock: Clock) -> None:
    if notifier.is_up():
        return
    parts = urlsplit(resolve(BROKER_URL))
    place = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"  # without a password
    logger.warning("broker not there yet broker=%s", place)
    deadline = clock.monotonic() + ANSWER_S
    while not notifier.is_up():
        if clock.monotonic() >= deadline:
            raise Unavailable(f"broker {place} does not answer")
        clock.sleep(LOOK_S)


def _run(home: Home, database: Database, began: float, announce: Callable[[JoinedNode], None]) -> str | None:
    name, home_id = home.node_name(), read_home_id(home.node_id_file)
    with database.read() as session:
        check_name(session, name, home_id, time.time())
    stopping = False

    def ask_to_stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, ask_to_stop)
    watcher = _Watcher(database, name, home_id, time.time())
    environment = {**os.environ, HOME.variable: str(home.folder)}
    environment.setdefault(LOG_LEVEL.variable, "INFO")
    supervisor = Supervisor(list_node_children(home), home.logs, environment)

    def must_end() -> bool:
        if words := supervisor.last_words_of(Conflict.exit_status):
            raise Conflict(f"node {name} cannot join; logs are in {home.logs}\n{words}")
        return stopping

    try:
        supervisor.start()
        if not supervisor.watch(lambda: must_end() or watcher.state() is NodeLife.UP, READY_TIMEOUT_S):
            raise Unavailable(
                f"node {name} had not joined after {READY_TIMEOUT_S:g} s; logs are in {home.logs}\n"
                f"{supervisor.last_words()}".rstrip()
            )
        if not stopping:
            ready_s = round(time.monotonic() - began, 2)
            announce(JoinedNode(name, str(home.folder), os.getpid(), supervisor.pids(), ready_s))
            supervisor.watch(lambda: must_end() or (watcher.state() is NodeLife.LEFT and watcher.let_go()))
        return None if stopping else name
    finally:
        supervisor.stop()
        watcher.let_go()


class _Watcher:
    """Reads periodically the platform's view of this node."""

    def __init__(self, database: Database, name: str, home_id: str, since: float) -> None:
        self._database, self._name, self._home_id, self._since = database, name, home_id, since
        self._looked_at, self._state = float("-inf"), NodeLife.LOST

    def state(self) -> NodeLife:
        """Return the node's state; ``LOST`` until it has joined."""
        if time.monotonic() - self._looked_at >= LOOK_S:
            self._looked_at = time.monotonic()
            try:
                with self._database.read() as session:
                    row = session.get(NodeRow, self._name)
            except DBAPIError:
                return self._state
            if row is not None and row.home_id == self._home_id and row.beat_at >= self._since and row.capacity:
                self._state = NodeLife(row.state)
        return self._state

    def let_go(self) -> bool:
        """Release the node if it has left, so that it cannot rejoin. Returns whether it had left."""
        try:
            with self._database.write() as session:
                return let_go(session, self._name, self._home_id)
        except DBAPIError:
            return False
