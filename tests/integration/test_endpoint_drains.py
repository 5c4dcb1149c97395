"""An endpoint on two nodes, one of which is drained while it is called: no call fails."""

import threading
import time
from collections.abc import Iterator
from typing import Any, Self

import httpx
import pytest

from support import shows, wait_until
from support.platform.processes import NodeUnderTest, PlatformUnderTest, platform_under_test, short_folder

pytestmark = [shows("node", "endpoints", "endpoint calls"), pytest.mark.long]

FAST = {
    "RDUKIT_WORKER_LEASE_S": "4", "RDUKIT_JOB_BACKOFF_S": "0.1", "RDUKIT_KERNELS": "portable",
    "RDUKIT_WORKER_REPLICAS": "4", "RDUKIT_ENDPOINT_DRAIN_S": "60", "RDUKIT_ENDPOINT_WAIT_S": "120",
    "RDUKIT_NODE_NAME": "one",
}  # fmt: skip
#: More than half of a node's: each node has room for one replica.
TILES = 40


@pytest.fixture(scope="module")
def platform() -> Iterator[PlatformUnderTest]:
    with short_folder() as home, platform_under_test(home, None, FAST) as running, short_folder() as other:
        node = NodeUnderTest(running, other, "two", [], {**FAST, "RDUKIT_NODE_NAME": "two"})
        node.start()
        try:
            node.wait_joined()
            yield running
        finally:
            node.stop()


@pytest.fixture(scope="module")
def served(platform: PlatformUnderTest) -> str:
    """Serve digits by two replicas, one on each node."""
    built = {"pef": "@compile.pef", "dataset": "@preprocess.dataset"}
    steps = [
        {"name": "preprocess", "box": "logreg", "verb": "preprocess"},
        {"name": "compile", "box": "logreg", "verb": "compile", "parameters": {"mode": "o0", "num_tiles": 1}},
        {"name": "train", "box": "logreg", "verb": "train", "parameters": {"epochs": 1}, "inputs": built},
    ]
    pipeline = platform.client.submit("/v1/pipelines", {"name": "digits", "steps": steps})
    for job in pipeline["jobs"]:
        done = platform.wait_end(job["id"], 300)
        assert done["state"] == "succeeded", done
    made = platform.client.post("/v1/experts", {"job": done["id"], "name": "digits"})
    body = {"name": "read", "expert": made["expert"], "replicas": 2, "tiles": TILES}
    platform.client.post("/v1/endpoints", body)
    wait_until(lambda: ready_nodes(platform) == ["one", "two"], timeout_s=300)
    return "read"


def replicas(platform: PlatformUnderTest) -> list[dict[str, Any]]:
    return list(platform.client.get("/v1/endpoints/read")["instances"])


def ready_nodes(platform: PlatformUnderTest) -> list[str]:
    return sorted(one["node"] for one in replicas(platform) if one["state"] == "ready")


class Callers:
    """Calls of the endpoint, some each second, from the block's beginning to its end."""

    def __init__(self, platform: PlatformUnderTest, name: str) -> None:
        token = (platform.home / "token").read_text().strip()
        self.url = f"{platform.running['url']}/v1/endpoints/{name}/v2/models/{name}/infer"
        self.headers = {"Authorization": f"Bearer {token}"}
        self.answers: list[tuple[int, str]] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._call) for _ in range(4)]

    def _call(self) -> None:
        data = {"inputs": [{"name": "image", "shape": [1, 784], "datatype": "FP32", "data": [0.5] * 784}]}
        with httpx.Client(headers=self.headers, timeout=150.0, trust_env=False) as http:
            while not self._stop.wait(0.2):
                answer = http.post(self.url, json=data)
                self.answers.append((answer.status_code, answer.text[:300]))

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    @property
    def failed(self) -> list[tuple[int, str]]:
        return [answer for answer in self.answers if answer[0] != 200]


def test_a_drain_that_ends_leases_fails_no_call(platform: PlatformUnderTest, served: str) -> None:
    with Callers(platform, served) as callers:
        wait_until(lambda: len(callers.answers) > 10, timeout_s=60)
        platform.client.post("/v1/nodes/two/drain", {"deadline_s": 1.0, "reason": "new DIMM"})
        wait_until(lambda: ready_nodes(platform) == ["one"], timeout_s=60)
        ended = [one for one in replicas(platform) if one["node"] == "two" and one["ended_at"]]
        reasons = {one["reason"] for one in ended}
        assert "withdrawn" in reasons and reasons <= {"withdrawn", "drained", "not-wanted"}, ended
        platform.client.post("/v1/nodes/two/uncordon", {})
        wait_until(lambda: ready_nodes(platform) == ["one", "two"], timeout_s=180)
        count = len(callers.answers)
        wait_until(lambda: len(callers.answers) > count + 10, timeout_s=60)
    assert callers.failed == []


def test_replicas_move_to_a_node_with_room_before_a_drain_ends_theirs(platform: PlatformUnderTest, served: str) -> None:
    platform.client.post(f"/v1/endpoints/{served}/update", {"replicas": 1})
    wait_until(lambda: [one["state"] for one in replicas(platform) if not one["ended_at"]] == ["ready"], timeout_s=180)
    (node,) = ready_nodes(platform)
    other = {"one": "two", "two": "one"}[node]
    with Callers(platform, served) as callers:
        wait_until(lambda: len(callers.answers) > 10, timeout_s=60)
        began = time.time()
        platform.client.post(f"/v1/nodes/{node}/drain", {"deadline_s": 300.0, "reason": "new DIMM"})
        wait_until(lambda: ready_nodes(platform) == [other], timeout_s=250)

        def ended() -> list[dict[str, Any]]:
            return [one for one in replicas(platform) if one["ready_at"] and (one["ended_at"] or 0) > began]

        wait_until(lambda: bool(ended()), timeout_s=120)
        (old,) = ended()
        new = next(one for one in replicas(platform) if one["node"] == other and one["state"] == "ready")
        assert (old["node"], old["reason"], old["ended_at"] > new["ready_at"]) == (node, "drained", True)
    assert callers.failed == []
    platform.client.post(f"/v1/nodes/{node}/uncordon", {})
