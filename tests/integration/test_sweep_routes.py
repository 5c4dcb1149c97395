"""Sweeps over REST and by the command line, next to a gateway; the trials are advanced as a scheduler does."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rdukit_platform.sweeps.advance import advance_sweeps
from support import shows
from support.platform.gateway import GatewayUnderTest, gateway_under_test
from support.platform.processes import run_rdukit, short_folder

pytestmark = shows("sweeps", "sweep")

BODY = {
    "name": "limits", "job": {"box": "logreg", "verb": "preprocess"}, "space": {"limit": {"values": [10, 20, 30]}},
    "objective": {"metric": "train_samples"},
}  # fmt: skip


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


def test_a_sweep_is_submitted_shown_listed_and_cancelled(gateway: GatewayUnderTest, token: str) -> None:
    answer = gateway.ask("POST", "/v1/sweeps", token, json=BODY)
    assert answer.status_code == 201, answer.text
    made = answer.json()
    assert (made["state"], made["algorithm"], made["max_trials"], made["trials"]) == ("running", "grid", 3, [])
    assert made["job"]["tiles"] == 0, "preprocess runs on the host"
    advance_sweeps(gateway.platform.database, 2.0)
    found = gateway.ask("GET", f"/v1/sweeps/{made['id']}", token).json()
    assert [trial["parameters"] for trial in found["trials"]] == [{"limit": 10}, {"limit": 20}]
    job = gateway.ask("GET", f"/v1/jobs/{found['trials'][0]['job']}", token).json()
    assert (job["labels"], job["name"]) == ({"sweep": made["id"]}, "limits #0")
    (listed,) = gateway.ask("GET", "/v1/sweeps", token).json()["sweeps"]
    assert (listed["counts"], listed["trials"]) == ({"queued": 2}, None)
    for _ in range(2):
        ended = gateway.ask("POST", f"/v1/sweeps/{made['id']}/cancel", token).json()
        assert (ended["state"], ended["counts"]) == ("cancelled", {"cancelled": 2})


@pytest.mark.parametrize(
    ("changes", "status", "said"),
    [
        ({"space": {"limit": {"values": [-1]}}}, 400, "'limit'"),
        ({"space": {"speed": {"values": [1]}}}, 400, "'speed'"),
        ({"space": {"limit": {"low": 1, "high": 9, "integer": True}}}, 400, "is a range"),
        ({"job": {"box": "none", "verb": "train"}}, 404, "none"),
        ({"objective": {}}, 400, "metric"),
        ({"trials": 3}, 400, "trials"),
    ],
)
def test_a_sweep_that_is_not_legal_is_refused(
    gateway: GatewayUnderTest, token: str, changes: dict[str, object], status: int, said: str
) -> None:
    code, message = gateway.refused("POST", "/v1/sweeps", token, json=BODY | changes)
    assert (code, said in message) == (status, True), message


def test_who_may_only_read_submits_and_cancels_none(gateway: GatewayUnderTest, token: str) -> None:
    sweep = gateway.ask("POST", "/v1/sweeps", token, json=BODY).json()["id"]
    reader = gateway.token("lab", "jobs:read")
    assert gateway.ask("GET", f"/v1/sweeps/{sweep}", reader).status_code == 200
    assert gateway.refused("POST", "/v1/sweeps", reader, json=BODY)[0] == 403
    assert gateway.refused("POST", f"/v1/sweeps/{sweep}/cancel", reader)[0] == 403
    assert gateway.refused("POST", "/v1/sweeps/sweep-none/cancel", token)[0] == 404


def test_whoever_stops_waiting_is_told_what_goes_on(gateway: GatewayUnderTest, token: str) -> None:
    rdukit = str(Path(sys.executable).with_name("rdukit"))
    words = [
        "sweep",
        "submit",
        "--box",
        "logreg",
        "--verb",
        "preprocess",
        "--grid",
        "limit=10,20",
        "--minimize",
        "train_samples",
    ]
    with subprocess.Popen(
        [rdukit, *words, "--wait", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as waiting:
        assert waiting.stderr is not None and waiting.stdout is not None
        sweep = waiting.stderr.readline().split()[2].rstrip(";")
        waiting.send_signal(signal.SIGINT)
        told, known = waiting.stderr.read(), json.loads(waiting.stdout.read())
    assert (waiting.returncode, known["id"], known["state"]) == (130, sweep, "running")
    assert f"rdukit sweep show {sweep}" in told and f"rdukit sweep cancel {sweep}" in told
    assert gateway.ask("GET", f"/v1/sweeps/{sweep}", token).json()["state"] == "running"


def test_the_commands_submit_list_show_and_cancel(gateway: GatewayUnderTest, token: str, tmp_path: Path) -> None:
    words = ["--box", "logreg", "--verb", "preprocess", "--grid", "limit=10,20", "--set", "bad_rows=skip"]
    sweep = run_rdukit("sweep", "submit", *words, "--maximize", "train_samples").strip()
    advance_sweeps(gateway.platform.database, 2.0)
    told = run_rdukit("sweep", "show", sweep)
    for word in ("maximize train_samples", "limit", "queued", "grid, 2 at once, seed 0"):
        assert word in told
    assert "logreg preprocess" in run_rdukit("sweep", "list")
    assert f"{sweep} is cancelled" in run_rdukit("sweep", "cancel", sweep)
    file = tmp_path / "sweep.yaml"
    file.write_text(json.dumps(BODY))
    found = json.loads(run_rdukit("sweep", "submit", str(file), "--name", "other", "--json"))
    assert (found["name"], found["max_trials"]) == ("other", 3)
    assert "cannot be combined with a FILE" in run_rdukit("sweep", "submit", str(file), "--seed", "1", status=2)
    assert "there is no sweep" in run_rdukit("sweep", "show", "sweep-none", status=3)
