"""What does the platform cost a job? No-op jobs a second against bare Celery, and how soon a job's code runs.

A platform of real processes with one worker; its jobs are ``preprocess`` of the box ``counter``, a program of the tests
that does nothing, so that what is left is the platform: the request, the database, the scheduler, the broker, the box
of the job and its end. Beside it, on the same broker, one Celery worker with as many threads runs a task that does
nothing. Then a real box: jobs one after the other, from the submission until the box has the verb. ::

    python benchmarks/programs/bench_job_cost.py [--json FILE] [--jobs 300] [--turns 5] [--slots 4] [--rounds 15]
        [--no-starts]
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from rdukit_bench.comparisons.machine import write_json

from rdukit_platform.settings import Home

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from support.platform.processes import PlatformUnderTest, platform_under_test

BOX = Path(__file__).parents[2] / "tests/integration/platform_box.py"
CALLERS = 4
OPEN_STATES = ("queued", "starting", "running")
#: Jobs of one request, where many are.
BATCH = 50
#: Settings by how a job's box comes about: it stays from the job before, is a fork, is started anew.
STARTS: Mapping[str, Mapping[str, str]] = {
    "kept": {},
    "forked": {"RDUKIT_WORKER_BOX_IDLE_S": "0"},
    "new": {"RDUKIT_WORKER_BOX_IDLE_S": "0", "RDUKIT_WORKER_WARM_BOXES": "off"},
}
#: A Celery app by itself: the options are those of the platform's, its task counts in Redis.
BARE = """
import redis
from rdukit_platform.jobs.broker import make_app, plain_url
app = make_app({url!r})
app.conf.task_default_queue = "bare"
counter = redis.Redis.from_url(plain_url({url!r}))

@app.task(name="bare.nothing")
def nothing():
    counter.incr("bare:done")
"""


@contextmanager
def bare_worker(url: str, folder: Path, slots: int) -> Iterator[Callable[[int], float]]:
    """Have a Celery worker that does nothing else. Yields a function: tasks a second, from the first sent to the last.

    It takes how many tasks to send.
    """
    import redis

    from rdukit_platform.jobs.broker import make_app, plain_url

    (folder / "bare.py").write_text(BARE.format(url=url))
    worker = subprocess.Popen(
        [sys.executable, "-m", "celery", "-A", "bare", "worker", "--pool=threads", f"--concurrency={slots}",
         "--without-gossip", "--without-mingle", "--without-heartbeat", "-Q", "bare", "--loglevel=ERROR"],
        cwd=folder,
    )  # fmt: skip
    app, counter = make_app(url), redis.Redis.from_url(plain_url(url))

    def rate(tasks: int) -> float:
        before, began = int(counter.get("bare:done") or 0), time.monotonic()
        with ThreadPoolExecutor(CALLERS) as callers:
            list(callers.map(lambda _: app.send_task("bare.nothing", queue="bare"), range(tasks)))
        _wait_count(counter, before + tasks)
        return tasks / (time.monotonic() - began)

    try:
        rate(1)
        yield rate
    finally:
        worker.terminate()
        worker.wait()


def _wait_count(counter: object, wanted: int) -> None:
    while int(counter.get("bare:done") or 0) < wanted:  # type: ignore[attr-defined]
        time.sleep(0.005)


def job_rate(platform: PlatformUnderTest, jobs: int, *, in_batches: bool) -> float:
    """Jobs a second, from the first submission to the last end; each by a request of its own, or many by one."""
    began, made = time.monotonic(), list[str]()
    if in_batches:
        body = {"jobs": [{"box": "counter", "verb": "preprocess"}] * BATCH}
        for _ in range(jobs // BATCH):
            made += platform.client.submit("/v1/jobs/batch", body)["ids"]
    else:
        with ThreadPoolExecutor(CALLERS) as callers:
            made += callers.map(lambda _: platform.submit("preprocess")["id"], range(jobs))
    # Few looks: whoever waits shall not be what is measured.
    while any(platform.client.get("/v1/jobs", state=state, limit=1)["jobs"] for state in OPEN_STATES):
        time.sleep(0.05)
    seconds = time.monotonic() - began
    assert all(platform.job(id)["state"] == "succeeded" for id in made)
    return len(made) / seconds


def time_to_run(platform: PlatformUnderTest, box: str) -> float:
    """Seconds from the submission until the box has the verb, by the platform's own clock."""
    job = platform.wait_end(platform.submit("preprocess", box=box)["id"])
    assert job["state"] == "succeeded", job
    return float(job["started_at"]) - float(job["created_at"])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", default=None)
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--turns", type=int, default=5, help="Celery and the platform in turns")
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--no-starts", action="store_true", help="only the rate of no-op jobs")
    options = parser.parse_args()
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="rdk-", dir="/tmp") as home:
        slots = {"RDUKIT_WORKER_SLOTS": str(options.slots)}
        with platform_under_test(Path(home), BOX, {**slots, "RDUKIT_WORKER_WARM_BOXES": "always"}) as platform:
            time_to_run(platform, "counter")
            with bare_worker(Home(Path(home)).broker_url(), Path(home), options.slots) as bare_rate:
                for turn in range(options.turns):
                    rates = {
                        "bare": bare_rate(4 * options.jobs),
                        "batched": job_rate(platform, options.jobs, in_batches=True),
                        "jobs": job_rate(platform, options.jobs, in_batches=False),
                    }
                    figures |= {f"{name}_per_s_{turn}": rate for name, rate in rates.items()}
                    print(
                        f"turn {turn + 1}: bare Celery {rates['bare']:.0f} a second; jobs, {BATCH} by a request"
                        f" {rates['batched']:.0f}, {rates['batched'] / rates['bare']:.3f}; each by a request"
                        f" {rates['jobs']:.0f}, {rates['jobs'] / rates['bare']:.3f}",
                        flush=True,
                    )
    for name, choices in () if options.no_starts else STARTS.items():
        with (
            tempfile.TemporaryDirectory(prefix="rdk-", dir="/tmp") as home,
            platform_under_test(Path(home), None, choices) as platform,
        ):
            time.sleep(10)  # until the fork server has imported
            times = [time_to_run(platform, "logreg") for _ in range(options.rounds)]
            figures[f"start_{name}_s"] = statistics.median(times)
            figures[f"best_{name}_s"] = min(times)
        print(f"submission to running, {name}: median {statistics.median(times):.3f} s, best {min(times):.3f} s")
    if options.json:
        write_json(options.json, {"job_cost": figures})


if __name__ == "__main__":
    main()
