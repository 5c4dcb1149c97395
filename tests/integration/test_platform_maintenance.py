"""Cordon, drain and release on a platform: its jobs go back to the queue and go on from their checkpoints."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from rdukit.errors import NotFound
from support import shows
from support.forked import run_rdukit_forked
from support.platform.processes import PlatformUnderTest, build_digits, platform_under_test, short_folder

pytestmark = [shows("node", "nodes", "scheduler", "job", "status", "console", "audit"), pytest.mark.long]

FAST = {"RDUKIT_WORKER_LEASE_S": "8", "RDUKIT_JOB_BACKOFF_S": "0.1", "RDUKIT_KERNELS": "portable"}


@pytest.fixture(scope="module")
def platform() -> Iterator[PlatformUnderTest]:
    with short_folder() as home, platform_under_test(home, None, FAST) as running:
        yield running


@pytest.fixture(scope="module")
def built(platform: PlatformUnderTest) -> dict[str, str]:
    return build_digits(platform)


def in_mid_train(job: dict[str, Any], attempt: int = 1) -> bool:
    progress = job["progress"] or {}
    return job["state"] == "running" and job["attempt"] == attempt and progress.get("step", 0) > 150


def rdukit(platform: PlatformUnderTest, *words: str) -> str:
    environment = {"RDUKIT_HOME": str(platform.home), "PATH": "/usr/bin:/bin", "COLUMNS": "200"}
    done = run_rdukit_forked(words, environment)
    done.check_returncode()
    return done.stdout


def train(platform: PlatformUnderTest, built: dict[str, str]) -> str:
    parameters = {"epochs": 10, "checkpoint_every": 50}
    job: str = platform.submit("train", box="logreg", inputs=built, parameters=parameters, tiles=2, max_attempts=1)[
        "id"
    ]
    platform.wait_job(job, in_mid_train)
    return job


@pytest.mark.long
def test_a_drain_puts_a_job_back_and_it_goes_on_from_its_checkpoint(
    platform: PlatformUnderTest, built: dict[str, str]
) -> None:
    job = train(platform, built)
    said = rdukit(platform, "node", "drain", "--deadline", "0", "--reason", "new DIMM")
    assert "/NODE is drained" in said
    found = platform.wait_job(job, lambda found: "cordoned" in str(found["waits_for"]))
    assert found["attempts"][0]["outcome"] == "withdrawn", found["attempts"]
    (shown,) = platform.client.get("/v1/nodes")["nodes"]
    assert {tile["cordon"] for tile in shown["tiles"]} == {"drained"}
    assert "64 cordoned" in rdukit(platform, "status")
    assert "/NODE is allocated again" in rdukit(platform, "node", "uncordon")
    done = platform.wait_end(job, 120)
    assert (done["state"], len(done["attempts"])) == ("succeeded", 2), done
    assert done["result"]["resumed_from_step"] > 0
    audited = [(e["action"], e["detail"]) for e in platform.client.get("/v1/audit")["entries"]]
    assert ("node.drain", "deadline_s=0.0 reason=new DIMM") in audited and ("node.uncordon", "") in audited


def test_a_lease_that_an_administrator_releases_is_that_of_a_job_that_is_queued_again(
    platform: PlatformUnderTest, built: dict[str, str]
) -> None:
    job = train(platform, built)
    (shown,) = platform.client.get("/v1/nodes")["nodes"]
    lease = next(lease["id"] for lease in shown["leases"] if lease["job"] == job)
    assert f"job {job} ended" in rdukit(platform, "node", "release", lease, "--reason", "stuck")
    done = platform.wait_end(job, 120)
    assert (done["state"], [a["outcome"] for a in done["attempts"]]) == ("succeeded", ["withdrawn", "succeeded"])


def test_maintenance_is_planned_and_cancelled_and_jobs_that_would_outlast_its_start_wait(
    platform: PlatformUnderTest, built: dict[str, str]
) -> None:
    said = rdukit(platform, "node", "maintain", "--start", "2099-12-01T06:00", "--reason", "power works")
    assert "2099-12-01T06:00:00Z until a command ends it" in said
    (window,) = platform.client.get("/v1/nodes")["nodes"][0]["windows"]
    body = {"box": "logreg", "inputs": built, "parameters": {"max_steps": 1}, "tiles": 2}
    endless, limited = platform.submit("train", **body)["id"], platform.submit("train", **body, run_limit_s=600)["id"]
    assert platform.wait_end(limited)["state"] == "succeeded"
    kept = platform.wait_job(endless, lambda found: found["wait_code"] == "ReqNodeNotAvail")
    assert kept["waits_for"].startswith("Reserved for maintenance, which begins in ")
    assert "it has no run limit" in rdukit(platform, "job", "why", endless)
    rdukit(platform, "node", "end-maintenance", window["window"])
    assert platform.wait_end(endless)["state"] == "succeeded"
    assert platform.client.get("/v1/nodes")["nodes"][0]["windows"] == []
    with pytest.raises(NotFound, match="there is no node 'other'"):
        platform.client.post("/v1/nodes/other/cordon", {})


def test_the_consoles_form_cordons_and_other_sites_cannot_send_it(platform: PlatformUnderTest) -> None:
    url = platform.running["url"]
    with httpx.Client(base_url=url, follow_redirects=True, trust_env=False) as browser:
        token = Path(platform.running["token_file"]).read_text().strip()
        browser.post("/console/login", data={"token": token}, headers={"Origin": url})
        form = {"act": "cordon", "component": "/NODE/XRDU_0/RDU_0", "reason": "<b>loud"}
        path = "/console/nodes/maintenance"
        assert browser.post(path, data=form, headers={"Origin": "https://evil.example"}).status_code == 403
        assert 'name="act" value="drain"' in browser.get("/console/nodes").text
        page = browser.post(path, data=form, headers={"Origin": url}).text
        assert 'value="/NODE/XRDU_0/RDU_0"><button type="submit">Uncordon<' in page
        assert "8 cordoned" in page and "&lt;b&gt;loud" in page and 'class="tile free held"' in page
        assert browser.post(path, data={**form, "act": "explode"}, headers={"Origin": url}).status_code == 400
        browser.post(path, data={"act": "uncordon"}, headers={"Origin": url})
        planned = {"act": "plan", "reason": "power", "starts": "2090-01-01T06:00", "ends": "2090-01-01T08:00"}
        page = browser.post(path, data=planned, headers={"Origin": url}).text
        assert "from 2090-01-01 06:00:00" in page and "until 2090-01-01 08:00:00" in page
        (window,) = re.findall(r'name="window" value="(mw-[0-9a-f]+)"', page)
        assert window not in browser.post(path, data={"act": "end", "window": window}, headers={"Origin": url}).text
        for wrong in (
            {"reason": ""},
            {"starts": "soon"},
            {"deadline": "-1"},
            {"starts": "9999-01-01T00:00"},
            {"reason": "a\nb"},
        ):
            assert browser.post(path, data={**planned, **wrong}, headers={"Origin": url}).status_code == 400
