"""Bring a database to the newest schema. Every process of the platform does it at start; one of them has work to do."""

from pathlib import Path
from typing import Final

from sqlalchemy import Connection, inspect, text

from rdukit.interfaces import SystemClock
from rdukit_platform.db.engine import Database, wait_until_reachable

#: Revision of the newest migration; a test compares it with the folder.
HEAD: Final = "0016"
MIGRATIONS: Final = Path(__file__).parent / "migrations"
#: Composed services start together, and a database server may be the last.
START_WAIT_S: Final = 60.0
_ADVISORY_LOCK: Final = 0x7264756B


def migrate(database: Database) -> bool:
    """Apply the migrations that are missing, in one transaction. Returns whether there were any.

    Raises:
        OperationalError: a database server did not answer within ``START_WAIT_S``.
    """
    wait_until_reachable(database, START_WAIT_S, SystemClock())
    with database.read() as session:
        if _revision(session.connection()) == HEAD:
            return False
    with database.write_connection() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})
        if _revision(connection) == HEAD:
            return False
        _upgrade(connection)
    return True


def is_newest(database: Database) -> bool:
    """Return whether the database has the schema of this code."""
    with database.read() as session:
        return _revision(session.connection()) == HEAD


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    found = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return str(found) if found else None


def _upgrade(connection: Connection) -> None:
    from alembic import command  # half a second that a database which is up to date need not pay
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
