"""Bring a database to the newest schema. Every process of the platform calls it at start; the first one migrates."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, inspect, text

from rdukit.errors import Conflict
from rdukit.interfaces import SystemClock
from rdukit_platform.db.engine import Database, wait_until_reachable

if TYPE_CHECKING:
    from alembic.config import Config

MIGRATIONS: Final = Path(__file__).parent / "migrations"
#: Revision of the newest migration, from the names of their files; a test compares it with their content.
HEAD: Final = max(file.name[1:5] for file in MIGRATIONS.glob("versions/r*.py"))
#: Composed services start together, and a database server may be the last.
START_WAIT_S: Final = 60.0
#: Alembic's own table, with the revision.
VERSION_TABLE: Final = "alembic_version"
_ADVISORY_LOCK: Final = 0x7264756B


def migrate(database: Database) -> bool:
    """Apply the migrations that are missing, in one transaction. Returns whether there were any.

    Raises:
        OperationalError: a database server did not answer within ``START_WAIT_S``.
        Conflict: a newer version has migrated it.
    """
    wait_until_reachable(database, START_WAIT_S, SystemClock())
    with database.read() as session:
        if read_revision(session.connection()) == HEAD:
            return False
    return upgrade_to(database, HEAD)


def upgrade_to(database: Database, revision: str) -> bool:
    """Apply the migrations up to a revision, in one transaction. Returns whether there were any.

    Raises:
        Conflict: a newer version has migrated it.
    """
    with database.write_connection() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})
        found = read_revision(connection)
        if found == revision:
            return False
        if found is not None and found not in (known := known_revisions()):
            raise Conflict(
                f"the database has the schema {found}, which is newer than this rdukit's {known[-1]}; use the rdukit "
                "that migrated it or a newer one, or restore an earlier backup: rdukit restore"
            )
        _upgrade(connection, revision)
    return True


def is_newest(database: Database) -> bool:
    """Return whether the database has the schema of this code."""
    with database.read() as session:
        return read_revision(session.connection()) == HEAD


def read_revision(connection: Connection) -> str | None:
    """Return the revision of a database's schema; ``None``: there is no schema."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    found = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()
    return str(found) if found else None


def known_revisions() -> list[str]:
    """Return the revisions of all migrations, the first one first."""
    from alembic.script import ScriptDirectory

    return [script.revision for script in ScriptDirectory(str(MIGRATIONS)).walk_revisions()][::-1]


def _upgrade(connection: Connection, revision: str) -> None:
    from alembic import command  # importing takes half a second, which an up-to-date database need not pay

    command.upgrade(configure(connection), revision)


def configure(connection: Connection) -> "Config":
    """Return Alembic's configuration for a connection and its transaction."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config
