"""Jobs through the whole platform: real gateway, broker, scheduler, worker, node daemon; a box program of our own."""

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import pytest

from rdukit.errors import (
    Conflict,
    IllegalValue,
    InvalidArgument,
    InvalidTransition,
    NotFound,
    PermissionDenied,
    Unauthenticated,
    UnknownParameter,
)
from rdukit_platform.client.http import ApiClient
from rdukit_platform.jobs.broker import TASK, make_app
from rdukit_platform.settings import Home
from support import shows
from support.helpers import wait_until
from support.platform.processes import PlatformUnderTest, platform_under_test, short_folder

pytestmark = shows("jobs", "scheduler", "pipelines", "artifacts", "nodes", "tenants", "errors")

BOX = Path(__file__).parent / "platform_box.py"


@pytest.fixture(scope="module")
def platform() -> Iterator[PlatformUnderTest]:
    settings = {"RDUKIT_JOB_BACKOFF_S": "0.1", "RDUKIT_SCHEDULER_PREEMPT_MIN_RUN_S": "0.1"}
    with short_folder() as home, platform_under_test(home, BOX, settings) as running:
        yield running


@pytest.fixture(scope="module")
def dataset(platform: PlatformUnderTest) -> str:
    done = platform.wait_end(platform.submit("preprocess")["id"])
    assert done["state"] == "succeeded", done
    artifact: str = done["outputs"]["dataset"]
    return artifact


def test_a_job_runs_to_its_artifact_and_every_step_is_told(platform: PlatformUnderTest, dataset: str) -> None:
    job = platform.submit("train", inputs={"dataset": dataset}, parameters={"steps": 12}, tiles=2)
    done = platform.wait_end(job["id"])
    assert (done["state"], done["reason"], len(done["attempts"])) == ("succeeded", "completed", 1)
    assert done["result"] == {"steps": 12, "resumed_from_step": 0}
    assert done["progress"]["step"] == 12
    assert platform.states(job["id"]) == ["submitted", "queued", "starting", "running", "succeeded"]
    assert len(done["attempts"][0]["tiles"]) == 2
    logs = "\n".join(platform.client.lines(f"/v1/jobs/{job['id']}/logs"))
    assert "counting from 0 to 12" in logs
    assert "lease -" not in logs
    content = BytesIO()
    platform.client.download(f"/v1/artifacts/{done['outputs']['checkpoint']}/content", content, path="latest.json")
    assert content.getvalue() == b'{"step": 12}'
    lineage = platform.client.get(f"/v1/artifacts/{done['outputs']['checkpoint']}/lineage")
    assert [(link["parent"], link["slot"]) for link in lineage["links"]] == [(dataset, "dataset")]


def test_tiles_are_free_again_after_a_job(platform: PlatformUnderTest, dataset: str) -> None:
    platform.wait_end(platform.submit("train", inputs={"dataset": dataset})["id"])
    (node,) = platform.client.get("/v1/nodes")["nodes"]
    assert node["state"] == "up"
    assert not [tile for tile in node["tiles"] if tile["lease"]]


def test_a_watcher_gets_every_event_once_and_the_stream_ends(platform: PlatformUnderTest, dataset: str) -> None:
    job = platform.submit("train", inputs={"dataset": dataset}, parameters={"steps": 20, "step_s": 0.05})
    events = list(platform.client.follow(job["id"]))
    numbers = [event["sequence"] for event in events]
    assert numbers == sorted(set(numbers))
    assert events[-1]["data"]["to"] == "succeeded"
    assert any(event["kind"] == "progress" for event in events)


def test_a_pipeline_feeds_its_steps(platform: PlatformUnderTest) -> None:
    steps = [
        {"name": "prepare", "box": "counter", "verb": "preprocess"},
        {"name": "learn", "box": "counter", "verb": "train", "inputs": {"dataset": "@prepare.dataset"}},
    ]
    pipeline = platform.client.submit("/v1/pipelines", {"name": "p", "steps": steps})
    done = [platform.wait_end(job["id"]) for job in pipeline["jobs"]]
    assert [job["state"] for job in done] == ["succeeded", "succeeded"]
    assert done[1]["inputs"] == {"dataset": done[0]["outputs"]["dataset"]}
    assert platform.client.get(f"/v1/pipelines/{pipeline['id']}")["state"] == "succeeded"


def test_a_failed_step_ends_what_waits_for_it(platform: PlatformUnderTest) -> None:
    steps = [
        {"name": "prepare", "box": "counter", "verb": "preprocess", "parameters": {"mood": "refuse"}},
        {"name": "learn", "box": "counter", "verb": "train", "inputs": {"dataset": "@prepare.dataset"}},
    ]
    pipeline = platform.client.submit("/v1/pipelines", {"name": "p", "steps": steps})
    done = [platform.wait_end(job["id"]) for job in pipeline["jobs"]]
    assert [(job["state"], job["reason"]) for job in done] == [
        ("failed", "box-failed"),
        ("cancelled", "upstream-ended"),
    ]
    assert done[0]["error"]["code"] == "pef-mismatch"
    assert done[0]["attempts"][0]["outcome"] == "box-failed"


def test_a_box_that_crashes_each_time_uses_up_its_attempts(platform: PlatformUnderTest, dataset: str) -> None:
    body = {"steps": 100, "step_s": 0, "mood": "crash"}
    job = platform.submit("train", inputs={"dataset": dataset}, parameters=body, max_attempts=2)
    done = platform.wait_end(job["id"])
    assert (done["state"], done["reason"]) == ("failed", "attempts-exhausted")
    assert [attempt["outcome"] for attempt in done["attempts"]] == ["box-lost", "box-lost"]
    assert "retrying" in platform.states(job["id"])


def test_a_box_that_is_killed_uses_up_no_attempt(platform: PlatformUnderTest, dataset: str) -> None:
    body = {"steps": 100, "step_s": 0, "mood": "killed"}
    job = platform.submit("train", inputs={"dataset": dataset}, parameters=body, max_attempts=1)
    done = platform.wait_end(job["id"])
    assert (done["state"], [attempt["outcome"] for attempt in done["attempts"]]) == (
        "succeeded", ["box-killed", "succeeded"],
    )  # fmt: skip


def test_a_running_job_is_cancelled_and_its_tiles_freed(platform: PlatformUnderTest, dataset: str) -> None:
    body = {"steps": 1000, "step_s": 0.1}
    job = platform.submit("train", inputs={"dataset": dataset}, parameters=body)
    platform.wait_job(job["id"], lambda found: found["state"] == "running" and bool(found["progress"]))
    cancelled = platform.client.post(f"/v1/jobs/{job['id']}/cancel")
    assert (cancelled["state"], cancelled["reason"]) == ("cancelled", "cancelled-by-user")
    again = platform.client.post(f"/v1/jobs/{job['id']}/cancel")
    assert again["version"] == cancelled["version"]
    folder = platform.home / "work" / job["id"]
    platform.wait_job(job["id"], lambda _: not folder.exists())

    def leases() -> list[str]:
        (node,) = platform.client.get("/v1/nodes")["nodes"]
        return [lease["job"] for lease in node["leases"]]

    wait_until(lambda: job["id"] not in leases())
    assert platform.states(job["id"])[-1] == "cancelled"


def test_a_paused_job_gives_its_tiles_back_and_goes_on_from_where_it_was(
    platform: PlatformUnderTest, dataset: str
) -> None:
    body = {"steps": 30, "step_s": 0.1}
    job = platform.submit("train", inputs={"dataset": dataset}, parameters=body)["id"]
    platform.wait_job(job, lambda found: found["state"] == "running" and bool(found["progress"]))
    platform.client.post(f"/v1/jobs/{job}/pause")
    paused = platform.wait_job(job, lambda found: found["state"] == "paused")
    assert [attempt["outcome"] for attempt in paused["attempts"]] == ["paused"]
    assert (paused["wait_code"], paused["reason"]) == ("JobHeldUser", None)
    (node,) = platform.client.get("/v1/nodes")["nodes"]
    assert not [lease for lease in node["leases"] if lease["job"] == job]
    platform.client.post(f"/v1/jobs/{job}/resume")
    done = platform.wait_end(job)
    assert (done["state"], [attempt["outcome"] for attempt in done["attempts"]]) == (
        "succeeded", ["paused", "succeeded"],
    )  # fmt: skip
    assert done["result"]["resumed_from_step"] > 0
    assert platform.states(job) == [
        "submitted", "queued", "starting", "running", "paused", "queued", "starting", "running", "succeeded",
    ]  # fmt: skip


def test_a_job_of_higher_priority_gets_the_tiles_of_a_training_that_goes_on_afterwards(
    platform: PlatformUnderTest, dataset: str
) -> None:
    (node,) = platform.client.get("/v1/nodes")["nodes"]
    wide, low = {"tiles": len(node["tiles"])}, {"steps": 30, "step_s": 0.1}
    victim = platform.submit("train", inputs={"dataset": dataset}, parameters=low, preemptible=True, **wide)["id"]
    platform.wait_job(victim, lambda found: found["state"] == "running" and bool(found["progress"]))
    urgent = platform.submit("train", inputs={"dataset": dataset}, parameters={"steps": 2}, priority=10, **wide)["id"]
    assert platform.wait_end(urgent)["state"] == "succeeded"
    done = platform.wait_end(victim)
    assert [attempt["outcome"] for attempt in done["attempts"]] == ["preempted", "succeeded"]
    assert (done["state"], done["preemptions"]) == ("succeeded", 1)
    assert done["result"]["resumed_from_step"] > 0


def test_a_job_that_misses_its_deadline_is_ended_and_says_what_to_do(platform: PlatformUnderTest, dataset: str) -> None:
    body = {"steps": 1000, "step_s": 0.1}
    job = platform.submit("train", inputs={"dataset": dataset}, parameters=body, deadline_s=3)
    done = platform.wait_end(job["id"])
    assert (done["state"], done["reason"], done["error"]["code"]) == ("failed", *("deadline-exceeded",) * 2)
    assert f"rdukit job clone {job['id']} --deadline" in done["advice"]
    assert [attempt["outcome"] for attempt in done["attempts"]] == ["deadline-exceeded"]
    folder = platform.home / "work" / job["id"]
    platform.wait_job(job["id"], lambda _: not folder.exists())


def test_a_job_that_exceeds_its_run_limit_is_ended_and_its_tiles_freed(
    platform: PlatformUnderTest, dataset: str
) -> None:
    body = {"steps": 1000, "step_s": 0.1}
    job = platform.submit("train", inputs={"dataset": dataset}, parameters=body, run_limit_s=3, labels={"k": "v"})
    done = platform.wait_end(job["id"])
    assert (done["state"], done["reason"]) == ("failed", "run-limit-exceeded")
    assert [attempt["outcome"] for attempt in done["attempts"]] == ["run-limit-exceeded"]
    assert 2.9 < done["attempts"][0]["ended_at"] - done["attempts"][0]["claimed_at"] < 30
    folder = platform.home / "work" / job["id"]

    def leases() -> list[Any]:
        (node,) = platform.client.get("/v1/nodes")["nodes"]
        return [lease for lease in node["leases"] if lease["job"] == job["id"]]

    platform.wait_job(job["id"], lambda _: not folder.exists() and not leases())  # the node is looked at now and then
    assert not leases()
    assert [one["id"] for one in platform.client.get("/v1/jobs", label=["k=v"])["jobs"]] == [job["id"]]


def test_a_job_that_waits_is_told_when_it_starts_at_the_latest(platform: PlatformUnderTest, dataset: str) -> None:
    body = {"steps": 1000, "step_s": 0.1}
    holder = platform.submit("train", inputs={"dataset": dataset}, parameters=body, tiles=1, run_limit_s=600)["id"]
    platform.wait_job(holder, lambda found: found["state"] == "running")
    job = platform.submit("train", inputs={"dataset": dataset}, tiles=64)
    late = platform.submit("train", inputs={"dataset": dataset}, parameters=body, tiles=1)
    waiting = platform.wait_job(job["id"], lambda found: bool(found["estimated_start"]))
    (attempt,) = platform.job(holder)["attempts"]
    assert waiting["wait_code"] == "Resources"
    assert waiting["estimated_start"] == pytest.approx(attempt["claimed_at"] + 600, abs=5)
    behind = platform.wait_job(late["id"], lambda found: bool(found["wait_code"]))
    assert behind["wait_code"] == "Priority"
    first = f"job {job['id']} has a reservation for 64 tiles, expected to start by "
    assert behind["waits_for"].startswith(first) and behind["waits_for"].endswith(", and this one has no run limit")
    for one in (holder, job["id"], late["id"]):
        platform.client.post(f"/v1/jobs/{one}/cancel")


def test_a_queued_job_is_cancelled_before_it_runs(platform: PlatformUnderTest, dataset: str) -> None:
    body = {"steps": 1000, "step_s": 0.1}
    holder = platform.submit("train", inputs={"dataset": dataset}, parameters=body, tiles=1)["id"]
    platform.wait_job(holder, lambda found: found["state"] == "running")
    job = platform.submit("train", inputs={"dataset": dataset}, tiles=64)
    # A job that was cancelled before may hold its tile for a moment more.
    platform.wait_job(job["id"], lambda found: found["waits_for"] == "it needs 64 tiles, 63 of 64 are free")
    assert platform.client.post(f"/v1/jobs/{job['id']}/cancel")["state"] == "cancelled"
    assert platform.job(job["id"])["attempts"] == []
    platform.client.post(f"/v1/jobs/{holder}/cancel")


def test_more_tiles_than_the_node_has_are_refused_at_once(platform: PlatformUnderTest, dataset: str) -> None:
    with pytest.raises(
        IllegalValue,
        match=r"tiles is 1000: it needs 1000 tiles, but the node has 64.*expected 1 to "
        r"64",
    ):
        platform.submit("train", inputs={"dataset": dataset}, tiles=1000)


def test_cancelling_an_ended_job_is_refused(platform: PlatformUnderTest, dataset: str) -> None:
    job = platform.wait_end(platform.submit("train", inputs={"dataset": dataset})["id"])
    with pytest.raises(InvalidTransition, match="has ended: succeeded"):
        platform.client.post(f"/v1/jobs/{job['id']}/cancel")


def test_the_same_key_gives_the_same_job(platform: PlatformUnderTest, dataset: str) -> None:
    body = {"inputs": {"dataset": dataset}, "idempotency_key": "only-once"}
    first, second = platform.submit("train", **body), platform.submit("train", **body)
    assert first["id"] == second["id"]
    with pytest.raises(Conflict, match="only-once"):
        platform.submit("train", **body, parameters={"steps": 6})


def test_a_message_that_comes_again_does_nothing(platform: PlatformUnderTest, dataset: str) -> None:
    job = platform.submit("train", inputs={"dataset": dataset}, parameters={"steps": 5})
    done = platform.wait_end(job["id"])
    app = make_app(Home(platform.home).broker_url())
    for _ in range(3):
        app.send_task(TASK, args=[job["id"], "try-unknown", "token"], queue="rdukit.attempts")
    app.close()
    other = platform.wait_end(platform.submit("train", inputs={"dataset": dataset})["id"])
    assert other["state"] == "succeeded"
    assert platform.job(job["id"]) == done


def test_bad_requests_say_what_is_legal(platform: PlatformUnderTest, dataset: str) -> None:
    good = {"inputs": {"dataset": dataset}}
    with pytest.raises(IllegalValue, match="1 <= x <= 1000"):
        platform.submit("train", **good, parameters={"steps": 0})
    with pytest.raises(UnknownParameter, match="step_s"):
        platform.submit("train", **good, parameters={"stepz": 1})
    with pytest.raises(InvalidArgument, match="expected preprocess, train"):
        platform.submit("infer", **good)
    with pytest.raises(NotFound, match="counter"):
        platform.submit("train", box="nothing", **good)
    with pytest.raises(InvalidArgument, match="dataset"):
        platform.submit("train")
    with pytest.raises(NotFound, match="art-none"):
        platform.submit("train", inputs={"dataset": "art-none"})
    with pytest.raises(InvalidArgument, match="expected"):
        platform.client.get("/v1/jobs", state="asleep")
    with pytest.raises(NotFound, match="job-none"):
        platform.job("job-none")
    steps = [{"name": "a", "box": "counter", "verb": "train", "inputs": {"dataset": "@nowhere.dataset"}}]
    with pytest.raises(InvalidArgument, match="'nowhere'"):
        platform.client.submit("/v1/pipelines", {"name": "p", "steps": steps})


def test_every_error_has_the_one_body_and_a_request_id(platform: PlatformUnderTest) -> None:
    url = platform.running["url"]
    for path, status in (("/v1/jobs", 401), ("/v1/nothing", 404), ("/v1/jobs/x/cancel", 405)):
        answer = httpx.get(url + path, headers={"X-Request-Id": "mine-1"}, trust_env=False)
        assert answer.status_code == status
        assert answer.json()["error"]["request_id"] == answer.headers["x-request-id"] == "mine-1"
        assert set(answer.json()["error"]) == {"code", "message", "detail", "request_id"}
    token = (platform.home / "token").read_text().strip()
    metrics = httpx.get(f"{url}/metrics", headers={"Authorization": f"Bearer {token}"}, trust_env=False).text
    assert 'rdukit_jobs{state="succeeded"}' in metrics
    assert "rdukit_gateway_requests_total" in metrics


def test_a_wrong_token_is_refused(platform: PlatformUnderTest) -> None:
    with ApiClient(platform.running["url"], "rdk_wrong") as stranger, pytest.raises(Unauthenticated, match="not valid"):
        stranger.get("/v1/me")


def test_the_first_token_is_for_its_owner_only(platform: PlatformUnderTest) -> None:
    assert (platform.home / "token").stat().st_mode & 0o777 == 0o600


def test_another_tenant_sees_nothing_of_this_one(platform: PlatformUnderTest, dataset: str) -> None:
    tenant = platform.client.post("/v1/tenants", {"name": "lab"})
    token = platform.client.post(f"/v1/tenants/{tenant['id']}/tokens", {"scopes": ["read"]})["token"]
    job = platform.submit("train", inputs={"dataset": dataset})
    with ApiClient(platform.running["url"], token) as other:
        assert other.get("/v1/jobs")["jobs"] == []
        for path in (f"/v1/jobs/{job['id']}", f"/v1/jobs/{job['id']}/events", f"/v1/artifacts/{dataset}"):
            with pytest.raises(NotFound):
                other.get(path)
        with pytest.raises(PermissionDenied, match="write"):
            other.submit("/v1/jobs", {"box": "counter", "verb": "preprocess"})
        with pytest.raises(PermissionDenied, match="admin"):
            other.get("/v1/tenants")


def test_an_uploaded_folder_is_an_input(platform: PlatformUnderTest) -> None:
    files = [("a.txt", BytesIO(b"1")), ("deep/b.txt", BytesIO(b"22"))]
    added = platform.client.upload(files, {"kind": "data", "folder": "true", "name": "mine"})
    assert added["bytes"] == 3
    shown = platform.client.get(f"/v1/artifacts/{added['id']}")
    assert [file["path"] for file in shown["files"]] == ["a.txt", "deep/b.txt"]
    done = platform.wait_end(platform.submit("preprocess", inputs={"data": added["id"]})["id"])
    assert done["state"] == "succeeded"
    with pytest.raises(InvalidArgument, match="leaves its folder"):
        platform.client.upload([("../escape", BytesIO(b"1"))], {"kind": "data", "folder": "true"})


def test_pages_hold_every_job_once(platform: PlatformUnderTest, dataset: str) -> None:
    for _ in range(3):
        platform.submit("train", inputs={"dataset": dataset})
    everything = [job["id"] for job in platform.client.get("/v1/jobs", limit=200)["jobs"]]
    found: list[str] = []
    cursor = None
    while True:
        page = platform.client.get("/v1/jobs", limit=4, cursor=cursor)
        found += [job["id"] for job in page["jobs"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert found == everything
