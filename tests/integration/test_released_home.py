"""The home folder of a released version goes on under this one."""

import time
from pathlib import Path

import pytest

from rdukit_platform.db.engine import Database
from rdukit_platform.db.migrate import is_newest, upgrade_to
from rdukit_platform.tenants.service import hash_token
from support import shows
from support.platform.processes import platform_under_test, short_folder

pytestmark = [shows("up", "jobs", "upgrade"), pytest.mark.long]

BOX = Path(__file__).parent / "platform_box.py"
#: The schema of rdukit 0.1.0.
RELEASED = "0007"
TOKEN = "rdk_" + "a" * 43


def test_a_home_of_the_released_version_starts_and_its_queued_job_runs() -> None:
    with short_folder() as home:
        home.chmod(0o700)
        database = Database(f"sqlite:///{home / 'db.sqlite'}")
        upgrade_to(database, RELEASED)
        with database.write_connection() as connection:
            for statement in (
                "INSERT INTO tenants (id, name, created_at) VALUES ('ten-000000000001', 'default', 1.5)",
                "INSERT INTO tokens (id, tenant_id, sha256, name, scopes, created_at) VALUES ('tok-000000000001', "
                f"""'ten-000000000001', '{hash_token(TOKEN)}', 'first', '["admin", "read", "write"]', 2.0)""",
                "INSERT INTO jobs (id, tenant_id, name, box, verb, parameters, inputs, outputs, tiles, max_attempts, "
                "state, version, attempt, failures, losses, created_at, queued_at) VALUES ('job-000000000001', "
                "'ten-000000000001', 'waits', 'counter', 'preprocess', '{}', '{}', '{}', 0, 3, 'queued', 1, 0, 0, 0, "
                "5.0, 5.0)",
                "INSERT INTO audit (id, created_at, tenant_id, actor, action, target, outcome, reason, detail, "
                f"address, count) VALUES ('aud-1', {time.time()}, 'ten-000000000001', 'host', 'create-token', "
                "'tok-000000000001', 'done', '', '', '', 1)",
            ):
                connection.exec_driver_sql(statement)
        database.close()
        (home / "token").write_text(TOKEN + "\n")
        (home / "token").chmod(0o600)
        with platform_under_test(home, BOX) as platform:
            done = platform.wait_end("job-000000000001")
            assert (done["state"], done["name"]) == ("succeeded", "waits")
            assert (home / "token").read_text().strip() == TOKEN, "the token of before stays valid"
            entries = platform.client.get("/v1/audit")["entries"]
            assert "tok-000000000001" in {entry["target"] for entry in entries}
        after = Database(f"sqlite:///{home / 'db.sqlite'}")
        assert is_newest(after)
        after.close()
