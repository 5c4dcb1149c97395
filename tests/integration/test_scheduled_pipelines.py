"""Scheduled pipelines: two schedulers of which one is killed, on both databases; and a platform with its commands."""

import json
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from sqlalchemy import func, select, update

from rdukit_platform.console.access import COOKIE
from rdukit_platform.db.engine import Database
from rdukit_platform.db.migrate import migrate
from rdukit_platform.db.models import PipelineRow, ScheduledRunRow, ScheduleRow
from rdukit_platform.schedules.service import ScheduleRequest, create_schedule
from rdukit_platform.tenants.service import create_tenant
from support import shows, wait_until
from support.platform.processes import COUNTER, PlatformUnderTest, platform_under_test, run_rdukit, short_folder
from support.postgres import new_database, postgres_server

pytestmark = shows("schedules", "pipelines", "pipeline", "console", "scheduler")

BOX = Path(__file__).parent / "platform_box.py"
SCHEDULES = 24
STEPS = [{"name": "prepare", "box": "counter", "verb": "preprocess"}]
#: A scheduler's thread, without the rest of it: it submits what is due until it is ended.
PROGRAM = """
import json, sys, threading
from pathlib import Path
from rdukit.interfaces import SystemClock
from rdukit_platform.artifacts.stores.folder import FolderStore
from rdukit_platform.catalog.model import Boxes, read_box
from rdukit_platform.db.engine import Database
from rdukit_platform.schedules import keeper

boxes = Boxes({"counter": read_box(json.loads(sys.argv[3]))})
keeper.POLL_S = 0.01
database, store = Database(sys.argv[1]), FolderStore(Path(sys.argv[2]))
keeper.ScheduleKeeper(database, store, lambda: boxes, SystemClock(), lambda: None).start()
print("up", flush=True)
threading.Event().wait()
"""


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'db.sqlite'}"
    else:
        with postgres_server() as server:
            yield new_database(server, "schedules")


@pytest.mark.long
def test_each_due_time_has_one_pipeline_though_two_schedulers_see_it_and_one_is_killed(
    url: str, tmp_path: Path
) -> None:
    with closing(Database(url)) as database:
        migrate(database)
        due = time.time() // 60 * 60 - 60
        with database.write() as session:
            tenant = create_tenant(session, "lab", due).id
            for number in range(SCHEDULES):
                asked = {"name": f"s{number}", "cron": "* * * * *", "pipeline": {"name": "p", "steps": STEPS}}
                create_schedule(session, tenant, ScheduleRequest.model_validate(asked), due)
            # Far from the next minute: one due time each.
            session.execute(update(ScheduleRow).values(cron="0 0 1 1 *", next_at=due))

        def count_runs() -> int:
            with database.read() as session:
                return session.scalar(select(func.count()).select_from(ScheduledRunRow)) or 0

        started = [
            subprocess.Popen([sys.executable, "-c", PROGRAM, url, str(tmp_path), json.dumps(COUNTER)],
                             stdout=subprocess.PIPE, text=True, env={"RDUKIT_HOME": str(tmp_path)})
            for _ in range(2)
        ]  # fmt: skip
        try:
            assert all(process.stdout is not None and process.stdout.readline() == "up\n" for process in started)
            wait_until(lambda: count_runs() > 0)
            started[0].send_signal(signal.SIGKILL)
            wait_until(lambda: count_runs() == SCHEDULES)
        finally:
            for process in started:
                process.kill()
                process.communicate()
        with database.read() as session:
            runs = session.scalars(select(ScheduledRunRow)).all()
            pipelines = set(session.scalars(select(PipelineRow.id)))
        assert Counter((run.due_at, run.state) for run in runs) == {(due, "started"): SCHEDULES}
        assert {run.pipeline_id for run in runs} == pipelines and len(pipelines) == SCHEDULES


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch) -> Iterator[PlatformUnderTest]:
    with short_folder() as home, platform_under_test(home, BOX) as running:
        monkeypatch.setenv("RDUKIT_HOME", str(home))
        yield running


def runs_of(platform: PlatformUnderTest) -> list[str]:
    return [run["state"] for run in platform.client.get("/v1/schedules/nightly")["runs"]]


def test_a_schedule_is_made_shown_run_paused_and_removed_by_commands_and_in_the_console(
    platform: PlatformUnderTest, tmp_path: Path
) -> None:
    file = tmp_path / "nightly.yaml"
    file.write_text(json.dumps({"name": "nightly", "steps": STEPS}))
    berlin = ("--cron", "0 3 * * *", "--zone", "Europe/Berlin", "--missed", "latest")
    said = run_rdukit("pipeline", "schedule", str(file), *berlin)
    assert re.fullmatch(r"nightly: At 03:00 every day, Europe/Berlin; next: .* 03:00 \+0[12]:00\n", said)
    assert "cron is '0 3'" in run_rdukit("pipeline", "schedule", str(file), "--cron", "0 3", status=2)
    with closing(Database(f"sqlite:///{platform.home / 'db.sqlite'}")) as database, database.write() as session:
        session.execute(update(ScheduleRow).values(next_at=time.time() // 60 * 60))  # as if its time had come
    wait_until(lambda: runs_of(platform) == ["started"])
    (run,) = platform.client.get("/v1/schedules/nightly")["runs"]
    found = platform.client.get(f"/v1/pipelines/{run['pipeline']}")
    assert platform.wait_end(found["jobs"][0]["id"])["labels"] == {"schedule": "nightly"}
    assert "nightly  0 3 * * *  Europe/Berlin" in run_rdukit("pipeline", "schedules")
    assert run["pipeline"] in run_rdukit("pipeline", "schedules", "nightly")

    token = (platform.home / "token").read_text().strip()
    with httpx.Client(base_url=platform.client.url, timeout=60.0) as console:
        cookie = console.post("/console/login", data={"token": token}).cookies[COOKIE]
        console.cookies.set(COOKIE, cookie)
        page = console.get("/console/pipelines").text
        assert "At 03:00 every day" in page and f"/console/pipelines/{run['pipeline']}" in page
        button = re.search(r'action="(/console/schedules/sched-\w+/pause)"', page)
        assert button is not None
        assert console.post(button[1], headers={"Origin": platform.client.url}).status_code == 303
    assert run_rdukit("pipeline", "schedules").split().count("paused") == 1
    assert "next: 20" in run_rdukit("pipeline", "resume", "nightly")
    assert run_rdukit("pipeline", "unschedule", "nightly") == "nightly is removed\n"
    acts = [one["action"] for one in platform.client.get("/v1/audit")["entries"]]
    assert [act for act in acts if act.startswith("schedule")] == [
        "schedule.remove", "schedule.resume", "schedule.pause", "schedule.create",
    ]  # fmt: skip
