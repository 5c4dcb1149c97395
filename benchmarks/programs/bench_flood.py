"""One tenant has queued very many jobs: how long does another tenant's job take, against an idle platform?

A platform of real processes with a box that works ``--work`` seconds. First ``--rounds`` jobs of the quiet tenant one
after the other on the idle platform; then the loud tenant submits ``--jobs``, and the quiet tenant's jobs are timed
again. From the first of these on somebody reads lists and jobs, ``--reads`` a second. Prints the ratio of the medians,
submissions a second, how long the reads take, and what must not happen: answers other than 201, attempts that lost
their lease. ``--ahead`` jobs of the loud tenant are not submitted but written into the database as their submission
leaves them, as that many requests take long. ::

    python benchmarks/programs/bench_flood.py [--json FILE] [--jobs 20000] [--ahead 80000] [--rounds 5] [--work 0.5]
        [--slots 2] [--reads 10]
"""

import argparse
import itertools
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

from rdukit_bench.comparisons.machine import write_json
from sqlalchemy import insert

from rdukit.errors import RdukitError
from rdukit_platform.client.http import ApiClient
from rdukit_platform.db.engine import Database
from rdukit_platform.db.models import JobRow
from rdukit_platform.settings import Home

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from support.platform.processes import PlatformUnderTest, platform_under_test

BOX = Path(__file__).parents[2] / "tests/integration/platform_box.py"
CALLERS = 8
#: Rows of one insert.
BLOCK = 10_000


def time_job(client: ApiClient, dataset: str, work_s: float) -> float:
    """Seconds from the submission of a job to its end."""
    began = time.monotonic()
    body = {"box": "counter", "verb": "train", "inputs": {"dataset": dataset}, "tiles": 1,
            "parameters": {"steps": 10, "step_s": work_s / 10}}  # fmt: skip
    job = client.submit("/v1/jobs", body)
    *_, last = client.follow(job["id"])
    if last["data"]["to"] != "succeeded":
        raise SystemExit(f"the job ended as {last}")
    return time.monotonic() - began


def make_dataset(client: ApiClient) -> str:
    """Return the data set that the box's train needs."""
    job = client.submit("/v1/jobs", {"box": "counter", "verb": "preprocess"})
    for _ in client.follow(job["id"]):
        pass
    return str(client.get(f"/v1/jobs/{job['id']}")["outputs"]["dataset"])


def flood(platform: PlatformUnderTest, dataset: str, jobs: int, work_s: float) -> tuple[float, Counter[str]]:
    """Submit from several callers. Returns seconds, and what the gateway said."""
    said: Counter[str] = Counter()
    lock = threading.Lock()

    def submit(_: int) -> None:
        try:
            parameters = {"steps": 10, "step_s": work_s / 10}
            platform.submit("train", inputs={"dataset": dataset}, tiles=1, parameters=parameters)
            answer = "created"
        except RdukitError as error:
            answer = error.code
        with lock:
            said[answer] += 1

    began = time.monotonic()
    with ThreadPoolExecutor(CALLERS) as callers:
        list(callers.map(submit, range(jobs)))
    return time.monotonic() - began, said


def write_ahead(platform: PlatformUnderTest, like: str, jobs: int) -> None:
    """Write queued jobs like one that was submitted."""
    columns, began = [column.name for column in JobRow.__table__.columns], time.time() - jobs / 1000
    with closing(Database.of_home(Home(platform.home))) as database:
        with database.read() as session:
            found = session.get_one(JobRow, like)
            row = {name: getattr(found, name) for name in columns} | {
                "state": "queued", "attempt": 0, "version": 1, "started_at": None, "ended_at": None, "outputs": {},
                "result": None, "progress": None, "idempotency_key": None,
            }  # fmt: skip
        for first in range(0, jobs, BLOCK):
            numbers = range(first, min(first + BLOCK, jobs))
            with database.write() as session:
                session.execute(
                    insert(JobRow),
                    [row | {"id": f"job-ahead{number:012d}", "queued_at": began + number / 1000} for number in numbers],
                )


@contextmanager
def reading(platform: PlatformUnderTest, job: str, per_s: float) -> Iterator[list[float]]:
    """Read a list and a job in turn, so many a second. Yields the seconds of each answer."""
    taken: list[float] = []
    over = threading.Event()

    def read() -> None:
        token = Path(platform.running["token_file"]).read_text().strip()
        with ApiClient(platform.running["url"], token) as client:
            began = time.monotonic()
            for number in itertools.count():
                if over.wait(max(began + number / per_s - time.monotonic(), 0.0)):
                    return
                asked = time.monotonic()
                if number % 2:
                    client.get(f"/v1/jobs/{job}")
                else:
                    client.get("/v1/jobs", state="queued", limit=50)
                taken.append(time.monotonic() - asked)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield taken
    finally:
        over.set()
        reader.join()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", default=None)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--ahead", type=int, default=80_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--reads", type=float, default=10.0)
    parser.add_argument("--work", type=float, default=0.5)
    parser.add_argument("--slots", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rdk-", dir="/tmp") as home:
        variables = {"RDUKIT_WORKER_SLOTS": str(options.slots)}
        with platform_under_test(Path(home), BOX, variables) as platform:
            tenant = platform.client.post("/v1/tenants", {"name": "quiet"})
            token = platform.client.post(f"/v1/tenants/{tenant['id']}/tokens", {"scopes": ["read", "write"]})["token"]
            with ApiClient(platform.running["url"], token) as quiet:
                mine, theirs = make_dataset(quiet), make_dataset(platform.client)
                idle = [time_job(quiet, mine, options.work) for _ in range(options.rounds)]
                inputs, parameters = {"dataset": theirs}, {"steps": 10, "step_s": options.work / 10}
                first = platform.submit("train", inputs=inputs, tiles=1, parameters=parameters)["id"]
                write_ahead(platform, first, options.ahead)
                with reading(platform, first, options.reads) as reads:
                    seconds, said = flood(platform, theirs, options.jobs, options.work)
                    loaded = [time_job(quiet, mine, options.work) for _ in range(options.rounds)]
            ended = [
                attempt["outcome"]
                for state in ("succeeded", "failed", "retrying", "running")
                for job in platform.client.get("/v1/jobs", state=state, limit=200)["jobs"]
                for attempt in platform.job(job["id"])["attempts"]
            ]
            queued = len(platform.client.get("/v1/jobs", state="queued", limit=200)["jobs"])
    alone, beside = statistics.median(idle), statistics.median(loaded)
    ratio = beside / alone
    late = sorted(reads)[len(reads) * 99 // 100]
    print(f"idle {alone:.2f} s, beside {options.jobs + options.ahead} jobs {beside:.2f} s: {ratio:.2f}")
    print(f"{len(reads)} reads meanwhile: median {statistics.median(reads):.3f} s, p99 {late:.3f} s")
    print(f"{options.jobs / seconds:.0f} submissions a second, answers {dict(said)}; {queued} or more still queued")
    print(f"attempts of the flood: {dict(Counter(str(outcome) for outcome in ended))}")
    if options.json:
        figures = {"ratio": ratio, "idle_s": idle, "loaded_s": loaded, "answers": dict(said), "reads_s": reads}
        write_json(options.json, {"flood": figures})


if __name__ == "__main__":
    main()
