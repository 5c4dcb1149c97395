"""Runs taken up again over REST, by the command line and in the console: clone, compare, metrics."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from rdukit.errors import NotFound
from rdukit_platform.console.access import COOKIE
from support import shows
from support.platform.gateway import Example, GatewayUnderTest, gateway_under_test
from support.platform.processes import run_rdukit, short_folder

pytestmark = shows("jobs", "job", "sweeps", "console")


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[GatewayUnderTest]:
    with short_folder() as folder:
        monkeypatch.setenv("RDUKIT_HOME", str(folder))
        with gateway_under_test() as running:
            monkeypatch.setenv("RDUKIT_GATEWAY_URL", running.url)
            yield running


@pytest.fixture
def token(gateway: GatewayUnderTest, monkeypatch: pytest.MonkeyPatch) -> str:
    made = gateway.token("lab", "read", "write")
    monkeypatch.setenv("RDUKIT_TOKEN", made)
    return made


@pytest.fixture
def example(gateway: GatewayUnderTest, token: str) -> Example:
    tenant = gateway.ask("GET", "/v1/me", token).json()["tenant"]["id"]
    return Example(gateway.platform.database, gateway.platform.store, tenant, time.time())


def test_a_job_is_cloned_with_changes(gateway: GatewayUnderTest, token: str, example: Example) -> None:
    compiled, _ = example.run_pipeline()
    path = f"/v1/jobs/{compiled}/clone"
    answer = gateway.ask("POST", path, token, json={"parameters": {"batch_size": 64}, "name": "wide"})
    assert answer.status_code == 201, answer.text
    made = answer.json()
    assert (made["box"], made["verb"], made["parameters"]) == ("logreg", "compile", {"batch_size": 64})
    assert (made["name"], made["pipeline"], made["state"], made["tiles"]) == ("wide", None, "queued", 0)
    said = gateway.refused("POST", path, token, json={"parameters": {"batch_size": 0}})
    assert (said[0], "parameter 'batch_size'" in said[1]) == (400, True)
    assert gateway.refused("POST", path, token, json={"verb": "train"})[0] == 400
    again = [gateway.ask("POST", path, token, json={"idempotency_key": "k"}).json()["id"] for _ in range(2)]
    assert again[0] == again[1] != compiled
    assert gateway.refused("POST", path, token, json={"idempotency_key": "k", "name": "other"})[0] == 409
    assert gateway.ask("POST", path, gateway.token("lab", "jobs:write"), json={}).status_code == 201
    assert gateway.ask("POST", path, token).json()["name"] == "compile", "as it is"


def test_a_step_whose_input_is_not_made_yet_is_cloned_with_another(
    gateway: GatewayUnderTest, token: str, example: Example
) -> None:
    said = gateway.refused("POST", f"/v1/jobs/{example.waiting_pipeline()}/clone", token, json={})
    assert (said[0], "input 'pef'" in said[1], "@compile.pef" in said[1]) == (409, True, True)


def test_the_command_clones_and_the_jobs_page_says_it(gateway: GatewayUnderTest, token: str, example: Example) -> None:
    compiled, _ = example.run_pipeline()
    made = json.loads(run_rdukit("job", "clone", compiled, "--set", "batch_size=16", "--json"))
    assert made["parameters"] == {"batch_size": 16}
    again = run_rdukit("job", "clone", made["id"], "--default", "batch_size").strip()
    assert gateway.ask("GET", f"/v1/jobs/{again}", token).json()["parameters"] == {}
    assert "there is no job" in run_rdukit("job", "clone", "job-none", status=3)
    mistyped = run_rdukit("job", "clone", made["id"], "--default", "batchsize", status=2)
    assert "has no parameter 'batchsize'" in mistyped
    assert "Did you mean 'batch_size'?" in mistyped
    queued = ("--priority", "7", "--label", "run=b", "--tiles", "2", "--max-attempts", "1")
    other = json.loads(run_rdukit("job", "clone", compiled, *queued, "--json"))
    assert [other[name] for name in ("priority", "labels", "tiles", "max_attempts")] == [7, {"run": "b"}, 2, 1]


def test_runs_are_compared_by_route_command_and_page(gateway: GatewayUnderTest, token: str, example: Example) -> None:
    compiled, trained = example.run_pipeline()
    running = example.start_training(steps=300)
    path = f"/v1/jobs/compare?ids={trained},{running}"
    found = gateway.ask("GET", path, token).json()
    assert found["jobs"] == [trained, running]
    parameters = {line["name"]: line["values"] for line in found["parameters"]}
    assert (parameters["learning_rate"], parameters["epochs"]) == ([None, 0.05], [3, 3]), "defaults are the box's"
    (loss,) = [line for line in found["metrics"] if line["name"] == "loss"]
    assert loss["last"][0] < loss["last"][1]
    assert gateway.ask("GET", f"/v1/jobs/compare?ids={trained}&ids={running}", token).json() == found
    assert gateway.refused("GET", f"/v1/jobs/compare?ids={trained}", token)[0] == 400
    assert gateway.refused("GET", "/v1/jobs/compare", token)[0] == 400
    assert gateway.refused("GET", f"/v1/jobs/compare?ids={trained},job-none", token)[0] == 404
    told = run_rdukit("job", "compare", trained, running)
    assert "parameter learning_rate" in told and "differs" in told
    assert json.loads(run_rdukit("job", "compare", trained, running, "--json")) == found
    page = console_page(gateway, token, f"/console/compare?ids={trained}&ids={running}")
    assert page.count('<path class="line') == 2
    for word in ("Parameters that differ", "learning_rate", "Training loss", f"rdukit job compare {trained} {running}"):
        assert word in page
    page = console_page(gateway, token, f"/console/compare?ids={trained}&ids={running}&metric=throughput")
    assert "<h2>Throughput</h2>" in page and 'metric=throughput" aria-current="true"' in page
    assert "Training loss" in console_page(gateway, token, f"/console/compare?ids={trained}&ids={running}&metric=none")
    assert console_page(gateway, token, f"/console/compare?ids={compiled}").count("checked") == 1


def test_all_metrics_of_a_run_come_out(gateway: GatewayUnderTest, token: str, example: Example, tmp_path: Path) -> None:
    running = example.start_training(steps=300)
    page = gateway.ask("GET", f"/v1/jobs/{running}/metrics?limit=20", token).json()
    rest = gateway.ask("GET", f"/v1/jobs/{running}/metrics?after={page['next_after']}", token).json()
    assert [point["values"]["step"] for point in page["points"] + rest["points"]] == list(range(10, 301, 10))
    assert rest["next_after"] is None
    lines = run_rdukit("job", "metrics", running, "--csv").splitlines()
    assert lines[0] == "at,attempt,stage,step,total,loss,throughput,eta_s"
    assert len(lines) == 31
    assert len(json.loads(run_rdukit("job", "metrics", running, "--json"))["points"]) == 30
    run_rdukit("job", "metrics", running, "--out", str(tmp_path / "loss.csv"))
    assert (tmp_path / "loss.csv").read_text().splitlines() == lines
    assert run_rdukit("job", "metrics", running).split()[:3] == ["AT", "ATTEMPT", "STAGE"]
    run_rdukit("job", "metrics", running, "--csv", "--json", status=2)
    assert "has no artifact metrics" in run_rdukit("job", "metrics", running, "--all", status=NotFound.exit_status)


def console_page(gateway: GatewayUnderTest, token: str, path: str) -> str:
    """Return a page of the console."""
    with httpx.Client(base_url=gateway.url) as browser:
        browser.cookies.set(COOKIE, httpx.post(f"{gateway.url}/console/login", data={"token": token}).cookies[COOKIE])
        answer = browser.get(path)
        assert answer.status_code == 200, answer.text
        return answer.text
