"""Each migration, on a database with rows as that version wrote them, on SQLite and PostgreSQL; up and down."""

from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import inspect, select, text

from rdukit.errors import Conflict
from rdukit_platform.db.engine import Database
from rdukit_platform.db.migrate import VERSION_TABLE, configure, known_revisions, migrate, upgrade_to
from rdukit_platform.db.models import ArtifactRow, AttemptRow, Base, JobRow, TenantRow, TokenRow
from support import first_short, shows
from support.postgres import new_database, postgres_server

pytestmark = shows("operations")

#: Rows as the version of each revision wrote them, by plain SQL: what its own columns were.
ROWS = {
    "0001": """
INSERT INTO tenants (id, name, created_at) VALUES ('ten-1', 'default', 1.5);
INSERT INTO tokens (id, tenant_id, sha256, name, scopes, created_at, revoked_at)
    VALUES ('tok-1', 'ten-1', 'aa', 'first', '["read", "write", "admin"]', 2.0, NULL);
INSERT INTO pipelines (id, tenant_id, name, idempotency_key, created_at) VALUES ('pip-1', 'ten-1', 'p', 'key', 3.0);
INSERT INTO jobs (id, tenant_id, pipeline_id, step, name, box, verb, parameters, inputs, outputs, tiles, max_attempts,
        state, reason, error, result, progress, waits_for, version, attempt, failures, created_at, queued_at)
    VALUES ('job-1', 'ten-1', 'pip-1', 'compile', 'c', 'logreg', 'compile', '{"mode": "o3"}', '{}', '{"pef": "art-1"}',
        0, 3, 'succeeded', 'completed', NULL, '{"sections": 3}', NULL, NULL, 4, 1, 0, 4.0, 4.5);
INSERT INTO jobs (id, tenant_id, name, box, verb, parameters, inputs, outputs, tiles, max_attempts, state, version,
        attempt, failures, created_at, queued_at)
    VALUES ('job-2', 'ten-1', 't', 'logreg', 'train', '{}', '{"pef": "art-1"}', '{}', 4, 3, 'queued', 1, 0, 0, 5, 5);
INSERT INTO attempts (id, job_id, number, token, published_at, worker, ended_at, outcome, tiles, box_pid)
    VALUES ('att-1', 'job-1', 1, 'secret', 4.6, 'w1', 9.0, 'succeeded', '["/NODE/XRDU_0/RDU_0/TILE_0"]', 4711);
INSERT INTO job_events (job_id, attempt, kind, at, data) VALUES ('job-1', 1, 'state', 4.7, '{"to": "running"}');
INSERT INTO artifacts (id, tenant_id, name, kind, digest, bytes, is_folder, job_id, slot, created_at)
    VALUES ('art-1', 'ten-1', 'pef of c', 'pef', 'dd', 2000000000, FALSE, 'job-1', 'pef', 9.0);
INSERT INTO artifacts (id, tenant_id, name, kind, digest, bytes, is_folder, created_at)
    VALUES ('art-2', 'ten-1', 'data', 'folder', 'ee', 7, TRUE, 9.0);
INSERT INTO lineage (child, parent, slot, job_id) VALUES ('art-1', 'art-2', 'dataset', 'job-1');
""",
    "0002": """
UPDATE attempts SET box = '{"backend": "process", "id": "4711", "limits": {}}' WHERE id = 'att-1';
""",
    "0003": """
UPDATE jobs SET losses = 2 WHERE id = 'job-2';
UPDATE artifacts SET file_name = 'model.pef' WHERE id = 'art-1';
""",
    "0004": """
INSERT INTO boxes (id, tenant_id, name, version, description, artifact_id, digest, created_at)
    VALUES ('box-1', 'ten-1', 'mine', 1, '{"name": "mine"}', 'art-2', 'ee', 10.0);
UPDATE jobs SET box_version = 1 WHERE id = 'job-2';
""",
    "0005": """
INSERT INTO audit (id, created_at, tenant_id, actor, action, target, outcome, reason, detail, address, count)
    VALUES ('aud-1', 11.0, 'ten-1', 'tok-1', 'create-token', 'tok-2', 'done', '', 'x', '127.0.0.1', 1);
""",
    "0006": """
UPDATE tokens SET expires_at = 99.0, last_used_at = 12.0, made_by = 'host', replaced_by = 'tok-3' WHERE id = 'tok-1';
""",
    "0007": """
INSERT INTO services (id, kind, slots, walls, started_at, beat_at) VALUES ('w1', 'worker', 4, 'fence', 1.0, 2.0);
""",
    "0008": """
UPDATE tenants SET weight = 2.5 WHERE id = 'ten-1';
UPDATE jobs SET priority = 7, run_limit_s = 60, labels = '{"a": "b"}', wait_code = 'Resources' WHERE id = 'job-2';
""",
    "0009": """
INSERT INTO experts (id, tenant_id, name, version, box, checkpoint_id, pef_id, description, licence, metrics, job_id,
        created_at)
    VALUES ('exp-1', 'ten-1', 'digits', 1, 'logreg', 'art-2', 'art-1', 'd', 'MIT', '{"accuracy": 0.9}', 'job-1', 13.0);
""",
    "0012": """
UPDATE tenants SET artifact_bytes = 5000 WHERE id = 'ten-1';
UPDATE artifacts SET pinned_at = 14.0 WHERE id = 'art-1';
""",
    "0011": """
INSERT INTO sweeps (id, tenant_id, name, request, state, version, created_at)
    VALUES ('swe-1', 'ten-1', 's', '{"x": 1}', 'running', 0, 15.0);
INSERT INTO trials (sweep_id, number, job_id, parameters, value, curve)
    VALUES ('swe-1', 1, 'job-2', '{"lr": 0.1}', 0.5, '[[1, 2.5]]');
""",
    "0013": """
INSERT INTO endpoints (id, tenant_id, name, held_name, revision, replicas, created_at, updated_at)
    VALUES ('end-1', 'ten-1', 'digits', 'digits', 1, 1, 16.0, 16.0);
INSERT INTO endpoint_revisions (id, endpoint_id, number, box, pef_id, checkpoint_id, expert_id, tiles, created_at)
    VALUES ('rev-1', 'end-1', 1, 'logreg', 'art-1', 'art-2', 'exp-1', 2, 16.0);
INSERT INTO endpoint_replicas (id, endpoint_id, revision, state, token, created_at)
    VALUES ('rep-1', 'end-1', 1, 'ended', 'secret', 16.0);
INSERT INTO endpoint_usage (endpoint_id, day, requests, failures, rows, prompt_tokens, completion_tokens)
    VALUES ('end-1', 20000, 5000000000, 1, 2, 3, 4);
""",
    "0014": """
UPDATE tokens SET role = 'operator' WHERE id = 'tok-1';
""",
    "0015": """
INSERT INTO audit_chains (chain, number, digest, anchor_number, anchor_digest) VALUES ('x/done', 1, 'aa', 0, 'bb');
""",
    "0016": "",
    "0017": """
UPDATE jobs SET deadline_at = 99.0, start_by = 39.0, retry = '{"on": ["expired"]}' WHERE id = 'job-2';
UPDATE attempts SET pause_asked_at = 17.0 WHERE id = 'att-1';
""",
    "0018": """
UPDATE tenants SET quota = 8, max_tiles = 16, max_jobs = 4 WHERE id = 'ten-1';
UPDATE jobs SET preemptible = true, preemptions = 2 WHERE id = 'job-2';
UPDATE attempts SET preempt_asked_at = 18.0 WHERE id = 'att-1';
""",
    "0019": """
INSERT INTO organisations (id, name, created_at) VALUES ('org-1', 'acme', 19.0);
UPDATE tenants SET organisation_id = 'org-1' WHERE id = 'ten-1';
INSERT INTO users (id, issuer, subject, email, name, is_admin, created_at)
    VALUES ('usr-1', 'https://issuer', 's', 'ada@example.com', 'Ada', false, 19.0);
INSERT INTO memberships (user_id, tenant_id, role, is_claimed, created_at)
    VALUES ('usr-1', 'ten-1', 'viewer', false, 19.0);
INSERT INTO organisation_admins (organisation_id, user_id, created_at) VALUES ('org-1', 'usr-1', 19.0);
UPDATE tokens SET user_id = NULL, is_session = false WHERE id = 'tok-1';
""",
    "0020": """
UPDATE endpoints SET canary = 2, canary_percent = 10, idle_s = 60.0, called_at = 17.0 WHERE id = 'end-1';
""",
    "0021": """
INSERT INTO webhooks (id, tenant_id, url, events, secret, created_at)
    VALUES ('hook-1', 'ten-1', 'https://example.org', '["job.failed"]', 'whsec_QQ==', 20.0);
INSERT INTO deliveries (id, webhook_id, tenant_id, event, body, state, due_at, give_up_at, attempts, created_at)
    VALUES ('msg-1', 'hook-1', 'ten-1', 'job.failed', '{"type": "job.failed"}', 'pending', 21.0, 99.0, 1, 20.0);
""",
    "0022": "",
    "0023": """
INSERT INTO nodes (name, home_id, host, state, labels, capacity, leased, told, beats, beat_at, joined_at, changed_at)
    VALUES ('one', 'h-1', 'one.lan', 'up', '{"zone": "a"}', '{"tiles": 8}', '["job-1"]', '{"state": "up"}', 5000000000,
        17.0, 16.0, 16.0);
INSERT INTO node_orders (id, node, operation, arguments, ordered_by, created_at)
    VALUES ('ord-1', 'one', 'cordon', '{"component": "/NODE"}', 'tok-1', 17.0);
UPDATE attempts SET node = 'one', kept = 'aa';
""",
    "0024": """
UPDATE jobs SET "references" = '{"pef": "@build.pef"}', cache_base = 'aa', cache_key = 'bb', cached_from = 'job-1'
    WHERE id = 'job-2';
""",
    "0025": """
INSERT INTO oidc_logins (state_sha256, browser_sha256, nonce, verifier, redirect_uri, next, expires_at)
    VALUES ('s', 'b', 'n', 'v', 'https://rdukit.example/console/oidc/callback', '/console/', 22.0);
INSERT INTO device_logins (device_sha256, user_code, name, address, token_id, is_denied, next_poll_at, expires_at)
    VALUES ('d', 'BCDF-GHJK', 'laptop', '127.0.0.1', NULL, false, 22.0, 22.0);
""",
    "0026": """
UPDATE jobs SET members = 2 WHERE id = 'job-2';
""",
    "0027": """
INSERT INTO schedules (id, tenant_id, name, cron, zone, missed, overlap, request, created_at, next_at)
    VALUES ('sched-1', 'ten-1', 'nightly', '0 3 * * *', 'Europe/Berlin', 'skip', 'queue', '{"steps": []}', 23.0, 99.0);
INSERT INTO scheduled_runs (schedule_id, due_at, state, pipeline_id, at)
    VALUES ('sched-1', 60.0, 'started', 'pipe-1', 61.0);
""",
    "0028": """
INSERT INTO job_labels (job_id, key, value, tenant_id, created_at) VALUES ('job-1', 'c', 'd', 'ten-1', 3.0);
""",
    "0029": """
UPDATE jobs SET "constraint" = '{"zone": "a"}' WHERE id = 'job-2';
UPDATE nodes SET given_labels = '{"zone": "b"}' WHERE name = 'one';
""",
    "0030": """
UPDATE webhooks SET disabled_at = 24.0, disabled_reason = 'it failed', failures = 20, failing_since = 21.0
    WHERE id = 'hook-1';
""",
    "0031": """
UPDATE jobs SET submitted_by = 'tok-1' WHERE id = 'job-2';
UPDATE sweeps SET submitted_by = 'usr-1' WHERE id = 'swe-1';
""",
    "0032": """
INSERT INTO scheduler_lease (name, holder, place, token, beats, beat_at)
    VALUES ('scheduler', 'scheduler@one:7', 'boot/pid:[1]', 3, 9, 24.0);
""",
    "0033": """
INSERT INTO attempt_parts (id, attempt_id, number, members, token, published_at, node)
    VALUES ('part-1', 'att-1', 1, 2, 'tok', 25.0, 'two');
UPDATE attempts SET address = 'one.lan:7400' WHERE id = 'att-1';
UPDATE nodes SET link_host = 'one.lan' WHERE name = 'one';
""",
    "0034": """
UPDATE schedules SET submitted_by = 'usr-1' WHERE id = 'sched-1';
""",
    "0035": """
INSERT INTO lineage (child, parent, slot) VALUES ('art-2', 'art-1', 'configurations.0');
UPDATE endpoint_revisions SET bundle_id = 'art-2', models = '[{"name": "poet"}]' WHERE id = 'rev-1';
INSERT INTO endpoint_usage (endpoint_id, day, revision, model, requests, failures, rows, prompt_tokens,
    completion_tokens) VALUES ('end-1', 20000, 1, 'poet', 1, 0, 0, 2, 3);
""",
    "0036": """
UPDATE tokens SET blocked_at = 26.0 WHERE id = 'tok-1';
""",
    "0037": f"""
INSERT INTO ended_sessions (cookie_sha256, expires_at) VALUES ('{"0" * 64}', 26.0);
""",
    "0038": """
UPDATE jobs SET profile = true WHERE id = 'job-2';
""",
}
#: What rdukit 0.1.0 had.
RELEASED = "0007"


@pytest.fixture(scope="module", params=first_short(["sqlite", "postgresql"]))
def server(request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield the address of a PostgreSQL server; empty: SQLite is tried."""
    if request.param == "sqlite":
        yield ""
        return
    with postgres_server() as url:
        yield url


@pytest.fixture
def database(server: str, tmp_path: Path) -> Iterator[Database]:
    """An empty database."""
    url = new_database(server, "migrations") if server else f"sqlite:///{tmp_path / 'db.sqlite'}"
    with closing(Database(url)) as opened:
        yield opened


def write_rows(database: Database, step: str) -> None:
    """Write the rows of a revision."""
    with database.write_connection() as connection:
        for statement in filter(str.strip, ROWS.get(step, "").split(";")):
            connection.exec_driver_sql(statement)


def fill(database: Database, revision: str) -> None:
    """Bring an empty database to a revision, with the rows that its version and those before it write."""
    for step in known_revisions():
        upgrade_to(database, step)
        write_rows(database, step)
        if step == revision:
            return


def downgrade_to(database: Database, revision: str) -> None:
    """Undo the migrations after a revision."""
    with database.write_connection() as connection:
        command.downgrade(configure(connection), revision)


def check_newest(database: Database) -> None:
    """Check that the schema is the models', and that they read all rows."""
    with database.read() as session:
        assert compare_metadata(MigrationContext.configure(session.connection()), Base.metadata) == []
        for mapper in Base.registry.mappers:
            session.scalars(select(mapper.class_)).all()


def dump(database: Database) -> dict[str, list[dict[str, Any]]]:
    """Return all rows of all tables."""
    with database.read() as session:
        connection = session.connection()
        tables = [name for name in inspect(connection).get_table_names() if name != VERSION_TABLE]
        return {
            name: sorted(map(dict, connection.execute(text(f"SELECT * FROM {name}")).mappings()), key=repr)
            for name in tables
        }


def only_columns_of(rows: dict[str, list[dict[str, Any]]], like: dict[str, list[dict[str, Any]]]) -> object:
    """Return the rows of the tables and columns that ``like`` has too."""
    names = {table: set(found[0]) if found else set() for table, found in like.items()}
    return {
        table: sorted([{k: v for k, v in row.items() if k in names[table]} for row in rows[table]], key=repr)
        for table in like
    }


def as_compared(rows: dict[str, list[dict[str, Any]]]) -> object:
    return only_columns_of(rows, rows)


def test_the_revisions_have_rows_here_from_the_first_one_on() -> None:
    assert list(ROWS) == known_revisions()[: len(ROWS)]


def test_each_migration_keeps_all_rows_there_and_back(database: Database) -> None:
    steps = known_revisions()
    fill(database, steps[0])
    for old, new in pairwise(steps):
        before = dump(database)
        upgrade_to(database, new)
        assert only_columns_of(dump(database), before) == as_compared(before), new
        downgrade_to(database, old)
        assert dump(database) == before, new
        upgrade_to(database, new)
        write_rows(database, new)
    check_newest(database)
    # Those who go back take what the newer version wrote with them.
    downgrade_to(database, steps[0])
    migrate(database)
    check_newest(database)


def test_the_released_version_is_upgraded_at_once_there_and_back(database: Database) -> None:
    fill(database, RELEASED)
    before = dump(database)
    migrate(database)
    assert only_columns_of(dump(database), before) == as_compared(before)
    check_newest(database)
    downgrade_to(database, RELEASED)
    assert dump(database) == before
    migrate(database)
    check_newest(database)


def test_rows_of_the_first_version_have_the_defaults_of_what_came_later(database: Database) -> None:
    fill(database, "0001")
    migrate(database)
    with database.read() as session:
        tenant, token = session.get_one(TenantRow, "ten-1"), session.get_one(TokenRow, "tok-1")
        done, queued = session.get_one(JobRow, "job-1"), session.get_one(JobRow, "job-2")
        attempt = session.get_one(AttemptRow, "att-1")
    assert (tenant.weight, tenant.artifact_bytes, tenant.quota, tenant.max_tiles) == (1.0, None, None, None)
    assert (token.scopes, token.expires_at) == (["read", "write", "admin"], None)
    assert (done.parameters, done.result, done.outputs) == ({"mode": "o3"}, {"sections": 3}, {"pef": "art-1"})
    assert (queued.priority, queued.losses, queued.labels, queued.run_limit_s) == (0, 0, {}, None)
    assert (queued.preemptible, queued.preemptions, queued.members, queued.profile) == (False, 0, 1, False)
    assert (attempt.tiles, attempt.box) == (["/NODE/XRDU_0/RDU_0/TILE_0"], None)


def test_tokens_of_users_go_with_the_users_when_the_migration_is_undone(database: Database) -> None:
    fill(database, "0001")
    upgrade_to(database, "0019")
    with database.write_connection() as connection:
        for name, is_session in (("tok-8", "false"), ("tok-9", "true")):
            connection.exec_driver_sql(
                "INSERT INTO tokens (id, tenant_id, sha256, name, scopes, created_at, user_id, is_session) "
                f"VALUES ('{name}', 'ten-1', '{name}', 'of a user', '[\"read\"]', 19.0, 'usr-1', {is_session})"
            )
    downgrade_to(database, "0018")
    assert [row["id"] for row in dump(database)["tokens"]] == ["tok-1"]


def test_more_bytes_than_the_first_schema_could_count_are_kept(database: Database) -> None:
    fill(database, RELEASED)
    migrate(database)
    with database.write_connection() as connection:
        connection.exec_driver_sql("UPDATE artifacts SET bytes = 5000000000 WHERE id = 'art-1'")
    with database.read() as session:
        assert session.get_one(ArtifactRow, "art-1").bytes == 5_000_000_000


def test_a_database_of_a_newer_version_is_refused_and_left_as_it_is(database: Database) -> None:
    migrate(database)
    with database.write_connection() as connection:
        connection.exec_driver_sql(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
    before = dump(database)
    with pytest.raises(Conflict, match="has the schema 9999, which is newer than this rdukit's"):
        migrate(database)
    assert dump(database) == before
