"""A tenant learns nothing of another: no name, id, number, content, nor that it has something."""

import io
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from rdukit.errors import ContentDamaged, error_from_body
from rdukit_platform.artifacts.stores.folder import FolderStore
from rdukit_platform.catalog.model import Boxes, Selector
from rdukit_platform.console.access import COOKIE
from rdukit_platform.endpoints.service import ServedParts, create_endpoint
from rdukit_platform.jobs.experts import promote_job
from rdukit_platform.nodes.view import OTHERS, NodeCapacity, nodes_for, services_for
from rdukit_platform.scheduler.decide import decide
from rdukit_platform.scheduler.model import NodeState, QueuedJob, QueueSnapshot
from support import shows
from support.platform.gateway import Example, GatewayUnderTest, gateway_under_test
from support.platform.processes import short_folder

pytestmark = shows("security", "jobs", "artifacts", "experts", "endpoints", "catalog", "sweeps", "nodes", "console")

SECRETS = ("secret", "victim", "lease-2", "4711", "/home/", "erin")


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[GatewayUnderTest]:
    with short_folder() as folder:
        monkeypatch.setenv("RDUKIT_HOME", str(folder))
        with gateway_under_test() as running:
            yield running


@pytest.fixture
def victim(gateway: GatewayUnderTest) -> dict[str, str]:
    """Ids of what another tenant has: jobs in each state, and ``token``, ``artifact``, ``tenant``, ``expert``."""
    token = gateway.token("victim", "read", "write")
    tenant = gateway.ask("GET", "/v1/me", token).json()["tenant"]["id"]
    platform = gateway.platform
    ids = Example(platform.database, platform.store, tenant, time.time()).fill()
    artifact = gateway.ask("GET", "/v1/artifacts", token).json()["artifacts"][0]["id"]
    pipeline = gateway.ask("GET", "/v1/pipelines", token).json()["pipelines"]
    found = {**ids, "token": token, "tenant": tenant, "artifact": artifact, "expert": "exp-secret"}
    job = {"box": "logreg", "verb": "preprocess"}
    asked = {"job": job, "space": {"limit": {"values": [10, 20]}}, "objective": {"metric": "train_samples"}}
    found["sweep"] = gateway.ask("POST", "/v1/sweeps", token, json=asked).json()["id"]
    with platform.database.write() as session:
        promote_job(session, Boxes({}), tenant, ids["succeeded"], found["expert"], time.time(), "digits")
        parts = ServedParts(Selector("logreg"), artifact, artifact, None, 1)
        create_endpoint(session, tenant, "end-secret", parts, 1, time.time())
    return found | ({"pipeline": pipeline[0]["id"]} if pipeline else {})


def node() -> dict[str, Any]:
    """A node on which the tenants ``ten-own`` and ``ten-victim`` have a lease each."""
    tiles = [
        {"path": f"/NODE/XRDU_0/RDU_0/TILE_{k}", "rdu": 0, "tile": k, "lease": lease, "application": application,
         "health": "Online"}
        for k, (lease, application) in enumerate([("lease-1", "own-train"), ("lease-2", "secret-train"), (None, None)])
    ]  # fmt: skip
    leases = [
        {"id": "lease-1", "tenant": "ten-own", "job": "job-own", "application": "own-train", "pid": 1},
        {"id": "lease-2", "tenant": "ten-victim", "job": "job-secret", "application": "secret-train", "pid": 4711},
    ]
    fault = {
        "fault_uuid": "f", "fault_type": "FTYPE_TILE_EXCLUDED", "fault_state": "ACTIVE", "severity": "Major",
        "comp_name": "/NODE/XRDU_0/RDU_0/TILE_1", "fault_desc": "the tile hung", "recovery_act": "repair it",
        "timestamp": 1, "application": "secret-train", "tenant": "ten-victim", "job": "job-secret", "lease": "lease-2",
        "pid": 4711, "cleared_by": "erin", "err_uuid": "e",
    }  # fmt: skip
    return {
        "name": "local", "state": "up", "health": "FUNCTIONAL", "memory": {"total": 4, "used": 2}, "applications": 2,
        "max_applications": 8, "rdus": [], "tiles": tiles, "leases": leases, "faults": [fault],
        "waiting": [{"application": "secret-infer", "tenant": "ten-victim", "job": "job-secret", "tiles": 1}],
        "database": {"is_writable": False, "reason": "/home/erin/.rdukit is full"}, "later": "secret field",
    }  # fmt: skip


def test_of_another_tenants_tiles_only_that_they_are_taken_is_told() -> None:
    (shown,) = nodes_for([node()], "ten-own")
    assert [secret for secret in SECRETS if secret in json.dumps(shown)] == []
    assert [tile["lease"] for tile in shown["tiles"]] == ["lease-1", OTHERS, None]
    assert [lease["job"] for lease in shown["leases"]] == ["job-own"]
    assert (shown["applications"], shown["memory"]["used"]) == (2, 2)
    assert shown["faults"][0]["fault_desc"] == "the tile hung"
    assert shown["waiting"] == []


def test_of_its_own_a_tenant_sees_all() -> None:
    (shown,) = nodes_for([node()], "ten-victim")
    assert shown["faults"] == node()["faults"]
    assert shown["waiting"] == node()["waiting"]


def test_a_node_that_is_away_does_not_tell_where_its_socket_is() -> None:
    away = {"name": "local", "state": "unreachable", "error": "no socket at /home/erin/.rdukit/run", "tiles": []}
    (shown,) = nodes_for([away], "ten-own")
    assert "/home/" not in json.dumps(shown)
    assert shown["state"] == "unreachable"
    (shown,) = nodes_for([{**away, "state": "lost", "host": "secret.lan"}], "ten-own")
    assert shown["error"] == "its heartbeats are missing" and "secret" not in json.dumps(shown)


def test_processes_of_the_platform_are_told_without_their_host() -> None:
    found = [{"id": f"worker@secret:{pid}", "kind": "worker", "started_at": float(pid)} for pid in (4711, 17)]
    assert [service["id"] for service in services_for(found)] == ["worker-1", "worker-2"]


def test_a_tenants_nodes_are_filtered_by_the_route_and_the_console(gateway: GatewayUnderTest) -> None:
    reader, scraper = gateway.token("lab", "read"), gateway.token("ops", "metrics")
    assert "rdk-" in gateway.ask("GET", "/v1/nodes", gateway.admin).json()["nodes"][0]["error"]
    assert "rdk-" in gateway.ask("GET", "/v1/nodes", scraper).json()["nodes"][0]["error"]
    assert "rdk-" not in gateway.ask("GET", "/v1/nodes", reader).text
    with httpx.Client(base_url=gateway.url) as browser:
        login = httpx.post(f"{gateway.url}/console/login", data={"token": reader})
        browser.cookies.set(COOKIE, login.cookies[COOKIE])
        assert "rdk-" not in browser.get("/console/nodes").text


def test_metrics_are_for_who_may_read_them(gateway: GatewayUnderTest, victim: dict[str, str]) -> None:
    assert gateway.ask("GET", "/metrics", None).status_code == 401
    assert gateway.ask("GET", "/metrics", gateway.token("lab", "artifacts:read")).status_code == 403
    own = gateway.ask("GET", "/metrics", gateway.token("lab", "read")).text
    assert set(re.findall(r"^rdukit_jobs\{.*\} (.+)$", own, re.M)) == {"0.0"}
    assert "rdukit_gateway" not in own and "secret" not in own
    theirs = gateway.ask("GET", "/metrics", victim["token"]).text
    assert 'rdukit_endpoint_ready_replicas{endpoint="end-secret",tenant="victim"} 0.0' in theirs
    of_endpoints = gateway.ask("GET", "/metrics", gateway.token("victim", "endpoints:read")).text
    assert "end-secret" in of_endpoints and "rdukit_jobs" not in of_endpoints
    for token in (gateway.admin, gateway.token("ops", "metrics")):
        whole = gateway.ask("GET", "/metrics", token).text
        assert "rdukit_gateway_requests_total" in whole and "end-secret" in whole
        assert set(re.findall(r"^rdukit_jobs.*$", whole, re.M)) == set(re.findall(r"^rdukit_jobs.*$", theirs, re.M))


def test_what_another_has_answers_as_what_nobody_has(gateway: GatewayUnderTest, victim: dict[str, str]) -> None:
    own = gateway.token("lab", "read", "write", "tokens")
    running, art, expert, sweep = victim["running"], victim["artifact"], victim["expert"], victim["sweep"]
    tried = [
        ("GET", f"/v1/jobs/{running}"), ("GET", f"/v1/jobs/{running}/events"), ("GET", f"/v1/jobs/{running}/logs"),
        ("GET", f"/v1/jobs/{running}/logs?follow=true"), ("POST", f"/v1/jobs/{running}/cancel"),
        ("POST", f"/v1/jobs/{running}/clone"), ("POST", f"/v1/jobs/{running}/pause"),
        ("POST", f"/v1/jobs/{running}/resume"),
        ("GET", f"/v1/jobs/{running}/metrics"), ("GET", f"/v1/jobs/compare?ids={running},x"),
        ("GET", f"/v1/artifacts/{art}"), ("GET", f"/v1/artifacts/{art}/content"),
        ("DELETE", f"/v1/artifacts/{art}"), ("PUT", f"/v1/artifacts/{art}/pin"),
        ("DELETE", f"/v1/artifacts/{art}/pin"), ("POST", f"/v1/artifacts/{art}/verify"), ("GET", "/v1/tenants/victim"),
        ("GET", f"/v1/artifacts/{art}/lineage"), ("GET", f"/v1/pipelines/{victim.get('pipeline', 'pip-x')}"),
        ("GET", f"/v1/experts/{expert}"), ("GET", f"/v1/experts/{expert}:1"),
        ("POST", f"/v1/experts/{expert}/deprecate"),
        ("GET", f"/v1/sweeps/{sweep}"), ("POST", f"/v1/sweeps/{sweep}/cancel"),
        ("GET", "/v1/endpoints/end-secret"), ("DELETE", "/v1/endpoints/end-secret"),
        ("POST", "/v1/endpoints/end-secret/update"), ("POST", "/v1/endpoints/end-secret/rollback"),
        ("POST", "/v1/endpoints/end-secret/promote"),
        ("GET", "/v1/endpoints/end-secret/v2/models/m"), ("POST", "/v1/endpoints/end-secret/v1/completions"),
    ]  # fmt: skip
    for method, path in tried:
        body = {"json": {"reason": "r"} if path.endswith("/deprecate") else {}}
        strange = re.sub(r"(job|art|pip\w*|exp|sweep|end)-\w+", r"\1-000000000000", path).replace(
            "victim", "ten-000000000000"
        )
        told, other = gateway.refused(method, path, own, **body), gateway.refused(method, strange, own, **body)
        others = rf"{art}|{expert}|{sweep}|end-secret|{victim.get('pipeline', 'pip-x')}"
        ids = rf"victim|{running}|{others}|\w+-000000000000"
        assert told[0] == 404, path
        assert re.sub(ids, "X", told[1]) == re.sub(ids, "X", other[1]), path


def test_another_tenants_training_is_not_promoted_and_is_not_told_from_none(
    gateway: GatewayUnderTest, victim: dict[str, str]
) -> None:
    own = gateway.token("lab", "read", "write")
    told = [
        gateway.refused("POST", "/v1/experts", own, json={"job": job, "name": "mine"})
        for job in (victim["succeeded"], "job-000000000000")
    ]
    assert told[0][0] == 404
    assert told[0][1].replace(victim["succeeded"], "X") == told[1][1].replace("job-000000000000", "X")
    assert gateway.ask("GET", "/v1/experts", victim["token"]).json()["experts"][0]["deprecated_at"] is None


def test_another_tenants_artifact_is_no_input_and_is_not_told_from_none(
    gateway: GatewayUnderTest, victim: dict[str, str]
) -> None:
    own = gateway.token("lab", "read", "write")
    gateway.platform.catalog.boxes()
    bodies = [
        {"box": "logreg", "verb": "train", "inputs": {"pef": artifact}}
        for artifact in (victim["artifact"], "art-000000000000")
    ]
    (one, other) = [gateway.refused("POST", "/v1/jobs", own, json=body) for body in bodies]
    assert one[0] == other[0] >= 400
    assert one[1].replace(victim["artifact"], "X") == other[1].replace("art-000000000000", "X")


def test_lists_and_filters_by_anothers_ids_are_empty(gateway: GatewayUnderTest, victim: dict[str, str]) -> None:
    own = gateway.token("lab", "read")
    for path in ("/v1/jobs", f"/v1/jobs?q={victim['succeeded']}", "/v1/artifacts",
                 "/v1/pipelines", "/v1/boxes",
                 "/v1/sweeps", "/v1/experts", "/v1/experts?deprecated=true&search=digits",
                 "/v1/endpoints"):  # fmt: skip
        answer = gateway.ask("GET", path, own).json()
        (rows,) = [value for value in answer.values() if isinstance(value, list)]
        assert rows == [], path
        assert not any(value for name, value in answer.items() if name != "searched_to"), path
    theirs, nobodys = (
        gateway.refused("GET", f"/v1/artifacts?job={job_id}", own)
        for job_id in (victim["succeeded"], "job-000000000000")
    )
    assert theirs[0] == 404 and theirs[1].replace(victim["succeeded"], "X") == nobodys[1].replace(
        "job-000000000000", "X"
    )


def test_the_catalog_finds_and_compares_nothing_of_another_tenant(
    gateway: GatewayUnderTest, victim: dict[str, str]
) -> None:
    own = gateway.token("lab", "read")
    checkpoint = {"kind": ["checkpoint", "pef", "dataset"]}
    theirs = gateway.ask("GET", "/v1/entries", victim["token"], params=checkpoint).json()["entries"]
    ids = [entry["id"] for entry in theirs]
    assert any(id_.startswith("checkpoint/art-") for id_ in ids)
    everything = {"limit": 200, "deprecated": "true"}
    found = gateway.ask("GET", "/v1/entries", own, params=everything).json()
    assert not [entry for entry in found["entries"] if entry["is_own"]]
    assert found["counts"]["kind"].keys() == {"box", "model"}
    for text in (victim["expert"], *ids):
        assert gateway.ask("GET", "/v1/entries", own, params={**everything, "search": text}).json()["total"] == 0
        told = gateway.refused("GET", "/v1/entries/compare", own, params={"entry": [text, "gpt2"]})
        strange = re.sub(r"\w{5}\Z", "00000", text)
        other = gateway.refused("GET", "/v1/entries/compare", own, params={"entry": [strange, "gpt2"]})
        assert told[0] == other[0] == 404 and told[1].replace(text, "X") == other[1].replace(strange, "X")
        assert gateway.refused("GET", "/v1/entries/show", own, params={"entry": text})[0] == 404
        assert gateway.ask("GET", "/v1/entries/show", victim["token"], params={"entry": text}).status_code == 200
    boxes_only = gateway.token("victim", "boxes:read")
    seen = gateway.ask("GET", "/v1/entries", boxes_only, params=everything).json()
    assert seen["counts"]["kind"].keys() == {"box", "model", "expert"}, "artifacts are for who may read them"
    assert gateway.refused("GET", "/v1/entries/compare", boxes_only, params={"entry": [ids[0], "gpt2"]})[0] == 404
    assert gateway.refused("GET", "/v1/entries/show", boxes_only, params={"entry": ids[0]})[0] == 404


def test_a_cursor_of_another_tenant_opens_nothing(gateway: GatewayUnderTest, victim: dict[str, str]) -> None:
    own = gateway.token("lab", "read")
    cursor = gateway.ask("GET", "/v1/jobs?limit=1", victim["token"]).json()["next_cursor"]
    assert gateway.ask("GET", f"/v1/jobs?cursor={cursor}", own).json()["jobs"] == []


def test_an_upload_of_what_another_tenant_has_tells_nothing(gateway: GatewayUnderTest, victim: dict[str, str]) -> None:
    own = gateway.token("lab", "read", "write")
    gateway.ask("POST", "/v1/artifacts", victim["token"], files={"files": ("a.bin", b"secret")}, data={"kind": "data"})
    answers = [
        gateway.ask("POST", "/v1/artifacts", own, files={"files": ("a.bin", content)}, data={"kind": "data"})
        for content in (b"secret", b"nobody")
    ]
    assert [answer.status_code for answer in answers] == [201, 201]
    known, new = (answer.json() for answer in answers)
    assert {name for name in known if known[name] != new[name]} == {"id", "digest", "created_at"}
    assert set(answers[0].headers) == set(answers[1].headers)


def test_damaged_content_is_refused_by_its_name_without_where_it_is_kept(gateway: GatewayUnderTest) -> None:
    own = gateway.token("lab", "read", "write")
    form: dict[str, Any] = {"files": {"files": ("a.bin", b"what is damaged")}, "data": {"kind": "data"}}
    made = gateway.ask("POST", "/v1/artifacts", own, **form).json()
    store = gateway.platform.store
    assert isinstance(store, FolderStore)
    path = store.path(made["digest"])
    path.chmod(0o600)
    path.write_bytes(b"What is damaged")
    read = gateway.ask("GET", f"/v1/artifacts/{made['id']}/content", own)
    verified = gateway.ask("POST", f"/v1/artifacts/{made['id']}/verify", own)
    assert read.json()["error"]["code"] == "content-damaged"
    assert type(error_from_body(read.json())) is ContentDamaged, "what commands and programs get"
    (problem,) = verified.json()["problems"]
    for said in (read.json()["error"]["message"], problem["problem"]):
        assert "was changed in the store" in said and str(path.parents[2]) not in said, said


def test_an_upload_does_the_same_work_whether_its_content_is_there_or_not(tmp_path: Path) -> None:
    """To read what is there and compare would take as long again as writing it, and so tell that it is there."""
    store = FolderStore(tmp_path)
    path = store.path(store.add_stream(io.BytesIO(b"content")).digest)
    path.chmod(0o600)
    path.write_bytes(b"damaged")
    before = path.stat().st_ino
    assert store.path(store.add_stream(io.BytesIO(b"content")).digest) == path
    assert path.stat().st_ino != before, "what is there is not looked at, but written anew"
    assert path.read_bytes() == b"content"


def test_a_damaged_content_is_mended_by_who_brings_it_again(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    digest = store.add_stream(io.BytesIO(b"content")).digest
    store.path(digest).chmod(0o600)
    store.path(digest).write_bytes(b"damaged")
    assert store.add_stream(io.BytesIO(b"content")).digest == digest
    store.check(digest)


def test_the_same_idempotency_key_of_two_tenants_is_two_jobs(gateway: GatewayUnderTest) -> None:
    tokens = [gateway.token(name, "read", "write") for name in ("one", "two")]
    body = {"box": "logreg", "verb": "preprocess", "idempotency_key": "k"}
    answers = [gateway.ask("POST", "/v1/jobs", token, json=body) for token in tokens]
    assert answers[0].status_code == answers[1].status_code
    if answers[0].status_code == 201:
        assert answers[0].json()["id"] != answers[1].json()["id"]


def test_why_a_job_waits_names_no_job_of_another_tenant() -> None:
    queued = (
        QueuedJob("job-secret", "ten-victim", 8, 0.0, None, None), QueuedJob("job-own", "ten-own", 1, 90.0, None, None),
    )  # fmt: skip
    view = NodeCapacity(tiles=8, free_tiles=4, free_applications=8, broken_tiles=0, rdu_tiles=4, rows=(4, 4))
    told = decide(QueueSnapshot(100.0, queued, (), (NodeState("n", view, 8),), starve_s=60.0)).waits["job-own"]
    first = "a job of another tenant has a reservation for tiles"
    assert told.why.startswith(first) and "secret" not in told.why and "victim" not in told.why


def test_a_taken_tenant_name_is_told_to_administrators_only(gateway: GatewayUnderTest) -> None:
    own = gateway.token("lab", "read", "write", "tokens")
    gateway.token("victim", "read")
    assert gateway.refused("POST", "/v1/tenants", own, json={"name": "victim"}) == gateway.refused(
        "POST", "/v1/tenants", own, json={"name": "free"}
    )
