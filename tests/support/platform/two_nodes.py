"""Two nodes of one platform, an endpoint with a replica on each, and somebody who calls it all the time."""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self

import httpx

from rdukit_platform.backends.process_tree import tree_of
from rdukit_platform.settings import Home
from support.helpers import wait_until
from support.platform.chaos import PARTS, command_of, name_of
from support.platform.processes import NodeUnderTest, PlatformUnderTest, platform_under_test, short_folder

FAST: Final = {
    "RDUKIT_WORKER_LEASE_S": "4", "RDUKIT_JOB_BACKOFF_S": "0.1", "RDUKIT_KERNELS": "portable",
    "RDUKIT_WORKER_REPLICAS": "4", "RDUKIT_ENDPOINT_DRAIN_S": "60", "RDUKIT_ENDPOINT_WAIT_S": "120",
    "RDUKIT_NODE_NAME": "one", "RDUKIT_NODE_LABELS": "place=one",
}  # fmt: skip
#: More than half of a node's: each node has room for one replica.
TILES: Final = 40
ROWS: Final = {"inputs": [{"name": "image", "shape": [1, 784], "datatype": "FP32", "data": [0.5] * 784}]}


@contextmanager
def two_nodes(box_program: Path | None = None) -> Iterator[tuple[PlatformUnderTest, NodeUnderTest]]:
    """Yield a platform with the node ``one``, and the node ``two`` that has joined it."""
    with short_folder() as home, platform_under_test(home, box_program, FAST) as running, short_folder() as other:
        variables = {**FAST, "RDUKIT_NODE_NAME": "two", "RDUKIT_NODE_LABELS": "place=two"}
        if box_program is not None:
            variables["RDUKIT_WORKER_BOX_COMMAND"] = f"{sys.executable} {box_program}"
        node = NodeUnderTest(running, other, "two", [], variables)
        node.start()
        try:
            node.wait_joined()
            yield running, node
        finally:
            node.stop()


def serve_digits(platform: PlatformUnderTest) -> dict[str, str]:
    """Serve digits as the endpoint ``read`` by two replicas, one on each node. Returns the inputs of its training."""
    built = {"pef": "@compile.pef", "dataset": "@preprocess.dataset"}
    steps = [
        {"name": "preprocess", "box": "logreg", "verb": "preprocess"},
        {"name": "compile", "box": "logreg", "verb": "compile", "parameters": {"mode": "o0", "num_tiles": 1}},
        {"name": "train", "box": "logreg", "verb": "train", "parameters": {"epochs": 1}, "inputs": built},
    ]
    pipeline = platform.client.submit("/v1/pipelines", {"name": "digits", "steps": steps})
    done = [platform.wait_end(job["id"], 300) for job in pipeline["jobs"]]
    assert [job["state"] for job in done] == ["succeeded"] * 3, done
    made = platform.client.post("/v1/experts", {"job": done[2]["id"], "name": "digits"})
    body = {"name": "read", "expert": made["expert"], "replicas": 2, "tiles": TILES}
    platform.client.post("/v1/endpoints", body)
    wait_until(lambda: ready_nodes(platform) == ["one", "two"], timeout_s=300)
    return {"dataset": done[0]["outputs"]["dataset"], "pef": done[1]["outputs"]["pef"]}


def replicas(platform: PlatformUnderTest) -> list[dict[str, Any]]:
    """Return the replicas of the endpoint ``read``."""
    return list(platform.client.get("/v1/endpoints/read")["instances"])


def ready_nodes(platform: PlatformUnderTest) -> list[str]:
    """Return the nodes of the replicas that are ready."""
    return sorted(one["node"] for one in replicas(platform) if one["state"] == "ready")


def parts_of(node: NodeUnderTest, name: str) -> list[int]:
    """Return the processes of a node that are one part of it, such as ``snd``."""
    pids = [facts.pid for facts in tree_of(node.pid)[1:]]
    return [pid for pid in pids if name_of(pid) == name or PARTS[name] in command_of(pid)]


def box_of_replica(node: NodeUnderTest, replica_id: str) -> list[int]:
    """Return the processes of the box that serves a replica."""
    log = (Home(node.home).logs / "worker.log").read_text()
    box = log.partition(f"replica ready replica={replica_id} box=")[2].split()[0]
    return [facts.pid for facts in tree_of(int(box))]


def box_of_job(job: Mapping[str, Any]) -> list[int]:
    """Return the processes of the box that a job runs in."""
    return [facts.pid for facts in tree_of(int(job["attempts"][-1]["box"]["id"]))]


@contextmanager
def stopped(pids: Sequence[int]) -> Iterator[None]:
    """Stop processes by SIGSTOP, and let them go on at the block's end; those that are gone by then are left."""
    assert pids
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


class Callers:
    """Calls of the endpoint ``read``, so many each second, from the block's beginning to its end."""

    def __init__(self, platform: PlatformUnderTest, rate: float = 20.0) -> None:
        token = (platform.home / "token").read_text().strip()
        self._url = f"{platform.running['url']}/v1/endpoints/read/v2/models/read/infer"
        self._http = httpx.Client(
            headers={"Authorization": f"Bearer {token}"}, timeout=150.0, trust_env=False,
            # None is kept: on a busy machine one expires between a thread's choice of it and its request.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
        )  # fmt: skip
        self._rate = rate
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        #: Status and words of each answer, and the seconds that it took.
        self.answers: list[tuple[int, str]] = []
        self.seconds: list[float] = []

    def _run(self) -> None:
        with ThreadPoolExecutor(500) as pool:
            while not self._stop.wait(1 / self._rate):
                pool.submit(self._call)

    def _call(self) -> None:
        began = time.monotonic()
        try:
            answer = self._http.post(self._url, json=ROWS)
            self.answers.append((answer.status_code, answer.text[:300]))
        except httpx.HTTPError as error:
            self.answers.append((0, repr(error)))
        self.seconds.append(time.monotonic() - began)

    def __enter__(self) -> Self:
        self._thread.start()
        self.wait_more(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._http.close()

    def wait_more(self, count: int) -> None:
        """Wait until so many more calls were answered."""
        wanted = len(self.answers) + count
        wait_until(lambda: len(self.answers) >= wanted, timeout_s=120)

    @property
    def failed(self) -> list[tuple[int, str]]:
        """Answers that were none of the model's."""
        return [answer for answer in self.answers if answer[0] != 200]
