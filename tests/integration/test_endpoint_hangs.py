"""An endpoint on two nodes under 20 calls a second, while a part of one node restarts or hangs: no call fails.

Trainings that run on both nodes meanwhile end, and none of their attempts is used up.
"""

import os
import signal
import time
from collections.abc import Iterator

import pytest

from rdukit_platform.jobs.attempts import FREE, LOST
from rdukit_platform.worker.replica import PROBE_S, PROBES
from support import shows, wait_until
from support.platform.chaos import both_boxes
from support.platform.processes import NodeUnderTest, PlatformUnderTest
from support.platform.two_nodes import (
    Callers,
    box_of_job,
    box_of_replica,
    parts_of,
    ready_nodes,
    replicas,
    serve_digits,
    stopped,
    two_nodes,
)

pytestmark = [shows("node", "endpoints", "endpoint calls"), pytest.mark.long]

#: Longer than any part takes to notice a hang; the slowest is a worker, whose probes of a replica's box fail in a row.
HANG_S = PROBES * PROBE_S + 10.0
#: Work of a training, which lasts longer than a hang and what follows it.
TRAINING = {"steps": 300, "step_s": 0.1}
#: Outcomes that use up no attempt.
UNCOUNTED = {str(outcome) for outcome in FREE | LOST}


@pytest.fixture(scope="module")
def nodes() -> Iterator[tuple[PlatformUnderTest, NodeUnderTest]]:
    """Two nodes with the tests' box ``counter`` besides the real ones, and digits served by both."""
    with both_boxes() as program, two_nodes(program) as found:
        serve_digits(found[0])
        yield found


@pytest.fixture
def trainings(nodes: tuple[PlatformUnderTest, NodeUnderTest]) -> Iterator[list[str]]:
    """Trainings that run on both nodes; afterwards they must end well, without an attempt that counts."""
    platform, _ = nodes
    made = platform.wait_end(platform.submit("preprocess")["id"])
    body = {"inputs": {"dataset": made["outputs"]["dataset"]}, "tiles": 1, "parameters": TRAINING}
    places = ["one", "two"] * 2
    ids = [platform.submit("train", **body, constraint={"place": place})["id"] for place in places]
    found = [platform.wait_job(job_id, lambda job: job["state"] == "running") for job_id in ids]
    assert [job["attempts"][-1]["node"] for job in found] == places
    yield ids
    jobs = [platform.wait_end(job_id, 600) for job_id in ids]
    assert [job["state"] for job in jobs] == ["succeeded"] * len(ids)
    outcomes = [attempt["outcome"] for job in jobs for attempt in job["attempts"]]
    assert outcomes.count("succeeded") == len(ids)
    assert set(outcomes) <= UNCOUNTED | {"succeeded"}, outcomes


def assert_no_call_fails(nodes: tuple[PlatformUnderTest, NodeUnderTest], pids: list[int]) -> None:
    """Let processes of node ``two`` hang for ``HANG_S`` under calls, none of which may fail."""
    platform, _ = nodes
    with Callers(platform) as callers:
        with stopped(pids):
            until = time.monotonic() + HANG_S
            wait_until(lambda: time.monotonic() > until, timeout_s=2 * HANG_S)
        wait_until(lambda: ready_nodes(platform) == ["one", "two"], timeout_s=180)
        callers.wait_more(20)
    print(f"{len(callers.answers)} calls, longest of all {sorted(callers.seconds)[-3:]}")
    assert callers.failed == []
    assert len(callers.answers) > 10 * HANG_S


def test_a_replica_has_the_priority_of_the_platform(nodes: tuple[PlatformUnderTest, NodeUnderTest]) -> None:
    platform, two = nodes
    (replica,) = (one["id"] for one in replicas(platform) if (one["node"], one["state"]) == ("two", "ready"))
    pids = [*box_of_replica(two, replica), *parts_of(two, "worker"), *parts_of(two, "snd")]
    assert {os.getpriority(os.PRIO_PROCESS, pid) for pid in pids} == {os.getpriority(os.PRIO_PROCESS, two.pid)}


def test_no_call_fails_while_the_daemon_restarts(
    nodes: tuple[PlatformUnderTest, NodeUnderTest], trainings: list[str]
) -> None:
    platform, two = nodes
    with Callers(platform) as callers:
        (daemon,) = parts_of(two, "snd")
        os.kill(daemon, signal.SIGTERM)
        wait_until(lambda: parts_of(two, "snd") not in ([], [daemon]), timeout_s=60)
        callers.wait_more(40)
        wait_until(lambda: ready_nodes(platform) == ["one", "two"], timeout_s=180)
    assert callers.failed == []


def test_no_call_fails_while_the_daemon_hangs(
    nodes: tuple[PlatformUnderTest, NodeUnderTest], trainings: list[str]
) -> None:
    assert_no_call_fails(nodes, parts_of(nodes[1], "snd"))


def test_no_call_fails_while_a_worker_hangs(
    nodes: tuple[PlatformUnderTest, NodeUnderTest], trainings: list[str]
) -> None:
    assert_no_call_fails(nodes, parts_of(nodes[1], "worker"))


def test_no_call_fails_while_the_box_of_a_replica_hangs(
    nodes: tuple[PlatformUnderTest, NodeUnderTest], trainings: list[str]
) -> None:
    platform, two = nodes
    (replica,) = (one["id"] for one in replicas(platform) if (one["node"], one["state"]) == ("two", "ready"))
    assert_no_call_fails(nodes, box_of_replica(two, replica))


def test_a_training_whose_box_hangs_uses_up_no_attempt(
    nodes: tuple[PlatformUnderTest, NodeUnderTest], trainings: list[str]
) -> None:
    platform, _ = nodes
    on_two = [job for job in map(platform.job, trainings) if job["attempts"][-1]["node"] == "two"]
    assert_no_call_fails(nodes, [pid for job in on_two for pid in box_of_job(job)])
