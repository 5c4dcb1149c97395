"""How long do lists of jobs take where there are very many? The service's functions on a database of its own.

Jobs of one large tenant in all states, and a hundred of a small one, spread among them. Every second job has the label
``often=yes``, one in a thousand ``seldom=yes``; the oldest one of the large tenant is called ``needle``. Prints the
median and the 99th percentile of each list, and of a search's page; and how long a search takes through all. ::

    python benchmarks/programs/bench_job_reads.py [--json FILE] [--jobs 1000000] [--rounds 50] [--database URL]
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

from rdukit_bench.comparisons.machine import write_json
from sqlalchemy import insert
from sqlalchemy.orm import Session

from rdukit_platform.db.engine import Database
from rdukit_platform.db.migrate import migrate
from rdukit_platform.db.models import JobLabelRow, JobRow, TenantRow
from rdukit_platform.jobs.listing import find_jobs, list_jobs

#: Jobs in a thousand that are in each state; the rest have succeeded.
SHARES = {"queued": 100, "failed": 30, "running": 1, "cancelled": 20}
SMALL_JOBS, BLOCK = 100, 20_000
#: One in so many jobs has a label.
LABELS = {"often": 2, "seldom": 1000}


def state_of(number: int) -> str:
    """Return the state of a job, in the same mixture at all times."""
    place = number * 7919 % 1000
    for state, share in SHARES.items():
        if place < share:
            return state
        place -= share
    return "succeeded"


def fill(database: Database, jobs: int) -> None:
    """Write the tenants and their jobs."""
    with database.write() as session:
        session.add_all([TenantRow(id=name, name=name, created_at=0.0) for name in ("large", "small")])
    every = max(jobs // SMALL_JOBS, 1)
    for first in range(0, jobs, BLOCK):
        rows = [
            {
                "id": f"job-{number:012d}", "tenant_id": "small" if number % every == 0 else "large",
                "name": "needle" if number == 1 else f"train #{number % 97}",
                "box": "logreg", "verb": "train", "parameters": {"steps": 5}, "inputs": {}, "outputs": {}, "tiles": 1,
                "max_attempts": 3, "state": state_of(number), "created_at": float(number), "queued_at": float(number),
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


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", default=None)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--database", default="", help="URL of an empty database [default: SQLite in a folder]")
    options = parser.parse_args()
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

                times = sorted(time_read(database, read, options.rounds))
                late = times[min(len(times) * 99 // 100, len(times) - 1)]
                figures[f"{tenant} {state or 'all'} {label or ''}".strip()] = {
                    "median_s": statistics.median(times),
                    "p99_s": late,
                }
                print(f"{tenant} tenant, {state or 'all':9s} {label or '':6s} "
                      f"median {statistics.median(times) * 1e3:8.2f} ms, p99 {late * 1e3:8.2f} ms")  # fmt: skip
        searches = {
            "word of all": "train", "word of none": "absent", "word of one": "needle", "id": "job-000000000001",
            "label": "seldom=yes train", "words and state": "train #5 queued",
        }  # fmt: skip
        for what, words in searches.items():

            def search(session: Session, words: str = words) -> object:
                return find_jobs(session, "large", words)

            times = sorted(time_read(database, search, options.rounds))
            late = times[min(len(times) * 99 // 100, len(times) - 1)]
            figures[f"search {what}"] = {"median_s": statistics.median(times), "p99_s": late}
            print(f"search, {what:16s} median {statistics.median(times) * 1e3:8.2f} ms, p99 {late * 1e3:8.2f} ms")
        began = time.perf_counter()
        found, pages = look_through(database, "needle")
        figures["search through all"] = {"s": time.perf_counter() - began, "pages": pages, "found": found}
        print(f"search through all: {found} found on {pages} pages in {time.perf_counter() - began:.2f} s")
        database.close()
    if options.json:
        write_json(options.json, {"job_reads": figures})


if __name__ == "__main__":
    main()
