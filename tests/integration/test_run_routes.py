"""Runs taken up again over REST, by the command line and in the console: clone, compare, metrics."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.platform.gateway import Example, GatewayUnderTest, gateway_under_test
from support.platform.processes import short_folder

RDUKIT = Path(sys.executable).with_name("rdukit")


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


def call(*words: str, status: int = 0) -> str:
    """Run ``rdukit`` and return what it prints."""
    done = subprocess.run([RDUKIT, *words], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == status, done.stderr
    return done.stdout if status == 0 else done.stderr


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


def test_a_step_whose_input_is_not_made_yet_is_cloned_with_another(
    gateway: GatewayUnderTest, token: str, example: Example
) -> None:
    said = gateway.refused("POST", f"/v1/jobs/{example.waiting_pipeline()}/clone", token, json={})
    assert (said[0], "input 'pef'" in said[1], "@compile.pef" in said[1]) == (409, True, True)


def test_the_command_clones_and_the_jobs_page_says_it(gateway: GatewayUnderTest, token: str, example: Example) -> None:
    compiled, _ = example.run_pipeline()
    made = json.loads(call("job", "clone", compiled, "--set", "batch_size=16", "--json"))
    assert made["parameters"] == {"batch_size": 16}
    again = call("job", "clone", made["id"], "--default", "batch_size").strip()
    assert gateway.ask("GET", f"/v1/jobs/{again}", token).json()["parameters"] == {}
    assert "there is no job" in call("job", "clone", "job-none", status=3)
