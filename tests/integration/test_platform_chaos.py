"""kill -9 of any part of the platform, again and again, while trainings, a sweep and a pipeline run, on both databases.

Each job ends once, with the right artifacts, and nothing is left.

A short form of ``benchmarks/programs/chaos_platform.py``, which does the same for minutes, with hundreds of jobs, two
nodes and clocks that are set.
"""

import time
from contextlib import ExitStack

import pytest

from rdukit_platform.client.http import FINAL_STATES
from support import shows
from support.helpers import wait_until
from support.platform.chaos import (
    MESSAGES,
    PROCESSES,
    Chaos,
    CountingJobs,
    DigitsPipelines,
    SweptJobs,
    Work,
    both_boxes,
    is_ready,
    why_wrong,
)
from support.platform.processes import platform_under_test, short_folder
from support.postgres import new_database, postgres_server

pytestmark = [shows("jobs", "up", "job-boxes"), pytest.mark.long]

STRIKES, JOBS, PAUSE_S, SEED = 14, 20, 1.0, 19
FAST = {"RDUKIT_WORKER_LEASE_S": "4", "RDUKIT_JOB_BACKOFF_S": "0.1", "RDUKIT_SCHEDULER_REPUBLISH_S": "1",
        "RDUKIT_WORKER_BOX_IDLE_S": "2", "RDUKIT_KERNELS": "portable"}  # fmt: skip


@pytest.mark.parametrize("database", ["SQLite", "PostgreSQL"])
def test_jobs_end_once_whatever_part_is_killed_and_whatever_message_is_lost(database: str) -> None:
    with ExitStack() as stack:
        home, program = stack.enter_context(short_folder()), stack.enter_context(both_boxes())
        variables, url = dict(FAST), ""
        if database == "PostgreSQL":
            url = new_database(stack.enter_context(postgres_server()), "chaos")
            variables["RDUKIT_DATABASE_URL"] = url
        platform = stack.enter_context(platform_under_test(home, program, variables))
        works: dict[Work, int] = {CountingJobs(program): JOBS, SweptJobs(program): 1, DigitsPipelines(4): 1}
        for work in works:
            work.prepare(platform)
        of = {job_id: work for work, count in works.items() for _ in range(count) for job_id in work.submit(platform)}
        kinds = [*PROCESSES, *MESSAGES, "database"]
        chaos = Chaos(platform, str(program), SEED, kinds, database_url=url.replace("+psycopg", ""))
        while len(chaos.struck) < STRIKES:
            chaos.strike()
            time.sleep(PAUSE_S)
        wait_until(lambda: is_ready(platform), what="ready after the last kill")
        left = list(of)

        def has_next_ended() -> bool:
            # All at once and all the time would keep the gateway busy.
            while left and platform.job(left[0])["state"] in FINAL_STATES:
                left.pop(0)
            time.sleep(0.1)
            return not left

        wait_until(has_next_ended, 60.0 + 10 * len(of), f"all jobs end after {chaos.struck}")
        wrong = [why for job_id, work in of.items() if (why := why_wrong(platform, work, platform.job(job_id)))]
        assert not wrong, (chaos.struck, wrong)
        wait_until(lambda: not chaos.pids_of("box"), what="no box is left")
        wait_until(lambda: not list((home / "work").iterdir()), what="no folder of a job is left")
        (node,) = platform.client.get("/v1/nodes")["nodes"]
        assert not node["leases"]
