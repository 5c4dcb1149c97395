"""The database of a backup: always one SQLite file, even for a PostgreSQL platform.

SQLite is copied by its online backup, PostgreSQL row by row in one snapshot; neither blocks writers. A restore migrates
the file to the newest schema. It replaces a SQLite database, or is copied into a PostgreSQL one, so a backup can also
move a platform between the two.
"""

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sqlalchemy import JSON, Column, Connection, Engine, MetaData, Table, Text, cast, func, inspect, select, text

from rdukit.errors import Conflict, InvalidArgument
from rdukit_platform.db.engine import Database
from rdukit_platform.db.migrate import VERSION_TABLE, known_revisions, migrate, read_revision, upgrade_to
from rdukit_platform.services import GONE_S

#: Number of rows in memory at once.
ROWS: Final = 1000


@dataclass(frozen=True, slots=True)
class Copied:
    """Copy of a database: the revision of its schema and the number of rows of each table."""

    schema: str
    rows: dict[str, int]


def copy_out(database: Database, file: Path, on_rows: Callable[[int], None] = lambda count: None) -> Copied:
    """Copy a snapshot of the database to a new SQLite file.

    Args:
        on_rows: called from time to time with the number of copied rows.
    Raises:
        InvalidArgument: the database has no schema yet, or an unknown one.
    """
    with database.read() as session:
        revision = read_revision(session.connection())
    if revision is None:
        raise InvalidArgument(f"the database {database.url.render_as_string()} is empty: no platform has run here")
    if database.is_sqlite:
        assert database.url.database is not None
        copy_sqlite(Path(database.url.database), file)
    else:
        _copy_server(database, file, on_rows)
    return describe(file)


def copy_sqlite(source: Path, target: Path) -> None:
    """Copy a SQLite database to a new file while others write to it."""
    uri = f"{source.absolute().as_uri()}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True, timeout=60)) as old, closing(sqlite3.connect(target)) as new:
        # In one step, because a copy in several steps restarts after each concurrent change.
        old.backup(new)
        new.execute("PRAGMA journal_mode=DELETE")


def describe(file: Path) -> Copied:
    """Return schema and numbers of rows of a copy.

    Raises:
        InvalidArgument: the file is damaged.
    """
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            found = connection.execute("PRAGMA quick_check").fetchone()[0]
            if found != "ok":
                raise InvalidArgument(f"the database of the backup is damaged: {found}")
            (schema,) = connection.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchone()
            names = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name"
            tables = [name for (name,) in connection.execute(names) if name != VERSION_TABLE]
            rows = {name: connection.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0] for name in tables}
    except (sqlite3.DatabaseError, TypeError) as cause:
        raise InvalidArgument(f"the database of the backup is damaged: {cause}") from cause
    return Copied(str(schema), rows)


def check_schema(schema: str, version: str) -> None:
    """Refuse a schema that this version has no migration of.

    Raises:
        InvalidArgument: the schema is newer.
    """
    if schema not in (known := known_revisions()):
        raise InvalidArgument(
            f"the backup was written by rdukit {version} with the database schema {schema}, which is newer than this "
            f"rdukit's {known[-1]}; restore it with rdukit {version} or newer"
        )


def check_free(database: Database, now: float, *, is_forced: bool) -> None:
    """Refuse a database in use, or, unless forced, one with rows.

    Raises:
        Conflict: a platform uses the database, or the database is not empty.
    """
    with database.read() as session:
        connection = session.connection()
        tables = inspect(connection).get_table_names()
        if not tables:
            return
        if "services" in tables:
            seen = connection.execute(text("SELECT id FROM services WHERE beat_at > :at"), {"at": now - GONE_S})
            if found := list(seen.scalars()):
                raise Conflict(f"a platform runs on this database ({', '.join(found)}); stop it first")
        has_rows = "tenants" in tables and connection.execute(text("SELECT 1 FROM tenants LIMIT 1")).scalar()
        if has_rows and not is_forced:
            where = database.url.render_as_string()
            raise Conflict(f"the database {where} is not empty; --force replaces all that is in it")


def bring_to_head(file: Path) -> bool:
    """Apply the migrations that a copy lacks. Returns whether there were any."""
    copy = Database(f"sqlite:///{file}")
    try:
        is_older = migrate(copy)
    finally:
        copy.close()
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")
    return is_older


def copy_in(file: Path, database: Database, on_rows: Callable[[int], None] = lambda count: None) -> None:
    """Replace all rows of a PostgreSQL database in one transaction, by those of a copy with the newest schema."""
    migrate(database)
    opened = closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True))
    with opened as copy, database.write_connection() as connection:
        tables = _tables(connection, describe(file).rows)
        names = ", ".join(f'"{table.name}"' for table in tables)
        connection.execute(text(f"TRUNCATE {names}"))
        done = 0
        for table in tables:
            for rows in _batches(copy, table):
                _insert(connection, table, rows)
                done += len(rows)
                on_rows(done)
            _set_sequence(connection, table)


def _copy_server(database: Database, file: Path, on_rows: Callable[[int], None]) -> None:
    with _snapshot(database.engine) as source:
        revision = read_revision(source)
        assert revision is not None
        check_known(revision)
        empty = Database(f"sqlite:///{file}")
        try:
            upgrade_to(empty, revision)
        finally:
            empty.close()
        done = 0
        with closing(sqlite3.connect(file)) as copy:
            for table in _tables(source, describe(file).rows):
                marks = ", ".join("?" for _ in table.columns)
                insert = f'INSERT INTO "{table.name}" ({_names(table)}) VALUES ({marks})'
                query = select(*(_as_stored(column) for column in table.columns))
                for rows in source.execution_options(yield_per=ROWS).execute(query).partitions():
                    copy.executemany(insert, rows)
                    done += len(rows)
                    on_rows(done)
            copy.commit()
            copy.execute("PRAGMA journal_mode=DELETE")


def check_known(revision: str) -> None:
    """Refuse a database of a newer version.

    Raises:
        InvalidArgument: the schema is newer than this rdukit's.
    """
    if revision not in (known := known_revisions()):
        raise InvalidArgument(
            f"the database has the schema {revision}, which is newer than this rdukit's {known[-1]}; use a newer rdukit"
        )


@contextmanager
def _snapshot(engine: Engine) -> Iterator[Connection]:
    """Yield a connection that sees one state of a PostgreSQL database, and writes nothing."""
    with engine.connect() as connection:
        options: dict[str, Any] = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
        yield connection.execution_options(**options)


def _tables(connection: Connection, names: Iterable[str]) -> Sequence[Table]:
    """Return these tables; each follows the tables that it refers to."""
    metadata = MetaData()
    metadata.reflect(connection, only=list(names))
    return metadata.sorted_tables


def _as_stored(column: Column[Any]) -> Any:
    """Return the expression that selects a column unchanged for SQLite: JSON as its text."""
    return cast(column, Text) if isinstance(column.type, JSON) else column


def _names(table: Table) -> str:
    return ", ".join(f'"{column.name}"' for column in table.columns)


def _batches(copy: sqlite3.Connection, table: Table) -> Iterator[list[tuple[Any, ...]]]:
    is_bool = [column.type.python_type is bool for column in table.columns]
    cursor = copy.execute(f'SELECT {_names(table)} FROM "{table.name}"')
    while rows := cursor.fetchmany(ROWS):
        yield [
            tuple(bool(v) if flag and v is not None else v for v, flag in zip(row, is_bool, strict=True))
            for row in rows
        ]


def _insert(connection: Connection, table: Table, rows: Sequence[tuple[Any, ...]]) -> None:
    driver: Any = connection.connection.driver_connection
    with driver.cursor() as cursor, cursor.copy(f'COPY "{table.name}" ({_names(table)}) FROM STDIN') as copying:
        for row in rows:
            copying.write_row(row)


def _set_sequence(connection: Connection, table: Table) -> None:
    """Set the server's sequence to continue after the rows' numbers."""
    for column in table.primary_key.columns:
        found = connection.execute(select(func.pg_get_serial_sequence(table.name, column.name))).scalar()
        if found:
            highest = connection.execute(select(func.max(column))).scalar()
            connection.execute(select(func.setval(found, highest or 1, highest is not None)))
