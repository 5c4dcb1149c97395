"""Experts over REST and by the command line: promote, find, show, compare, deprecate, and who may."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from support import shows
from support.forked import run_rdukit_forked
from support.platform.gateway import Example, GatewayUnderTest, gateway_under_test
from support.platform.processes import short_folder

pytestmark = shows("expert", "experts", "endpoints", "audit", "permissions")


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[GatewayUnderTest]:
    with short_folder() as folder:
        monkeypatch.setenv("RDUKIT_HOME", str(folder))
        with gateway_under_test() as running:
            monkeypatch.setenv("RDUKIT_GATEWAY_URL", running.url)
            yield running


@pytest.fixture
def token(gateway: GatewayUnderTest) -> str:
    return gateway.token("lab", "read", "write")


@pytest.fixture
def example(gateway: GatewayUnderTest, token: str) -> Example:
    tenant = gateway.ask("GET", "/v1/me", token).json()["tenant"]["id"]
    return Example(gateway.platform.database, gateway.platform.store, tenant, time.time())


def promote(gateway: GatewayUnderTest, token: str, job: str, **body: object) -> dict[str, Any]:
    answer = gateway.ask("POST", "/v1/experts", token, json={"job": job, "name": "digits", **body})
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def test_a_training_becomes_an_expert_that_says_where_it_is_from(
    gateway: GatewayUnderTest, token: str, example: Example
) -> None:
    compiled, trained = example.run_pipeline()
    job = gateway.ask("GET", f"/v1/jobs/{trained}", token).json()
    made = promote(gateway, token, trained, description="Reads handwritten digits.")
    assert (made["expert"], made["box"], made["job"], made["versions"]) == ("digits:1", "logreg", trained, [1])
    assert (made["checkpoint"], made["pef"]) == (job["outputs"]["checkpoint"], job["inputs"]["pef"])
    assert made["metrics"] == job["result"]
    assert made["licence"] == "Apache-2.0", "that of the box's card"
    assert gateway.ask("GET", "/v1/experts/digits", token).json() == made
    assert gateway.ask("GET", "/v1/experts/digits:1", token).json() == made
    found = gateway.ask("GET", "/v1/experts?search=HANDWRITTEN&box=logreg", token).json()
    assert [one["expert"] for one in found["experts"]] == ["digits:1"]
    assert gateway.ask("GET", "/v1/experts?search=words", token).json()["experts"] == []
    assert gateway.ask("GET", "/v1/experts?box=mlp", token).json()["experts"] == []
    said = gateway.refused("GET", "/v1/experts?box=logrge", token)
    assert (said[0], "unknown ModelBox 'logrge'" in said[1]) == (404, True), said
    refused = gateway.refused("POST", "/v1/experts", token, json={"job": compiled, "name": "digits"})
    assert (refused[0], "is a compile job; expected a successful train job" in refused[1]) == (400, True)
    assert gateway.refused("POST", "/v1/experts", token, json={"job": trained, "name": "digits"})[0] == 409
    waiting = {"job": example.add("later"), "name": "digits"}
    assert gateway.refused("POST", "/v1/experts", token, json=waiting)[0] == 409


@pytest.mark.parametrize(
    "body",
    [
        {}, {"job": "job-1"}, {"job": "job-1", "name": "A"}, {"job": "job-1", "name": "a:1"},
        {"job": "job-1", "name": "a/b"}, {"job": "job-1", "name": "-a"}, {"job": "job-1", "name": "a" * 64},
        {"job": "job-1", "name": "a", "licence": "x" * 201}, {"job": "job-1", "name": "a", "metrics": {}},
    ],
)  # fmt: skip
def test_a_body_that_is_not_legal_is_refused(gateway: GatewayUnderTest, token: str, body: dict[str, object]) -> None:
    assert gateway.refused("POST", "/v1/experts", token, json=body)[0] == 400


def test_who_may_only_read_boxes_promotes_and_deprecates_nothing(
    gateway: GatewayUnderTest, token: str, example: Example
) -> None:
    promote(gateway, token, example.run_pipeline()[1])
    reader = gateway.token("lab", "boxes:read")
    body: dict[str, object] = {"job": example.run_pipeline()[1], "name": "other"}
    assert gateway.refused("POST", "/v1/experts", reader, json=body)[0] == 403
    assert gateway.refused("POST", "/v1/experts/digits/deprecate", reader, json={"reason": "r"})[0] == 403
    assert gateway.refused("GET", "/v1/experts", gateway.token("lab", "jobs:read"))[0] == 403
    assert gateway.ask("GET", "/v1/experts/digits", reader).json()["deprecated_at"] is None


def test_a_deprecated_version_gives_way_and_is_kept_and_the_audit_log_says_who(
    gateway: GatewayUnderTest, token: str, example: Example
) -> None:
    for _ in range(2):
        promote(gateway, token, example.run_pipeline()[1])
    path = "/v1/experts/digits:2/deprecate"
    assert gateway.ask("POST", path, token, json={"reason": "bad data"}).json() == {"experts": ["digits:2"]}
    assert gateway.refused("POST", path, token, json={"reason": "again"}) == (
        409, "expert 'digits:2' is already deprecated: bad data",
    )  # fmt: skip
    assert gateway.refused("POST", "/v1/experts/digits:1/deprecate", token, json={})[0] == 400
    assert gateway.ask("GET", "/v1/experts/digits", token).json()["expert"] == "digits:1"
    old = gateway.ask("GET", "/v1/experts/digits:2", token).json()
    assert (old["deprecated_reason"], old["versions"]) == ("bad data", [1, 2])
    for query, count in (("", 1), ("?deprecated=true", 2)):
        assert len(gateway.ask("GET", f"/v1/experts{query}", token).json()["experts"]) == count
    first = gateway.ask("GET", "/v1/experts?deprecated=true&limit=1", token).json()
    rest = gateway.ask("GET", f"/v1/experts?deprecated=true&cursor={first['next_cursor']}", token).json()
    assert [one["expert"] for one in first["experts"] + rest["experts"]] == ["digits:2", "digits:1"]
    entries = gateway.entries(token)
    assert [(e["action"], e["target"], e["detail"]) for e in entries if e["action"] == "expert.deprecate"] == [
        ("expert.deprecate", "digits:2", "bad data")
    ]
    assert [e["target"] for e in entries if e["action"] == "expert.promote"] == ["digits:2", "digits:1"]


def rdukit(token: str, *arguments: str, status: int = 0) -> str:
    """Run a command as somebody. Returns what it said: of one that is refused the error."""
    done = run_rdukit_forked(["expert", *arguments, "--token", token])
    assert done.returncode == status, done.stderr
    return done.stderr if status else done.stdout


def test_a_name_that_no_expert_or_endpoint_has_is_answered_with_what_there_is(
    gateway: GatewayUnderTest, token: str, example: Example
) -> None:
    def told(path: str) -> str:
        return str(gateway.ask("GET", path, token).json()["error"]["message"])

    assert "unknown expert 'digit'; there are none yet; promote" in told("/v1/experts/digit")
    assert "unknown endpoint 'red'; there are none yet; create one" in told("/v1/endpoints/red")
    promote(gateway, token, example.run_pipeline()[1])
    example.serve("read", "digits:1")
    assert "unknown expert 'digit'; expected digits; promote" in told("/v1/experts/digit")
    assert told("/v1/experts/digit").endswith("--name NAME. Did you mean 'digits'?")
    assert told("/v1/endpoints/red").endswith("rdukit endpoint create. Did you mean 'read'?")


def test_the_commands_promote_find_compare_and_deprecate(
    gateway: GatewayUnderTest, token: str, example: Example
) -> None:
    jobs = [example.run_pipeline()[1] for _ in range(2)]
    said = rdukit(token, "promote", jobs[0], "--name", "digits", "--description", "Reads digits.", "--licence", "MIT")
    assert said.startswith(f"digits:1 is the checkpoint of {jobs[0]}")
    assert json.loads(rdukit(token, "promote", jobs[1], "--name", "digits", "--json"))["expert"] == "digits:2"
    table = rdukit(token, "list", "--search", "digits").splitlines()
    assert table[0].split()[:3] == ["EXPERT", "BOX", "METRICS"]
    assert [line.split()[0] for line in table[1:]] == ["digits:2", "digits:1"]
    assert [one["expert"] for one in json.loads(rdukit(token, "list", "--box", "logreg", "--json"))["experts"]] == [
        "digits:2", "digits:1",
    ]  # fmt: skip
    shown = rdukit(token, "show", "digits:1")
    for word in ("digits:1", "Reads digits.", "MIT", "logreg", jobs[0], "accuracy", "0.9145", "versions"):
        assert word in shown
    assert json.loads(rdukit(token, "show", "digits", "--json"))["version"] == 2
    compared = rdukit(token, "compare", "digits:1", "digits:2")
    assert compared.splitlines()[0].split() == ["digits:1", "digits:2", "CHANGE"]
    figures = json.loads(rdukit(token, "compare", "digits:1", "digits:2", "--json"))
    assert figures["metrics"]["loss"] == {"a": 0.31, "b": 0.31, "change": 0.0}
    assert [one["expert"] for one in figures["experts"]] == ["digits:1", "digits:2"]
    assert rdukit(token, "deprecate", "digits:1", "--reason", "old") == "deprecated digits:1\n"
    assert "deprecated" in rdukit(token, "show", "digits:1")
    assert "digits:1" not in rdukit(token, "list")
    assert "digits:1" in rdukit(token, "list", "--deprecated")
    assert "unknown expert 'letters'" in rdukit(token, "show", "letters", status=3)
