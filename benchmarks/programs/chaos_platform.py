"""Kill a part of a platform every two seconds for minutes, while jobs run; count what comes of them and what is left.

Trainings of the tests' box, sweeps of them, pipelines of the box ``logreg`` and, by the fifty, jobs that are over at
once are submitted meanwhile, each under an idempotency key. Afterwards each must have succeeded once, with what an
undisturbed run makes; no lease, process or folder may be left. Ends with 1 if anything is otherwise. ::

    python benchmarks/programs/chaos_platform.py [--json FILE] [--seed 23] [--jobs 500] [--pipelines 10] [--sweeps 10]
        [--quick 0] [--minutes 5] [--every 2] [--nodes 2] [--postgres] [--messages] [--clock]

``--messages`` loses and doubles messages and empties the broker's disk, too; ``--clock`` sets the wall clock of all
processes, to up to two hours from now. With ``--nodes 2`` a node is killed whole, and returns.
"""

import argparse
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rdukit_bench.comparisons.machine import write_json

from rdukit.errors import RdukitError
from rdukit_platform.client.http import FINAL_STATES
from rdukit_platform.worker.orphans import SWEEP_S

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from support.helpers import wait_until
from support.platform.chaos import (
    MESSAGES,
    PROCESSES,
    Chaos,
    CountingJobs,
    DigitsPipelines,
    QuickJobs,
    SweptJobs,
    Work,
    both_boxes,
    is_sound,
    leftovers,
    settable_clock,
    why_wrong,
)
from support.platform.processes import NodeUnderTest, PlatformUnderTest, platform_under_test, short_folder
from support.postgres import new_database, postgres_server

#: Seconds after which the next job must have ended: how long all take is the machine's matter.
END_S = 300.0


@dataclass
class ChaosReport:
    """Faults that were injected, and their outcome."""

    seed: int
    database: str
    nodes: int
    struck: Mapping[str, int] = field(default_factory=dict)
    #: Processes that wanted to run, on average of the minute when it ended; and how many cores there are.
    load: tuple[float, int] = (0.0, 0)
    #: Seconds from the last kill until all parts were up, and until the last job had ended.
    ready_s: float = 0.0
    ended_s: float = 0.0
    jobs: Mapping[str, int] = field(default_factory=dict)
    attempts: Mapping[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


@contextmanager
def platform_of(
    options: argparse.Namespace, program: Path, stack: ExitStack
) -> Iterator[tuple[PlatformUnderTest, str, Path | None]]:
    """Yield the platform, the URL of its PostgreSQL database, if that is asked for, and the file that sets clocks."""
    home = stack.enter_context(short_folder())
    # Portable kernels: the platform is what is tried, not the C++ compiler.
    variables = {"RDUKIT_NODE_NAME": "one", "RDUKIT_WORKER_SLOTS": str(options.slots), "RDUKIT_KERNELS": "portable",
                 "RDUKIT_WORKER_BOX_IDLE_S": "2"}  # fmt: skip
    url, clock_file = "", None
    if options.postgres:
        url = new_database(stack.enter_context(postgres_server()), "chaos")
        variables["RDUKIT_DATABASE_URL"] = url
    if options.clock:
        clock_file, more = settable_clock(home)
        variables |= more
    os.environ |= {**variables, "RDUKIT_WORKER_BOX_COMMAND": f"{sys.executable} {program}"}
    with platform_under_test(home, program) as platform:
        yield platform, url.replace("+psycopg", ""), clock_file


class Submitter(threading.Thread):
    """Submits what there is to do, spread over so many seconds."""

    def __init__(self, platform: PlatformUnderTest, works: list[tuple[Work, int]], seconds: float) -> None:
        super().__init__(name="submitter")
        self._platform, self._seconds = platform, seconds
        self._order = [work for work, count in works for _ in range(count)]
        random.Random(len(self._order)).shuffle(self._order)
        #: The jobs' ids with what each is of, and what went wrong.
        self.found = dict[str, Work]()
        self.wrong = list[str]()

    def run(self) -> None:
        """Submit it all."""
        began = time.monotonic()
        for number, work in enumerate(self._order):
            time.sleep(max(0.0, began + self._seconds * number / len(self._order) - time.monotonic()))
            try:
                self.found |= dict.fromkeys(work.submit(self._platform), work)
            except RdukitError as error:
                self.wrong.append(f"a submission was not taken: {error.code} {error.message}")


def run_chaos(options: argparse.Namespace) -> ChaosReport:
    """Run it all."""
    report = ChaosReport(options.seed, "PostgreSQL" if options.postgres else "SQLite", options.nodes)
    kinds = [*PROCESSES, "database"]
    kinds += MESSAGES if options.messages else ()
    kinds += ["clock"] if options.clock else []
    with ExitStack() as stack:
        program = stack.enter_context(both_boxes())
        quick, pipelines = QuickJobs(program), min(options.pipelines, options.jobs // 4)
        sweeps = min(options.sweeps, options.jobs // 4 - pipelines)
        works: list[tuple[Work, int]] = [
            (CountingJobs(program, options.steps), options.jobs - 4 * pipelines - 4 * sweeps),
            (DigitsPipelines(), pipelines),
            (SweptJobs(program), sweeps),
            (quick, options.quick // quick.at_once),
        ]
        platform, url, clock_file = stack.enter_context(platform_of(options, program, stack))
        homes, second = [platform.home], None
        if options.nodes == 2:
            homes.append(stack.enter_context(short_folder()))
            second = NodeUnderTest(platform, homes[1], "two")
            second.start()
            stack.callback(second.stop)
            second.wait_joined()
            kinds.append("node")
        for work, count in works:
            if count:
                work.prepare(platform)
        chaos = Chaos(platform, str(program), options.seed, kinds, second, url, clock_file)
        submitter = Submitter(platform, works, options.minutes * 50)
        submitter.start()
        ends_at = time.monotonic() + options.minutes * 60
        while time.monotonic() < ends_at:
            began = time.monotonic()
            done = chaos.strike()
            say(f"{ends_at - began:5.0f} s to go: {done or 'nothing to strike'}")
            time.sleep(max(0.0, began + options.every - time.monotonic()))
        if second is not None and not second.is_running():
            second.start()
        last, report.load = time.monotonic(), (os.getloadavg()[0], os.cpu_count() or 1)
        await_ready(platform)
        report.ready_s = time.monotonic() - last
        say(f"ready {report.ready_s:.1f} s after the last")
        report.struck = Counter(chaos.struck)
        submitter.join()
        found = submitter.found
        report.wrong += submitter.wrong
        report.wrong += wait_ended(platform, list(found))
        report.ended_s = time.monotonic() - last
        judge(platform, found, report)
        report.left += leases_left(platform)
        if not options.postgres and not is_sound(platform.home / "db.sqlite"):
            report.wrong.append("the database is damaged")
        time.sleep(2 * SWEEP_S)  # workers look so often for what killed ones left
        if report.wrong and options.keep:
            say(f"the platform is kept: {platform.home}, {platform.running['url']}; Ctrl-C stops it")
            threading.Event().wait()
        stack.pop_all().close()
        report.left += leftovers(homes)
    return report


def await_ready(platform: PlatformUnderTest) -> None:
    """Wait until all parts are up; tells which are not."""
    began, told = time.monotonic(), set[str]()

    def has_all() -> bool:
        away = {"gateway"}
        with suppress(RdukitError):
            away = {part for part, is_up in platform.client.get("/health")["parts"].items() if not is_up}
        if away != told:
            say(f"{time.monotonic() - began:5.1f} s after the last: away are {', '.join(sorted(away)) or 'none'}")
            told.clear()
            told.update(away)
        return not away

    wait_until(has_all, what="ready after the last kill")


def wait_ended(platform: PlatformUnderTest, ids: list[str]) -> list[str]:
    """Wait until all jobs have ended. Returns what has not."""
    left, deadline = list(ids), time.monotonic() + END_S
    while left and time.monotonic() < deadline:
        time.sleep(2.0)
        before, left = len(left), [job_id for job_id in left if platform.job(job_id)["state"] not in FINAL_STATES]
        if len(left) < before:
            deadline = time.monotonic() + END_S
    states = {job_id: platform.job(job_id)["state"] for job_id in left}
    return [f"{job_id} has not ended: {state}" for job_id, state in states.items() if state not in FINAL_STATES]


def judge(platform: PlatformUnderTest, found: Mapping[str, Work], report: ChaosReport) -> None:
    """Look at each job."""
    states, attempts = Counter[str](), Counter[str]()
    for job_id, work in found.items():
        job: dict[str, Any] = platform.job(job_id)
        states[job["state"]] += 1
        attempts.update(str(attempt["outcome"]) for attempt in job["attempts"])
        if why := why_wrong(platform, work, job):
            report.wrong.append(why)
    report.jobs, report.attempts = states, attempts


def leases_left(platform: PlatformUnderTest, patience_s: float = 15.0) -> list[str]:
    """Return the leases that a node has although no job runs."""
    deadline = time.monotonic() + patience_s
    while True:
        nodes = platform.client.get("/v1/nodes")["nodes"]
        left = [f"lease on {node['name']}: {lease}" for node in nodes for lease in node.get("leases") or ()]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.5)


def say(text: str) -> None:
    """Tell how far it is."""
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", default=None)
    parser.add_argument("--seed", type=int, default=23)
    parser.add_argument("--jobs", type=int, default=500, help="of all kinds, four to a pipeline or a sweep")
    parser.add_argument("--pipelines", type=int, default=10)
    parser.add_argument("--sweeps", type=int, default=10)
    parser.add_argument("--quick", type=int, default=0, help="jobs beside those that are over at once")
    parser.add_argument("--steps", type=int, default=20, help="of a training, 0.05 s each")
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--every", type=float, default=2.0, help="seconds between two")
    parser.add_argument("--nodes", type=int, choices=(1, 2), default=1)
    for name in ("postgres", "messages", "clock", "keep"):
        parser.add_argument(f"--{name}", action="store_true")
    options = parser.parse_args()
    tempfile.tempdir = "/tmp"
    report = run_chaos(options)
    rows = [("database", report.database), ("nodes", report.nodes), ("seed", report.seed),
            *((f"struck: {what}", count) for what, count in sorted(report.struck.items())),
            *((f"jobs {state}", count) for state, count in report.jobs.items()),
            *((f"attempts {outcome}", count) for outcome, count in report.attempts.items()),
            ("load, cores", report.load),
            ("ready after the last", f"{report.ready_s:.1f} s"), ("all ended after it", f"{report.ended_s:.1f} s"),
            ("wrong", len(report.wrong)), ("left", len(report.left))]  # fmt: skip
    for what, value in rows:
        print(f"{what:28} {value}")
    for line in (*report.wrong, *report.left):
        print(line)
    if options.json:
        write_json(options.json, {"chaos": asdict(report)})
    sys.exit(bool(report.wrong or report.left))


if __name__ == "__main__":
    main()
