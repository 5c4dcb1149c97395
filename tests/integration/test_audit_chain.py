"""The audit log's chains: what is written is intact, and each thing that can be done to it is found."""

import dataclasses
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from rdukit.errors import InvalidArgument
from rdukit_platform.audit.chain import GENESIS, ChainEnds, export, verify, verify_entries, verify_export
from rdukit_platform.audit.service import Act, AuditOutcome, AuditRecord, prune, record
from rdukit_platform.db.engine import Database
from support import shows
from support.platform.database import migrated_database
from support.platform.processes import fresh_database
from support.postgres import postgres_server

pytestmark = shows("audit", "security", "audit-log")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres_server() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    if request.param == "sqlite":
        with fresh_database(tmp_path) as made:
            yield made
        return
    server, name = request.getfixturevalue("server"), f"test{abs(hash(request.node.nodeid))}"
    with closing(Database(migrated_database(server, name))) as made:
        yield made


def add(database: Database, at: float, tenant: str | None = "ten-a", outcome: AuditOutcome = AuditOutcome.DONE) -> None:
    with database.write() as session:
        record(session, AuditRecord(at, Act.LOGIN, outcome, "tok-1", tenant, "ä\"'\\ 😀", detail=f"at {at}"))


def fill(database: Database) -> None:
    for k in range(6):
        add(database, 1.1 * k)
        add(database, 1e9 / 3 + k, "ten-b")
        add(database, float(k), None, AuditOutcome.REFUSED)


def change(database: Database, statement: str, **values: object) -> None:
    """Do to the log what somebody who can write the database does."""
    with database.write_connection() as connection:
        done = connection.execute(text(statement), values)
        assert done.rowcount >= 1


def find_id(database: Database, number: int, chain: str = "ten-a/done") -> str:
    with database.read() as session:
        query = text("SELECT id FROM audit WHERE chain = :chain AND number = :number")
        return str(session.execute(query, {"chain": chain, "number": number}).scalar_one())


def test_what_is_written_is_intact_for_all_and_for_each_tenant(database: Database) -> None:
    assert verify(database, None).is_intact, "a log without entries, too"
    fill(database)
    whole = verify(database, None)
    assert (whole.is_intact, whole.chains, whole.entries) == (True, 3, 18)
    own = verify(database, "ten-a")
    assert (own.is_intact, own.chains, own.entries) == (True, 1, 6)


@pytest.mark.parametrize("changed", [
    "detail = 'x'", "actor = 'tok-2'", "created_at = created_at + 0.001", "count = 2", "address = '::1'",
    "target = ''", "reason = 'x'", "action = 'x'", "tenant_id = NULL", "outcome = 'refused'",
    "digest = 'x'", "number = NULL", "chain = NULL", "chain = 'ten-b/done', number = 7",
])  # fmt: skip
def test_an_entry_that_was_changed_is_found(database: Database, changed: str) -> None:
    fill(database)
    name = find_id(database, 3)
    change(database, f"UPDATE audit SET {changed} WHERE id = :id", id=name)
    found = verify(database, None)
    assert not found.is_intact
    assert found.entry in {name, find_next(database)}, found


def find_next(database: Database) -> str:
    """Return the entry that lost its predecessor where the third was taken out."""
    return find_id(database, 4)


def test_deleted_entries_are_found_in_the_middle_and_at_both_ends(database: Database) -> None:
    fill(database)
    change(database, "DELETE FROM audit WHERE chain = 'ten-a/done' AND number = 6")
    assert "ends with entry 5 instead of 6" in verify(database, None).problem
    change(database, "DELETE FROM audit WHERE chain = 'ten-a/done' AND number = 3")
    found = verify(database, None)
    assert (found.entry, "entry 3 of ten-a/done is missing" in found.problem) == (find_id(database, 4), True)
    change(database, "DELETE FROM audit WHERE chain = 'ten-a/done' AND number = 1")
    assert "entry 1 of ten-a/done is missing" in verify(database, None).problem
    change(database, "DELETE FROM audit WHERE chain = 'ten-a/done'")
    assert "ends with entry 0 instead of 6" in verify(database, None).problem


def test_an_act_that_is_rolled_back_leaves_no_gap(database: Database) -> None:
    add(database, 1.0)
    with suppress(RuntimeError), database.write() as session:
        record(session, AuditRecord(2.0, Act.LOGIN, tenant_id="ten-a"))
        session.flush()
        raise RuntimeError
    add(database, 3.0)
    assert (verify(database, None).is_intact, verify(database, None).entries) == (True, 2)


def test_writers_at_once_make_one_chain_and_wait_for_each_other_in_no_circle(database: Database) -> None:
    def write(tenants: list[str]) -> None:
        for k in range(20):
            with database.write() as session:
                for tenant in tenants:
                    record(session, AuditRecord(float(k), Act.LOGIN, tenant_id=tenant))
                    session.flush()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(write, [["a", "b", "c"], ["c", "b", "a"]] * 3))
    found = verify(database, None)
    assert (found.is_intact, found.chains, found.entries) == (True, 3, 360)


def test_a_pruned_chain_is_verified_from_its_anchor_and_further_deletion_is_found(database: Database) -> None:
    fill(database)
    assert prune(database, 100.0, 96.7, 1000) == 4 + 3, "older than 3.3: of the tenant and of nobody"
    found = verify(database, None)
    assert (found.is_intact, found.entries) == (True, 11)
    assert prune(database, 100.0, 1e12, 5) == 8
    assert verify(database, None).is_intact
    add(database, 200.0)
    assert verify(database, None).is_intact
    first = min(int(json.loads(line)["number"]) for line in export(database) if b'"chain":"ten-a/done","number"' in line
                and b'"kind":"entry"' in line)  # fmt: skip
    change(database, f"DELETE FROM audit WHERE chain = 'ten-a/done' AND number = {first}")
    assert f"entry {first} of ten-a/done is missing" in verify(database, None).problem


def test_an_entry_that_is_younger_than_what_follows_keeps_it(database: Database) -> None:
    for at in (50.0, 10.0, 60.0):
        add(database, at)
    assert prune(database, 100.0, 60.0, 1000) == 0, "the clock had stepped: no gap is made"
    assert prune(database, 100.0, 45.0, 1000) == 2
    assert verify(database, None).is_intact


def test_an_export_is_verified_without_a_database(database: Database) -> None:
    fill(database)
    lines = list(export(database))
    assert len(lines) == 3 + 18
    assert verify_export(lines) == verify(database, None)
    assert not verify_export([line.replace(b"tok-1", b"tok-2") for line in lines]).is_intact
    assert not verify_export(lines[:-1]).is_intact
    assert not verify_export(lines[1:]).is_intact
    for wrong in (b"no JSON\n", b"[]\n", b'{"kind":"chain"}\n', b'{"kind":"entry"}\n'):
        with pytest.raises(InvalidArgument, match="line 1 is not from an export"):
            verify_export([wrong])


def test_entries_of_an_older_version_are_chained_and_can_be_taken_back(database: Database) -> None:
    def move(to: str) -> None:
        from alembic import command
        from alembic.config import Config

        from rdukit_platform.db.migrate import MIGRATIONS

        def run(connection: Connection) -> None:
            config = Config()
            config.set_main_option("script_location", str(MIGRATIONS))
            config.attributes["connection"] = connection
            (command.downgrade if to < "0015" else command.upgrade)(config, to)

        with database.write_connection() as connection:
            run(connection)

    fill(database)
    move("0014")
    move("0015")
    found = verify(database, None)
    assert (found.is_intact, found.chains, found.entries) == (True, 3, 18)
    add(database, 500.0)
    assert verify(database, None).is_intact


def test_a_chain_without_entries_is_intact_and_one_without_its_ends_is_not() -> None:
    ends = ChainEnds("a/done", 3, "x", 3, "x")
    assert verify_entries({"a/done": ends}, []).is_intact, "all of it was pruned"
    assert not verify_entries(
        {"a/done": dataclasses.replace(ends, anchor_number=0, anchor_digest=GENESIS)}, []
    ).is_intact
