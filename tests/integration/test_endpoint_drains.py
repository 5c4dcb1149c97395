"""An endpoint on two nodes, one of which is drained while it is called: no call fails."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from support import shows, wait_until
from support.platform.processes import PlatformUnderTest
from support.platform.two_nodes import Callers, ready_nodes, replicas, serve_digits, two_nodes

pytestmark = [shows("node", "endpoints", "endpoint calls"), pytest.mark.long]


@pytest.fixture(scope="module")
def platform() -> Iterator[PlatformUnderTest]:
    with two_nodes() as (running, _):
        serve_digits(running)
        yield running


def test_a_drain_that_ends_leases_fails_no_call(platform: PlatformUnderTest) -> None:
    with Callers(platform) as callers:
        platform.client.post("/v1/nodes/two/drain", {"deadline_s": 1.0, "reason": "new DIMM"})
        wait_until(lambda: ready_nodes(platform) == ["one"], timeout_s=60)
        ended = [one for one in replicas(platform) if one["node"] == "two" and one["ended_at"]]
        reasons = {one["reason"] for one in ended}
        assert "withdrawn" in reasons and reasons <= {"withdrawn", "drained", "not-wanted"}, ended
        platform.client.post("/v1/nodes/two/uncordon", {})
        wait_until(lambda: ready_nodes(platform) == ["one", "two"], timeout_s=180)
        callers.wait_more(10)
    assert callers.failed == []


def test_replicas_move_to_a_node_with_room_before_a_drain_ends_theirs(platform: PlatformUnderTest) -> None:
    platform.client.post("/v1/endpoints/read/update", {"replicas": 1})
    wait_until(lambda: [one["state"] for one in replicas(platform) if not one["ended_at"]] == ["ready"], timeout_s=180)
    (node,) = ready_nodes(platform)
    other = {"one": "two", "two": "one"}[node]
    with Callers(platform) as callers:
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
