"""A platform of two nodes, each with its home, daemon and worker: jobs spread, and outlive a node's drain and loss."""

import json
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rdukit.errors import InvalidArgument
from support import shows, wait_until
from support.forked import run_rdukit_forked
from support.platform.processes import NodeUnderTest, PlatformUnderTest, has_ended, platform_under_test, short_folder

pytestmark = shows("node", "nodes", "job")

BOX = Path(__file__).with_name("platform_box.py")
FAST = {
    "RDUKIT_JOB_BACKOFF_S": "0.1",
    "RDUKIT_NODE_LOST_S": "3.5",
    "RDUKIT_NODE_NAME": "one",
    "RDUKIT_NODE_LABELS": "zone=a",
}
#: Half of a node's: two jobs fill it.
TILES = 32
#: Seconds in which a node that is gone is noticed: 5 on a host that is idle, and as many more on one that is not.
NOTICED_S = 10.0


@pytest.fixture(scope="module")
def platform() -> Iterator[PlatformUnderTest]:
    with short_folder() as home, platform_under_test(home, BOX, FAST) as running:
        yield running


@pytest.fixture(scope="module")
def dataset(platform: PlatformUnderTest) -> str:
    found: str = platform.wait_end(platform.submit("preprocess")["id"])["outputs"]["dataset"]
    return found


@contextmanager
def joined(platform: PlatformUnderTest) -> Iterator[tuple[NodeUnderTest, dict[str, Any]]]:
    """Yield a node called two, and what it said when it had joined."""
    with short_folder() as home:
        variables = {**FAST, "RDUKIT_WORKER_BOX_COMMAND": f"{sys.executable} {BOX}"}
        node = NodeUnderTest(platform, home, "two", ["--label", "zone=b"], variables)
        node.start()
        try:
            yield node, node.wait_joined()
        finally:
            node.stop()


def rdukit(platform: PlatformUnderTest, *words: str) -> str:
    environment = {"RDUKIT_HOME": str(platform.home), "PATH": "/usr/bin:/bin", "COLUMNS": "200"}
    done = run_rdukit_forked(words, environment)
    done.check_returncode()
    return done.stdout


def nodes(platform: PlatformUnderTest) -> dict[str, dict[str, Any]]:
    return {node["name"]: node for node in platform.client.get("/v1/nodes")["nodes"]}


def train(platform: PlatformUnderTest, dataset: str, steps: int) -> str:
    body = {"inputs": {"dataset": dataset}, "parameters": {"steps": steps, "step_s": 0.05}, "tiles": TILES}
    job: str = platform.submit("train", **body)["id"]
    return job


def is_under_way(job: dict[str, Any]) -> bool:
    return job["state"] == "running" and (job["progress"] or {}).get("step", 0) > 3


def placed(job: dict[str, Any]) -> list[tuple[str, str]]:
    return [(attempt["node"], attempt["outcome"]) for attempt in job["attempts"]]


def start_on_both(platform: PlatformUnderTest, dataset: str, steps: int) -> dict[str, list[str]]:
    """Start as many jobs as both nodes take. Returns the jobs of each node."""
    found: dict[str, list[str]] = {"one": [], "two": []}
    for job in [train(platform, dataset, steps) for _ in range(4)]:
        found[platform.wait_job(job, is_under_way)["attempts"][-1]["node"]].append(job)
    return found


@pytest.mark.long
def test_jobs_spread_and_a_node_that_leaves_has_left_when_its_own_are_done(
    platform: PlatformUnderTest, dataset: str
) -> None:
    with joined(platform) as (node, said):
        assert said["name"] == "two"
        listed = rdukit(platform, "node", "list")
        assert "one" in listed and "zone=b" in listed and listed.count("64 of 64") == 2
        jobs = start_on_both(platform, dataset, 120)
        assert [len(ids) for ids in jobs.values()] == [2, 2]
        shown = nodes(platform)
        assert {lease["job"] for lease in shown["two"]["leases"]} == set(jobs["two"])
        assert {lease["job"] for lease in shown["one"]["leases"]} == set(jobs["one"])
        with pytest.raises(InvalidArgument, match="name one by --node: one, two"):
            platform.client.post("/v1/nodes/-/drain", {})
        moved = jobs["two"].pop()
        platform.client.post(f"/v1/jobs/{moved}/pause")
        platform.wait_job(moved, lambda job: job["state"] == "paused")
        # By way of a worker there: the gateway does not reach that daemon.
        assert "two: /NODE is drain" in rdukit(platform, "node", "drain", "--node", "two", "--reason", "new DIMM")
        assert {tile["cordon"] for tile in nodes(platform)["two"]["tiles"]} <= {"draining", "drained"}
        platform.client.post(f"/v1/jobs/{moved}/resume")
        done = platform.wait_end(moved)
        assert placed(done) == [("two", "paused"), ("one", "succeeded")], done
        # The checkpoint came along.
        began = [int(n) for n in re.findall(r"counting from (\d+) to", rdukit(platform, "job", "logs", moved))]
        assert began[0] == 0 and began[1] > 3
        assert "two: /NODE is allocated again" in rdukit(platform, "node", "uncordon", "--node", "two")
        # It leaves when what it has is done, and its process ends.
        late = train(platform, dataset, 5)
        assert "two is left" in rdukit(platform, "node", "leave", "two", "--wait")
        assert node.wait() == 0
        jobs["one"].append(late)
        for name, ids in jobs.items():
            for job in ids:
                assert placed(platform.wait_end(job)) == [(name, "succeeded")]
    assert nodes(platform)["two"]["state"] == "left"
    assert not nodes(platform)["one"]["leases"]


def test_a_node_that_is_killed_whole_is_noticed_and_its_jobs_end_once_on_the_other(
    platform: PlatformUnderTest, dataset: str
) -> None:
    with joined(platform) as (node, said):
        jobs = start_on_both(platform, dataset, 80)
        (claimed,) = {attempt["worker"] for attempt in platform.job(jobs["two"][0])["attempts"]}
        assert claimed.endswith(f":{said['pids']['worker']}")
        node.kill()
        killed = time.monotonic()
        assert all(has_ended(pid) for pid in said["pids"].values())
        wait_until(lambda: nodes(platform)["two"]["state"] == "lost")
        assert time.monotonic() - killed < NOTICED_S
        for job in jobs["two"]:
            done = platform.wait_end(job)
            expected = ("succeeded", [("two", "expired"), ("one", "succeeded")])
            assert (done["state"], placed(done)) == expected, json.dumps(done["attempts"])
        for job in jobs["one"]:
            assert placed(platform.wait_end(job)) == [("one", "succeeded")]
        wait_until(lambda: not nodes(platform)["one"]["leases"])
        assert "lost" in rdukit(platform, "node", "list")
