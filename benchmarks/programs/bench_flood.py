"""One tenant has queued very many jobs: how long does another tenant's job take, against an idle platform?

A platform of real processes with a box that works ``--work`` seconds. First ``--rounds`` jobs of the quiet tenant one
after the other on the idle platform; then the loud tenant submits ``--jobs``, and the quiet tenant's jobs are timed
again. Prints the ratio of the medians, submissions a second, and what must not happen: answers other than 201, attempts
that lost their lease. ::

    python benchmarks/programs/bench_flood.py [--json FILE] [--jobs 20000] [--rounds 5] [--work 0.5] [--slots 2]
"""

import argparse
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rdukit_bench.comparisons.machine import write_json

from rdukit.errors import RdukitError
from rdukit_platform.client.http import ApiClient

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from support.platform.processes import PlatformUnderTest, platform_under_test

BOX = Path(__file__).parents[2] / "tests/integration/platform_box.py"
CALLERS = 8


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


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", default=None)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
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
    print(f"idle {alone:.2f} s, beside {options.jobs} jobs {beside:.2f} s: {ratio:.2f}")
    print(f"{options.jobs / seconds:.0f} submissions a second, answers {dict(said)}; {queued} or more still queued")
    print(f"attempts of the flood: {dict(Counter(str(outcome) for outcome in ended))}")
    if options.json:
        figures = {"ratio": ratio, "idle_s": idle, "loaded_s": loaded, "answers": dict(said)}
        write_json(options.json, {"flood": figures})


if __name__ == "__main__":
    main()
