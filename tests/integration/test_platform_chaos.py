"""kill -9 of any part of the platform, again and again, while jobs run: each job ends once, with the right artifacts.

A short form of ``benchmarks/programs/chaos_platform.py``, which does the same for minutes, with real boxes, PostgreSQL,
two nodes, messages that get lost and clocks that are set.
"""

import time
from pathlib import Path

import pytest

from rdukit_platform.client.http import FINAL_STATES
from support import shows
from support.helpers import wait_until
from support.platform.chaos import MESSAGES, PROCESSES, Chaos, CountingJobs, is_ready, why_wrong
from support.platform.processes import platform_under_test, short_folder

pytestmark = [shows("jobs", "up", "job-boxes"), pytest.mark.long]

BOX = Path(__file__).parent / "platform_box.py"
STRIKES, JOBS, PAUSE_S, SEED = 14, 20, 1.0, 19
FAST = {"RDUKIT_WORKER_LEASE_S": "4", "RDUKIT_JOB_BACKOFF_S": "0.1", "RDUKIT_SCHEDULER_REPUBLISH_S": "1",
        "RDUKIT_WORKER_BOX_IDLE_S": "2"}  # fmt: skip


def test_jobs_end_once_whatever_part_is_killed_and_whatever_message_is_lost() -> None:
    with short_folder() as home, platform_under_test(home, BOX, FAST) as platform:
        work = CountingJobs(BOX)
        work.prepare(platform)
        ids = [job_id for _ in range(JOBS) for job_id in work.submit(platform)]
        chaos = Chaos(platform, work.mark, SEED, [*PROCESSES, *MESSAGES, "database"])
        while len(chaos.struck) < STRIKES:
            chaos.strike()
            time.sleep(PAUSE_S)
        wait_until(lambda: is_ready(platform), what="ready after the last kill")
        left = list(ids)

        def has_next_ended() -> bool:
            # All at once and all the time would keep the gateway busy.
            while left and platform.job(left[0])["state"] in FINAL_STATES:
                left.pop(0)
            time.sleep(0.1)
            return not left

        wait_until(has_next_ended, 60.0 + 10 * JOBS, f"all jobs end after {chaos.struck}")
        wrong = [why for job_id in ids if (why := why_wrong(platform, work, platform.job(job_id)))]
        assert not wrong, (chaos.struck, wrong)
        wait_until(lambda: not chaos.pids_of("box"), what="no box is left")
        wait_until(lambda: not list((home / "work").iterdir()), what="no folder of a job is left")
        (node,) = platform.client.get("/v1/nodes")["nodes"]
        assert not node["leases"]
