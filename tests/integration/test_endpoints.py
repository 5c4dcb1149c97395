"""Endpoints with the real ``logreg`` box: served, killed and replaced, updated under requests, scaled and deleted."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Self

import httpx
import pytest

from rdukit.errors import Conflict, IllegalValue, InvalidArgument, NotFound
from support import shows
from support.platform.processes import PlatformUnderTest, platform_under_test, short_folder

pytestmark = shows("endpoints", "endpoint calls", "console", "experts", "logreg", "endpoint-updates", "endpoint-calls")

#: Native kernels are `test_fast_paths`'s: here they would only be built once more.
FAST = {
    "RDUKIT_WORKER_LEASE_S": "4", "RDUKIT_JOB_BACKOFF_S": "0.1", "RDUKIT_KERNELS": "portable",
    "RDUKIT_WORKER_REPLICAS": "4", "RDUKIT_ENDPOINT_DRAIN_S": "20",
    "RDUKIT_ENDPOINT_WAIT_S": "120",
}  # fmt: skip


@pytest.fixture(scope="module")
def platform() -> Iterator[PlatformUnderTest]:
    with short_folder() as home, platform_under_test(home, None, FAST) as running:
        yield running


@pytest.fixture(scope="module")
def expert(platform: PlatformUnderTest) -> str:
    """Train on digits for two epochs, and promote it. Returns ``digits:1``."""
    built = {"pef": "@compile.pef", "dataset": "@preprocess.dataset"}
    compiled = {"mode": "o0", "num_tiles": 1}
    steps = [
        {"name": "preprocess", "box": "logreg", "verb": "preprocess"},
        {"name": "compile", "box": "logreg", "verb": "compile", "parameters": compiled},
        {"name": "train", "box": "logreg", "verb": "train", "parameters": {"epochs": 2}, "inputs": built},
    ]
    pipeline = platform.client.submit("/v1/pipelines", {"name": "digits", "steps": steps})
    for job in pipeline["jobs"]:
        done = platform.wait_end(job["id"], 180)
        assert done["state"] == "succeeded", done
    made = platform.client.post("/v1/experts", {"job": done["id"], "name": "digits"})
    return str(made["expert"])


def shown(platform: PlatformUnderTest, name: str) -> dict[str, Any]:
    return platform.client.get(f"/v1/endpoints/{name}")


def wait(
    platform: PlatformUnderTest, name: str, until: Callable[[dict[str, Any]], bool], timeout_s: float = 120.0
) -> dict[str, Any]:
    deadline = time.monotonic() + timeout_s
    while not until(found := shown(platform, name)):
        assert time.monotonic() < deadline, found
        time.sleep(0.1)
    return found


def is_ready(endpoint: dict[str, Any]) -> bool:
    return bool(endpoint["state"] == "ready")


def rows_body(count: int = 1) -> dict[str, Any]:
    data = [0.5] * (784 * count)
    return {"inputs": [{"name": "image", "shape": [count, 784], "datatype": "FP32", "data": data}]}


class Caller:
    """Somebody who calls an endpoint."""

    def __init__(self, platform: PlatformUnderTest, name: str) -> None:
        token = (platform.home / "token").read_text().strip()
        self.http = httpx.Client(
            base_url=f"{platform.running['url']}/v1/endpoints/{name}",
            headers={"Authorization": f"Bearer {token}"}, timeout=150.0, trust_env=False,
        )  # fmt: skip
        self.name = name

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def infer(self, count: int = 1) -> httpx.Response:
        return self.http.post(f"/v2/models/{self.name}/infer", json=rows_body(count))


def box_pid(platform: PlatformUnderTest, replica: str) -> int:
    """Process of a replica's box, as the worker has recorded it."""
    for file in (platform.home / "run" / "boxes").glob("*/*.json"):
        found = json.loads(file.read_bytes())
        if found["owner"] == replica:
            return int(found["pid"])
    raise AssertionError(f"no process of {replica}")


@pytest.fixture(scope="module")
def served(platform: PlatformUnderTest, expert: str) -> str:
    made = platform.client.post("/v1/endpoints", {"name": "read", "expert": expert})
    assert (made["revision"], made["replicas"], made["expert"]) == (1, 1, expert)
    assert made["state"] == "starting"
    wait(platform, "read", is_ready)
    return "read"


def test_an_expert_is_served_through_the_gateway_and_its_use_is_counted(
    platform: PlatformUnderTest, served: str
) -> None:
    with Caller(platform, served) as caller:
        answer = caller.infer(3)
        assert answer.status_code == 200, answer.text
        assert answer.json()["outputs"][0]["shape"][0] == 3
        assert answer.headers["x-content-type-options"] == "nosniff"
        model = caller.http.get("/v2/models/read").json()
        assert model["name"] == "logreg"
        assert caller.http.get("/v2/health/ready").status_code == 200
        wrong = caller.http.post("/v2/models/read/infer", json={"inputs": []})
        assert (wrong.status_code, "error" in wrong.json()) == (400, True)
        for method, path in (
            ("POST", "/v2/repository/models/logreg/unload"),
            ("POST", "/train"),
            ("GET", "/operations"),
        ):
            assert caller.http.request(method, path).status_code == 404
        assert caller.infer(2).status_code == 200
    found = wait(platform, served, lambda one: one["usage"]["rows"] >= 5, 10)
    assert found["usage"]["requests"] == 3, "reads of metadata are no calls"
    assert found["usage"]["failures"] == 0
    (replica,) = found["instances"]
    assert (replica["state"], len(replica["tiles"])) == ("ready", 1)


def test_the_playground_calls_an_endpoint_from_a_form(platform: PlatformUnderTest, served: str) -> None:
    path = f"/console/endpoints/{served}/playground"
    token = (platform.home / "token").read_text().strip()
    with httpx.Client(base_url=str(platform.running["url"]), timeout=60.0, trust_env=False) as browser:
        assert browser.post("/console/login", data={"token": token}).status_code == 303
        shown_form = browser.get(path)
        assert "[[0, 0, 0" in shown_form.text, "a row of the model's size to begin with"
        assert "?form=" not in shown_form.text and "[[0, 0, 0" in browser.get(f"{path}?form=chat").text, (
            "it has no chat"
        )
        answer = browser.post(path, data={"form": "rows", "rows": json.dumps([[0.5] * 784])})
        assert "largest:" in answer.text
        assert "expected 784" in browser.post(path, data={"form": "rows", "rows": "[[1]]"}).text
        assert "generates no text" in browser.post(path, data={"form": "chat", "prompt": "Hello"}).text
        foreign = browser.post(path, data={"form": "rows"}, headers={"origin": "http://elsewhere"})
        assert foreign.status_code == 403


def test_a_replica_whose_box_is_killed_is_replaced_and_callers_wait_for_it(
    platform: PlatformUnderTest, served: str
) -> None:
    (before,) = [one for one in shown(platform, served)["instances"] if one["state"] == "ready"]
    os.kill(box_pid(platform, before["id"]), signal.SIGKILL)

    def is_replaced(endpoint: dict[str, Any]) -> bool:
        # Until the worker has seen it, the box that was killed still counts as ready.
        return is_ready(endpoint) and not any(
            one["id"] == before["id"] and one["state"] == "ready" for one in endpoint["instances"]
        )

    with Caller(platform, served) as caller:
        assert caller.infer().status_code == 200
        found = wait(platform, served, is_replaced)
        assert caller.infer().status_code == 200
    states = {one["id"]: (one["state"], one["reason"]) for one in found["instances"]}
    assert states[before["id"]] == ("ended", "box-lost")


@pytest.mark.long
def test_a_new_revision_takes_over_under_requests_and_rolls_back(
    platform: PlatformUnderTest, served: str, expert: str
) -> None:
    stop, failures, answers = threading.Event(), list[str](), list[int]()

    def call() -> None:
        with Caller(platform, served) as caller:
            while not stop.is_set():
                answer = caller.infer()
                answers.append(answer.status_code)
                if answer.status_code != 200:
                    failures.append(answer.text)

    callers = [threading.Thread(target=call) for _ in range(2)]
    for thread in callers:
        thread.start()
    try:
        changed = platform.client.post("/v1/endpoints/read/update", {"expert": expert, "replicas": 2})
        assert (changed["revision"], changed["state"]) == (2, "updating")
        found = wait(platform, served, is_ready)
        assert {one["revision"] for one in found["instances"] if one["state"] == "ready"} == {2}
        back = platform.client.post("/v1/endpoints/read/rollback", {})
        assert back["revision"] == 1
        found = wait(platform, served, is_ready)
        assert {one["revision"] for one in found["instances"] if one["state"] == "ready"} == {1}
        drained = [one for one in found["instances"] if one["reason"] == "drained"]
        wait(platform, served, lambda one: all(each["state"] in {"ready", "ended"} for each in one["instances"]))
        assert drained
    finally:
        stop.set()
        for thread in callers:
            thread.join()
    assert failures == []
    assert len(answers) > 20


@pytest.mark.long
def test_a_worker_has_no_more_replicas_than_it_may(platform: PlatformUnderTest, served: str) -> None:
    platform.client.post("/v1/endpoints/read/update", {"replicas": 5})
    found = wait(platform, served, lambda one: bool(one["ready"] == 4))
    time.sleep(1.0)
    found = shown(platform, served)
    live = [one["state"] for one in found["instances"] if one["state"] != "ended"]
    assert sorted(live) == ["ready"] * 4 + ["starting"]
    assert found["state"] == "updating"


@pytest.mark.long
def test_replicas_of_a_killed_worker_are_replaced(platform: PlatformUnderTest, served: str) -> None:
    platform.client.post("/v1/endpoints/read/update", {"replicas": 1})
    (before,) = [one for one in wait(platform, served, is_ready)["instances"] if one["state"] == "ready"]
    platform.kill("worker")

    def is_replaced(endpoint: dict[str, Any]) -> bool:
        ends = {one["id"]: one["reason"] for one in endpoint["instances"]}
        return ends[before["id"]] == "lost" and is_ready(endpoint)

    wait(platform, served, is_replaced)
    with Caller(platform, served) as caller:
        assert caller.infer().status_code == 200


@pytest.mark.long
def test_a_canary_gets_its_part_of_the_calls_until_it_is_promoted_or_rolled_back(
    platform: PlatformUnderTest, served: str, expert: str
) -> None:
    before = wait(platform, served, is_ready)
    with pytest.raises(Conflict, match="no canary"):
        platform.client.post("/v1/endpoints/read/promote", {})
    with pytest.raises(Conflict, match="for the canary"):
        platform.client.post("/v1/endpoints/read/update", {"canary": 10})
    changed = platform.client.post("/v1/endpoints/read/update", {"expert": expert, "canary": 50})
    canary = changed["canary"]["revision"]
    assert (changed["revision"], changed["canary"]["percent"]) == (before["revision"], 50)
    platform.client.post("/v1/endpoints/read/update", {"canary": 10})
    wait(platform, served, is_ready)

    def requests(found: dict[str, Any]) -> dict[int, int]:
        return {one["number"]: one["usage"]["requests"] for one in found["revisions"]}

    old = requests(before)[before["revision"]]
    with Caller(platform, served) as caller:
        assert {caller.infer().status_code for _ in range(100)} == {200}
        wait(platform, served, lambda one: requests(one)[before["revision"]] >= old + 90)
        assert requests(wait(platform, served, lambda one: requests(one)[canary] >= 10))[canary] == 10
        platform.client.post("/v1/endpoints/read/rollback", {})
        found = wait(platform, served, is_ready)
        assert (found["revision"], found["canary"]) == (before["revision"], None)
        changed = platform.client.post("/v1/endpoints/read/update", {"expert": expert, "canary": 5})
        promoted = platform.client.post("/v1/endpoints/read/promote", {})
        assert (promoted["revision"], promoted["canary"]) == (changed["canary"]["revision"], None)
        wait(platform, served, is_ready)
        assert caller.infer().status_code == 200


@pytest.mark.long
def test_an_idle_endpoint_gives_back_its_tiles_and_the_next_call_is_answered(
    platform: PlatformUnderTest, served: str
) -> None:
    with pytest.raises(IllegalValue, match="5 to"):
        platform.client.post("/v1/endpoints/read/update", {"idle_s": 2})
    platform.client.post("/v1/endpoints/read/update", {"idle_s": 5})
    found = wait(platform, served, lambda one: bool(one["state"] == "idle"))
    assert (found["replicas"], found["ready"]) == (1, 0)
    with Caller(platform, served) as caller:
        assert caller.infer().status_code == 200
    assert platform.client.post("/v1/endpoints/read/update", {"idle_s": 0})["idle_s"] is None
    wait(platform, served, is_ready)


def test_what_is_wrong_is_refused_and_another_tenant_sees_nothing(
    platform: PlatformUnderTest, served: str, expert: str
) -> None:
    with pytest.raises(Conflict, match="already"):
        platform.client.post("/v1/endpoints", {"name": "read", "expert": expert})
    with pytest.raises(InvalidArgument, match="name exactly one"):
        platform.client.post("/v1/endpoints", {"name": "other"})
    with pytest.raises(NotFound, match="unknown expert"):
        platform.client.post("/v1/endpoints", {"name": "other", "expert": "nobody"})
    wanted = shown(platform, served)["revision"]
    with pytest.raises(Conflict, match="already runs revision"):
        platform.client.post("/v1/endpoints/read/rollback", {"revision": wanted})
    with pytest.raises(NotFound, match="no revision 9"):
        platform.client.post("/v1/endpoints/read/rollback", {"revision": 9})
    tenant = platform.client.post("/v1/tenants", {"name": "lab"})
    token = platform.client.post(f"/v1/tenants/{tenant['id']}/tokens", {"scopes": ["read", "write"]})["token"]
    url = f"{platform.running['url']}/v1/endpoints"
    with httpx.Client(headers={"Authorization": f"Bearer {token}"}, trust_env=False) as stranger:
        assert stranger.get(url).json()["endpoints"] == []
        for answer in (
            stranger.get(f"{url}/read"), stranger.delete(f"{url}/read"),
            stranger.post(f"{url}/read/v2/models/read/infer", json=rows_body()),
        ):  # fmt: skip
            assert answer.status_code == 404, answer.text


@pytest.mark.long
def test_without_replicas_calls_are_refused_and_a_deleted_endpoint_gives_back_its_tiles(
    platform: PlatformUnderTest, served: str
) -> None:
    platform.client.post("/v1/endpoints/read/update", {"replicas": 0})
    wait(platform, served, lambda one: bool(one["state"] == "stopped"))
    with Caller(platform, served) as caller:
        refused = caller.infer()
    assert (refused.status_code, "has no replicas" in refused.text) == (503, True)
    platform.client.post("/v1/endpoints/read/update", {"replicas": 1})
    wait(platform, served, is_ready)
    platform.client.delete("/v1/endpoints/read")
    with pytest.raises(NotFound):
        shown(platform, served)
    deadline = time.monotonic() + 60
    while platform.client.get("/v1/nodes")["nodes"][0]["leases"] or list((platform.home / "work").glob("rep-*/in")):
        assert time.monotonic() < deadline, "its tiles are free, and no replica's folder is left"
        time.sleep(0.1)
