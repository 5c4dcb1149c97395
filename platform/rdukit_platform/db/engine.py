"""Transactions. Writers start with ``BEGIN IMMEDIATE``, so that none fails half-way with "database is locked"."""

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

from sqlalchemy import Connection, create_engine, event, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection, Dialect
from sqlalchemy.exc import ArgumentError, InterfaceError, InvalidatePoolError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection

from rdukit.errors import InvalidArgument
from rdukit.interfaces import Clock
from rdukit.strict_json import json_text
from rdukit.system.process import is_readable
from rdukit_platform.settings import Home

logger = logging.getLogger(__name__)

BUSY_TIMEOUT_S: Final = 15.0
#: Timeout in seconds for a connection to a server, unless the URL sets another.
CONNECT_S: Final = 5
#: Largest number of connections of a process to a server. Connecting forks a server process, so connections are kept.
CONNECTIONS: Final = 15
#: Idle time in seconds after which a connection is tested: a proxy or firewall may have dropped it.
IDLE_S: Final = 30.0
#: Errors that mean an unreachable database, or one so slow that all connections are in use.
AWAY: Final = (OperationalError, InterfaceError, PoolTimeout)
#: Option of connections that write: whether their commits wait for the disk.
_WRITES: Final = "rdukit_writes"
_IDLE_SINCE: Final = "rdukit_idle_since"
#: ``json.loads`` would create a decoder for each of the hundreds of values on a page of jobs.
_DECODER: Final = json.JSONDecoder(parse_constant=str)


def _read_json(text: str | bytes) -> Any:
    """Return the value of a text; empty objects, the most frequent ones, are not parsed."""
    if text in (b"{}", "{}"):
        return {}
    return _DECODER.decode(text.decode() if isinstance(text, bytes) else text)


#: Reports of boxes may have floats that JSON lacks and PostgreSQL refuses. Rows of earlier versions have them unquoted.
_JSON: Final[dict[str, Any]] = {
    "json_serializer": json_text,
    "json_deserializer": _read_json,
}


class _CommitLog:
    """SQLite's write-ahead log: threads with durable commits share one fsync, and hold no lock meanwhile.

    Source: group commit, as PostgreSQL has it. ``synchronous=FULL`` would fsync in each commit while blocking other
    writers, so the last of ten concurrent commits waits ten times. SQLite itself syncs before a checkpoint removes data
    from the log.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._turn, self._counting = threading.Lock(), threading.Lock()
        #: Number of commits so far, and of those on the disk.
        self._committed = self._synced = 0

    def sync(self) -> None:
        """Wait until all commits so far are on the disk.

        Raises:
            OSError: the disk cannot write it.
        """
        with self._counting:
            self._committed += 1
            own = self._committed
        with self._turn:
            if self._synced >= own:
                return  # another thread's sync that began after this commit
            most = self._committed
            with suppress(FileNotFoundError):  # removed when its last user checkpointed it
                descriptor = os.open(self._file, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    os.fdatasync(descriptor)
                finally:
                    os.close(descriptor)
            self._synced = most


class _ReadingSession(Session):
    """Session that refuses to write: no server would roll it back."""

    def flush(self, objects: Sequence[Any] | None = None) -> None:
        """Refuse changes; do nothing without any."""
        assert self._is_clean(), "rows were changed in a session that reads; open it by write()"


class Database:
    """Database, by URL. Thread-safe, but not fork-safe."""

    def __init__(self, url: str) -> None:
        self.url = make_url(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        if self.is_sqlite:
            if not self.url.database or self.url.database == ":memory:":
                raise ValueError("SQLite needs a file, because every connection to :memory: opens a separate database")
            _make_private(Path(self.url.database))
            arguments = {"timeout": BUSY_TIMEOUT_S, "check_same_thread": False}
            self.engine = create_engine(self.url, connect_args=arguments, pool_size=20, max_overflow=20, **_JSON)
            event.listen(self.engine, "connect", _set_up_sqlite)
            event.listen(self.engine, "begin", _begin_sqlite)
            self._turn: threading.Lock | None = threading.Lock()
            self._readers = self.engine
            self._log: _CommitLog | None = _CommitLog(Path(f"{self.url.database}-wal"))
        else:
            # A server whose machine is gone does not even refuse; a connection without a timeout waits for minutes.
            is_bound = "connect_timeout" in self.url.query or self.url.get_driver_name() != "psycopg"
            bound = {} if is_bound else {"connect_timeout": CONNECT_S}
            kept = {"pool_size": CONNECTIONS, "max_overflow": 0, "pool_use_lifo": True}
            self.engine = create_engine(self.url, connect_args=bound, **kept, **_JSON)
            event.listen(self.engine, "begin", _begin_postgresql)
            event.listen(self.engine, "checkin", _note_idle)
            event.listen(self.engine, "checkout", partial(_check_connection, self.engine.dialect))
            self._turn = self._log = None
            # Each statement has its own snapshot anyway, and a transaction would need two more round trips.
            self._readers = self.engine.execution_options(isolation_level="AUTOCOMMIT")
        self._writers = {
            is_durable: self.engine.execution_options(**{_WRITES: "durable" if is_durable else "soon"})
            for is_durable in (True, False)
        }
        #: Called at the start of each ``write``.
        self._check: Callable[[Session], None] = _let_all

    def fenced(self, check: Callable[[Session], None]) -> Self:
        """Return this database with a check that runs in each write, and whose errors prevent the write."""
        fenced = copy(self)
        fenced._check = check
        return fenced

    @classmethod
    def of_home(cls, home: Home) -> Self:
        """Return the database that the settings name.

        Raises:
            InvalidArgument: the setting is not a database URL.
        """
        try:
            return cls(home.database_url())
        except (ArgumentError, ImportError, ValueError) as cause:
            raise InvalidArgument(
                f"database.url is not the URL of a database: {cause}; expected one of SQLAlchemy's, such as "
                "sqlite:////srv/rdukit/db.sqlite or postgresql+psycopg://rdukit@db/rdukit"
            ) from cause

    @contextmanager
    def read(self) -> Iterator[Session]:
        """Yield a read-only session; its rows can be used afterwards.

        With SQLite it sees one snapshot. With a server each statement sees the commits before its start.
        """
        with _ReadingSession(self._readers, expire_on_commit=False) as session:
            yield session

    @contextmanager
    def write(self, *, is_durable: bool = True, on_commit: Callable[[], object] = lambda: None) -> Iterator[Session]:
        """Yield a session whose changes are committed together when the block ends, or not at all when it raises.

        Args:
            is_durable: the commit waits for the disk. Without it, a crashed process loses nothing, but a power failure
                may lose the last commits. That suits rows that are useless after a power failure, such as claims of
                attempts. The next durable commit also makes earlier ones durable.
            on_commit: called when others see the changes; for SQLite, before the sync has ended.

        Source: SQLite's ``synchronous=NORMAL`` in WAL mode, PostgreSQL's ``synchronous_commit=off``.
        """
        with self._in_turn(), Session(self._writers[is_durable], expire_on_commit=False) as session, session.begin():
            self._check(session)
            yield session
        on_commit()
        if is_durable and self._log is not None:
            self._log.sync()

    @contextmanager
    def write_connection(self) -> Iterator[Connection]:
        """Open ``write`` as a bare connection, for migrations."""
        with self._in_turn(), self._writers[True].begin() as connection:
            yield connection
        if self._log is not None:
            self._log.sync()

    @contextmanager
    def _in_turn(self) -> Iterator[None]:
        """Queue SQLite's writers of this process: SQLite has one at a time, and others would have to poll.

        A writer that waits too long continues, and the database refuses it.
        """
        has_turn = self._turn is not None and self._turn.acquire(timeout=BUSY_TIMEOUT_S)
        try:
            yield
        finally:
            if self._turn is not None and has_turn:
                self._turn.release()

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()


def _let_all(session: Session) -> None:
    """Permit every write."""


def _make_private(file: Path) -> None:
    """Create the file with access for this user only; SQLite gives its journals the same mode."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(OSError):  # errors are reported on connecting
        os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))


def _set_up_sqlite(connection: DBAPIConnection, record: ConnectionPoolEntry) -> None:
    connection.isolation_level = None
    cursor = connection.cursor()
    # Enabling WAL ignores the busy timeout while another process does the same.
    for attempt in range(50):
        try:
            mode = cursor.execute("PRAGMA journal_mode=WAL").fetchone()[0]
            break
        except Exception as error:
            if "locked" not in str(error) or attempt == 49:
                raise
            time.sleep(0.05)
    # Durable commits wait for the disk separately, after the commit.
    cursor.execute(f"PRAGMA synchronous={'NORMAL' if mode == 'wal' else 'FULL'}")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    is_writer = _WRITES in connection.get_execution_options()
    connection.exec_driver_sql("BEGIN IMMEDIATE" if is_writer else "BEGIN")


def _begin_postgresql(connection: Connection) -> None:
    if connection.get_execution_options().get(_WRITES) == "soon":
        connection.exec_driver_sql("SET LOCAL synchronous_commit TO off")


def _note_idle(connection: DBAPIConnection, record: ConnectionPoolEntry) -> None:
    record.info[_IDLE_SINCE] = time.monotonic()


def _check_connection(
    dialect: Dialect, connection: DBAPIConnection, record: ConnectionPoolEntry, proxy: PoolProxiedConnection
) -> None:
    """Refuse a pooled connection that the server has closed, and invalidate the pool.

    A server sends nothing unasked except its end, so only connections with data to read, or idle for long, are tested.

    Raises:
        InvalidatePoolError: the connection is closed; the pool opens a new one.
    """
    idle_s = time.monotonic() - record.info.get(_IDLE_SINCE, time.monotonic())
    driver: Any = connection
    if idle_s < IDLE_S and not driver.closed and not is_readable(driver.fileno()):
        return
    try:
        dialect.do_ping(connection)
    except dialect.loaded_dbapi.Error as error:
        raise InvalidatePoolError(f"the server has closed a connection: {error}") from error


def wait_until_reachable(database: Database, timeout_s: float, clock: Clock) -> None:
    """Wait for a database server that starts together with this process; a file needs no wait.

    Raises:
        OperationalError: it did not answer in time.
    """
    deadline = clock.monotonic() + timeout_s
    logged = ""
    while True:
        try:
            with database.read() as session:
                session.connection()
            return
        except OperationalError as error:
            if clock.monotonic() > deadline:
                raise
            if logged != (logged := str(error.orig)):
                logger.warning("database not yet reachable host=%s error=%s", database.url.host, logged)
        clock.sleep(1.0)


def is_reachable(database: Database) -> bool:
    """Return whether a query is answered at present."""
    try:
        with database.read() as session:
            session.connection().exec_driver_sql("SELECT 1")
    except OperationalError:
        return False
    return True
