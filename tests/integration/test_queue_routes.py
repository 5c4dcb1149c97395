"""How jobs are queued, over REST: choices of a job, labels to find it by, and the weights of tenants."""

from collections.abc import Iterator

import pytest

from support import shows
from support.platform.gateway import GatewayUnderTest, gateway_under_test
from support.platform.processes import short_folder

pytestmark = shows("jobs", "nodes", "tenants", "scheduler")


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[GatewayUnderTest]:
    with short_folder() as folder:
        monkeypatch.setenv("RDUKIT_HOME", str(folder))
        with gateway_under_test() as running:
            yield running


def test_jobs_are_submitted_with_choices_and_listed_by_labels(gateway: GatewayUnderTest) -> None:
    own, other = gateway.token("lab", "read", "write"), gateway.token("other", "read", "write")
    box = gateway.ask("GET", "/v1/catalog", own).json()["boxes"][0]["name"]
    choices = {"priority": 3, "run_limit_s": 90, "labels": {"project": "genes", "team/lead": "b=c"}}
    choices["constraint"] = {"zone": "a"}
    body = {"box": box, "verb": "compile", **choices}
    made = gateway.ask("POST", "/v1/jobs", own, json=body)
    assert made.status_code == 201, made.text
    assert {name: made.json()[name] for name in choices} == choices
    assert (made.json()["wait_code"], made.json()["estimated_start"]) == (None, None)
    gateway.ask("POST", "/v1/jobs", own, json={"box": box, "verb": "compile"}).raise_for_status()

    def listed(token: str, query: str) -> list[str]:
        return [job["id"] for job in gateway.ask("GET", f"/v1/jobs?{query}", token).json()["jobs"]]

    assert listed(own, "label=project=genes&label=team/lead=b=c") == [made.json()["id"]]
    assert listed(own, "label=project=genes&label=team/lead=x") == []
    assert len(listed(own, "")) == 2
    assert listed(other, "label=project=genes") == []
    assert gateway.refused("GET", "/v1/jobs?label=project", own)[0] == 400
    for wrong in ({"priority": 101}, {"run_limit_s": 0}, {"labels": {"A": "b"}}, {"constraint": {"zone": "b c"}}):
        assert gateway.ask("POST", "/v1/jobs", own, json={**body, **wrong}).status_code in {400, 422}


def test_administrators_alone_give_nodes_labels(gateway: GatewayUnderTest) -> None:
    lab = gateway.token("lab", "read", "write", "tokens")
    assert gateway.refused("POST", "/v1/nodes/one/labels", lab, json={"set": {"zone": "a"}})[0] == 403
    assert gateway.refused("POST", "/v1/nodes/one/labels", gateway.admin, json={"set": {"zone": "a"}})[0] == 404
    assert gateway.ask("POST", "/v1/nodes/one/labels", gateway.admin, json={"set": {"zone": "a b"}}).status_code == 400


def test_administrators_weigh_tenants(gateway: GatewayUnderTest) -> None:
    lab = gateway.token("lab", "read", "write", "tokens")
    changed = gateway.ask("PATCH", "/v1/tenants/lab", gateway.admin, json={"weight": 2.5})
    assert (changed.status_code, changed.json()["weight"]) == (200, 2.5)
    made = gateway.ask("POST", "/v1/tenants", gateway.admin, json={"name": "new", "weight": 0.5})
    weights = {t["name"]: t["weight"] for t in gateway.ask("GET", "/v1/tenants", gateway.admin).json()["tenants"]}
    assert (made.status_code, weights["lab"], weights["new"], weights["default"]) == (201, 2.5, 0.5, 1.0)
    (entry,) = gateway.entries(gateway.admin, "?action=tenant.change")
    assert entry["target"] == changed.json()["id"]
    assert gateway.refused("PATCH", "/v1/tenants/lab", lab, json={"weight": 100})[0] == 403
    assert gateway.refused("PATCH", "/v1/tenants/nobody", gateway.admin, json={"weight": 1})[0] == 404
    for wrong in (0, -1, 1001, "2", None):
        assert gateway.ask("PATCH", "/v1/tenants/lab", gateway.admin, json={"weight": wrong}).status_code in {400, 422}


def test_administrators_give_tenants_quotas_and_limits(gateway: GatewayUnderTest) -> None:
    body = {"quota": 8, "max_tiles": 16, "max_jobs": 3}
    made = gateway.ask("POST", "/v1/tenants", gateway.admin, json={"name": "school", **body})
    assert (made.status_code, {key: made.json()[key] for key in body}) == (201, body)
    changed = gateway.ask("PATCH", "/v1/tenants/school", gateway.admin, json={"quota": None, "max_tiles": 4})
    assert {key: changed.json()[key] for key in body} == {"quota": None, "max_tiles": 4, "max_jobs": 3}
    too_many = gateway.refused("PATCH", "/v1/tenants/school", gateway.admin, json={"quota": 5})
    assert too_many[0] == 400 and "expected 0 to 4" in too_many[1]
    school = gateway.token("school", "read", "write")
    assert gateway.refused("PATCH", "/v1/tenants/school", school, json={"quota": 4})[0] == 403
    assert gateway.ask("GET", "/v1/tenants/school", school).json()["max_tiles"] == 4
