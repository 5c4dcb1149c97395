"""How long do lists of jobs take where there are very many? The service's functions, or requests to a platform.

Jobs of one large tenant in all states, and a hundred of a small one, spread among them. Every second job has the label
``often=yes``, one in a thousand ``seldom=yes``; the oldest one of the large tenant is called ``needle``. Prints the
median and the 99th percentile of each list, and of a search's page; and how long a search takes through all. With
``--http`` a platform of real processes has the database (and no job is open), and the default tenant is the large one:
its lists and single jobs are asked for in turn, ``--rate`` a second, whether or not the last answer is there. ::

    python benchmarks/programs/bench_job_reads.py [--json FILE] [--jobs 1000000] [--rounds 50] [--database URL]
        [--http] [--rate 50]
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from itertools import product
from pathlib import Path

from rdukit_bench.comparisons.machine import write_json
from sqlalchemy import insert
from sqlalchemy.orm import Session

from rdukit.errors import NotFound
from rdukit_platform.client.http import ApiClient
from rdukit_platform.db.engine import Database
from rdukit_platform.db.migrate import migrate
from rdukit_platform.db.models import JobLabelRow, JobRow, TenantRow
from rdukit_platform.jobs.listing import find_jobs, list_jobs
from rdukit_platform.tenants.service import DEFAULT_TENANT, create_tenant

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from support.platform.database import place_database
from support.platform.processes import platform_under_test, short_folder

#: Jobs in a thousand that are in each state; the rest have succeeded.
SHARES = {"queued": 100, "failed": 30, "running": 1, "cancelled": 20}
#: Callers of a platform.
READERS = 8
OPEN = {"queued", "running"}
SMALL_JOBS, BLOCK = 100, 20_000
#: One in so many jobs has a label.
LABELS = {"often": 2, "seldom": 1000}


def state_of(number: int, is_over: bool = False) -> str:
    """Return the state of a job, in the same mixture at all times; one that is over was cancelled instead of open."""
    place = number * 7919 % 1000
    for state, share in SHARES.items():
        if place < share:
            return "cancelled" if is_over and state in OPEN else state
        place -= share
    return "succeeded"


def fill(database: Database, jobs: int, large: str = "large", *, are_over: bool = False) -> None:
    """Write the tenants and their jobs; ``are_over``: those that would still run were cancelled."""
    with database.write() as session:
        names = [name for name in (large, "small") if session.get(TenantRow, name) is None]
        session.add_all([TenantRow(id=name, name=name, created_at=0.0) for name in names])
    every = max(jobs // SMALL_JOBS, 1)
    for first in range(0, jobs, BLOCK):
        rows = [
            {
                "id": f"job-{number:012d}", "tenant_id": "small" if number % every == 0 else large,
                "name": "needle" if number == 1 else f"train #{number % 97}",
                "box": "logreg", "verb": "train", "parameters": {"steps": 5}, "inputs": {}, "outputs": {}, "tiles": 1,
                "max_attempts": 3, "state": state_of(number, are_over), "created_at": float(number),
                "queued_at": float(number),
            }
            for number in range(first, min(first + BLOCK, jobs))
        ]  # fmt: skip
        labels = [
            {
                "job_id": row["id"],
                "tenant_id": row["tenant_id"],
                "key": key,
                "value": "yes",
                "created_at": row["created_at"],
            }
            for number, row in enumerate(rows, first)
            for key, each in LABELS.items()
            if number % each == 0
        ]
        with database.write() as session:
            session.execute(insert(JobRow), rows)
            session.execute(insert(JobLabelRow), labels)


def time_read(database: Database, read: Callable[[Session], object], rounds: int) -> Sequence[float]:
    """Seconds of each round, a transaction of its own."""
    found = []
    for _ in range(rounds):
        began = time.perf_counter()
        with database.read() as session:
            read(session)
        found.append(time.perf_counter() - began)
    return found


def look_through(database: Database, words: str) -> tuple[int, int]:
    """Search page after page until all jobs were looked through; returns how many were found, on how many pages."""
    found = pages = 0
    cursor: str | None = None
    while pages == 0 or cursor is not None:
        with database.read() as session:
            page = find_jobs(session, "large", words, cursor=cursor)
        found, pages, cursor = found + len(page.jobs), pages + 1, page.next_cursor
    return found, pages


def ask(options: argparse.Namespace) -> dict[str, list[float]]:
    """Return the seconds of each kind of request, from when it was due until its answer."""
    taken: dict[str, list[float]] = defaultdict(list)
    with short_folder() as home:
        place_database(home)
        with closing(Database(options.database or f"sqlite:///{home / 'db.sqlite'}")) as database:
            migrate(database)
            with database.write() as session:
                tenant = create_tenant(session, DEFAULT_TENANT, 0.0).id
            fill(database, options.jobs, tenant, are_over=True)
            if not database.is_sqlite:  # which it would do by itself in the next minutes
                with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                    connection.exec_driver_sql("VACUUM ANALYZE")
        variables = {"RDUKIT_DATABASE_URL": options.database} if options.database else {}
        with platform_under_test(home, None, variables) as platform:
            token = Path(platform.running["token_file"]).read_text().strip()
            asked: dict[str, Callable[[ApiClient, int], object]] = {
                "newest": lambda client, _: client.get("/v1/jobs", limit=50),
                "failed": lambda client, _: client.get("/v1/jobs", state="failed", limit=50),
                "label": lambda client, _: client.get("/v1/jobs", label="seldom=yes", limit=50),
                "job": lambda client, number: client.get(f"/v1/jobs/job-{1 + number * 997 % options.jobs:012d}"),
            }
            names = list(asked)
            began = time.monotonic() + 5.0

            def read(first: int) -> None:
                with ApiClient(platform.running["url"], token) as client:
                    for name in names:  # once before it counts
                        asked[name](client, 0)
                    for number in range(first, options.rounds * len(names), READERS):
                        due = began + number / options.rate
                        time.sleep(max(due - time.monotonic(), 0.0))
                        name = names[number % len(names)]
                        with suppress(NotFound):  # a job of the small tenant
                            asked[name](client, number)
                        taken[name].append(time.monotonic() - due)

            with ThreadPoolExecutor(READERS) as readers:
                list(readers.map(read, range(READERS)))
    return taken


def tell(name: str, times: Sequence[float]) -> dict[str, float]:
    """Print and return the median and the 99th percentile."""
    found = sorted(times)
    figures = {"median_s": statistics.median(found), "p99_s": found[min(len(found) * 99 // 100, len(found) - 1)]}
    print(f"{name:32s} median {figures['median_s'] * 1e3:8.2f} ms, p99 {figures['p99_s'] * 1e3:8.2f} ms")
    return figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", default=None)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--database", default="", help="URL of an empty database [default: SQLite in a folder]")
    parser.add_argument("--http", action="store_true", help="ask a platform")
    parser.add_argument("--rate", type=float, default=50.0, help="requests a second")
    options = parser.parse_args()
    if options.http:
        taken = ask(options)
        figures = {name: tell(name, times) for name, times in taken.items()}
        figures["all"] = tell("all", [each for times in taken.values() for each in times])
        if options.json:
            write_json(options.json, {"job_reads_http": figures})
        return
    with tempfile.TemporaryDirectory(prefix="rdk-") as folder:
        database = Database(options.database or f"sqlite:///{Path(folder) / 'db.sqlite'}")
        migrate(database)
        fill(database, options.jobs)
        figures = {}
        for tenant in ("large", "small"):
            for state, label in product((None, "succeeded", "queued", "running", "starting"), (None, *LABELS)):
                labels = {label: "yes"} if label else {}

                def read(
                    session: Session, tenant: str = tenant, state: str | None = state, asked: dict[str, str] = labels
                ) -> object:
                    return list_jobs(session, tenant, state, labels=asked)

                times = time_read(database, read, options.rounds)
                figures[f"{tenant} {state or 'all'} {label or ''}".strip()] = tell(
                    f"{tenant} tenant, {state or 'all'} {label or ''}", times
                )
        searches = {
            "word of all": "train", "word of none": "absent", "word of one": "needle", "id": "job-000000000001",
            "label": "seldom=yes train", "words and state": "train #5 queued",
        }  # fmt: skip
        for what, words in searches.items():

            def search(session: Session, words: str = words) -> object:
                return find_jobs(session, "large", words)

            figures[f"search {what}"] = tell(f"search, {what}", time_read(database, search, options.rounds))
        began = time.perf_counter()
        found, pages = look_through(database, "needle")
        figures["search through all"] = {"s": time.perf_counter() - began, "pages": pages, "found": found}
        print(f"search through all: {found} found on {pages} pages in {time.perf_counter() - began:.2f} s")
        database.close()
    if options.json:
        write_json(options.json, {"job_reads": figures})


if __name__ == "__main__":
    main()
