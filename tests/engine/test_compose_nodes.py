"""The stack with its profile ``nodes``: a second node with a home of its own, killed under a job, and back again."""

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from compose_stack import PATIENCE_S, SERVICES, Engine, connect, find_compose, follow, is_over, is_under_way

from support import shows

TWO = ("snd-two", "worker-two")
#: More than half of a node's: one job fills it.
TILES = 40

pytestmark = [
    shows("containers", "nodes", "logreg"),
    pytest.mark.timeout(1200),
    pytest.mark.second_stack,
    pytest.mark.long,
]


@pytest.fixture(scope="module")
def stack(engine_environment: dict[str, str], images: dict[str, str]) -> Iterator[Engine]:
    found = find_compose(engine_environment, "rdukit-nodes", shift=30)
    found.environment.update(COMPOSE_PROFILES="nodes", RDUKIT_NODE_TWO_LABELS="zone=b")
    try:
        found.up("up", "--detach", "--wait", "--no-build", "--wait-timeout", str(PATIENCE_S), timeout_s=PATIENCE_S + 60)
        yield found
    finally:
        found.up("down", "--volumes", "--timeout", "10")


@pytest.fixture(scope="module")
def gateway(stack: Engine) -> Iterator[httpx.Client]:
    with connect(stack) as client:
        yield client


def states(gateway: httpx.Client) -> dict[str, str]:
    """State of each node."""
    return {node["name"]: node["state"] for node in gateway.get("/v1/nodes").raise_for_status().json()["nodes"]}


def wait_for(gateway: httpx.Client, state: str) -> None:
    """Wait until the second node is in a state."""
    deadline = time.monotonic() + PATIENCE_S
    while states(gateway)["two"] != state:
        assert time.monotonic() < deadline, states(gateway)
        time.sleep(0.2)


def placed(job: dict[str, Any]) -> list[tuple[str, str]]:
    """Node and outcome of each attempt."""
    return [(attempt["node"], attempt["outcome"]) for attempt in job["attempts"]]


def test_jobs_of_a_second_node_that_is_killed_end_on_the_first_and_it_comes_back(
    stack: Engine, gateway: httpx.Client
) -> None:
    assert len(stack.up("ps", "--quiet").split()) == len(SERVICES) + len(TWO)
    assert states(gateway) == {"compose": "up", "two": "up"}
    data = gateway.post("/v1/jobs", json={"box": "logreg", "verb": "preprocess"}).raise_for_status().json()["id"]
    pef = gateway.post("/v1/jobs", json={"box": "logreg", "verb": "compile"}).raise_for_status().json()["id"]
    inputs = {
        "dataset": follow(gateway, data, is_over)["outputs"]["dataset"],
        "pef": follow(gateway, pef, is_over)["outputs"]["pef"],
    }
    body = {"box": "logreg", "verb": "train", "tiles": TILES, "inputs": inputs, "parameters": {"epochs": 20}}
    jobs = [gateway.post("/v1/jobs", json=body).raise_for_status().json()["id"] for _ in range(2)]
    found = {job: follow(gateway, job, is_under_way)["attempts"][-1]["node"] for job in jobs}
    assert sorted(found.values()) == ["compose", "two"]
    (job,) = [job for job, node in found.items() if node == "two"]
    leases = json.loads(stack.execute("snd-two", "rdukit", "node", "status", "--json"))["leases"]
    assert len(leases) == 1, "of its own daemon"
    stack.run("docker", "kill", *(stack.container(service) for service in TWO))
    wait_for(gateway, "lost")
    done = [follow(gateway, job, is_over) for job in jobs]
    assert [each["state"] for each in done] == ["succeeded", "succeeded"], done
    assert placed(done[jobs.index(job)]) == [("two", "expired"), ("compose", "succeeded")]
    stack.run("docker", "start", *(stack.container(service) for service in TWO))
    wait_for(gateway, "up")
