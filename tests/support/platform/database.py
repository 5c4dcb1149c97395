"""Migrated databases, each a copy of one that was migrated once: tests that are about something else start sooner."""

import os
import tempfile
from contextlib import closing
from functools import cache
from pathlib import Path

from rdukit_platform.db.engine import Database
from rdukit_platform.db.migrate import migrate
from support.postgres import new_database


@cache
def migrated_file() -> bytes:
    """Return the content of a migrated SQLite database without rows."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "db.sqlite")
        with closing(Database(f"sqlite:///{path}")) as database:
            migrate(database)
        assert not path.with_name("db.sqlite-wal").exists(), "its last connection wrote everything into the file"
        return path.read_bytes()


def place_database(home: Path) -> None:
    """Put a migrated database into a home folder that has none."""
    path = home / "db.sqlite"
    if not path.exists():
        home.mkdir(parents=True, exist_ok=True)
        path.touch(0o600)
        path.write_bytes(migrated_file())


@cache
def _migrated_template(server: str) -> str:
    """Make the database of a PostgreSQL server that others copy. Returns its name."""
    name = f"migrated_{os.getpid()}"
    with closing(Database(new_database(server, name))) as database:
        migrate(database)
    return name


def migrated_database(server: str, name: str) -> str:
    """Make a migrated PostgreSQL database; one of this name goes. Returns its URL."""
    return new_database(server, name, _migrated_template(server))
