"""The console's forms of endpoints and experts, without a script: they make, change, split, go back, delete, refuse."""

import html
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from sqlalchemy import update

from rdukit_platform.catalog.experts import deprecate_expert
from rdukit_platform.db.models import ArtifactRow
from rdukit_platform.tenants.service import find_tenant
from support import shows
from support.pefs.examples import write_example_pef
from support.platform.gateway import Example, GatewayUnderTest, gateway_under_test
from support.platform.processes import run_rdukit, short_folder

pytestmark = shows("console", "endpoints", "experts", "endpoint")


@pytest.fixture(scope="module")
def gateway() -> Iterator[GatewayUnderTest]:
    with short_folder() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RDUKIT_HOME", str(folder))
        with gateway_under_test() as running:
            yield running


@contextmanager
def log_in(gateway: GatewayUnderTest, token: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=gateway.url, timeout=60.0) as client:
        assert client.post("/console/login", data={"token": token}).status_code == 303
        yield client


@pytest.fixture(scope="module")
def token(gateway: GatewayUnderTest) -> str:
    """A token of a tenant with two versions of an expert and the endpoint ``read`` of the first."""
    token = gateway.token("lab", "read", "write")
    with gateway.platform.database.read() as session:
        tenant = find_tenant(session, "lab")
        assert tenant is not None
        tenant_id = tenant.id
    example = Example(gateway.platform.database, gateway.platform.store, tenant_id, time.time())
    for _ in range(2):
        example.promote(example.run_pipeline()[1])
    with short_folder() as folder:
        content = gateway.platform.store.add_path(write_example_pef(folder / "model.pef"))
    with gateway.platform.database.write() as session:
        is_pef = ArtifactRow.tenant_id == tenant_id, ArtifactRow.kind == "pef"
        session.execute(update(ArtifactRow).where(*is_pef).values(digest=content.digest, is_folder=False))
    example.serve("read", "digits:1")
    return token


@pytest.fixture
def client(gateway: GatewayUnderTest, token: str) -> Iterator[httpx.Client]:
    with log_in(gateway, token) as client:
        yield client


def error_at(text: str, field: str) -> str:
    found = re.search(rf'id="{field}-error">(.*?)</p>', text, re.DOTALL)
    assert found is not None, f"{field} has no error"
    return html.unescape(found[1])


def chosen(text: str, field: str) -> str:
    body = re.search(rf'<select id="{field}"[^>]*>(.*?)</select>', text, re.DOTALL)
    assert body is not None
    found = re.search(r'value="([^"]*)" selected', body[1])
    return found[1] if found else ""


def endpoint(gateway: GatewayUnderTest, token: str, name: str) -> dict[str, object]:
    found: dict[str, object] = gateway.ask("GET", f"/v1/endpoints/{name}", token).json()
    return found


def test_the_page_of_an_expert_leads_to_a_form_that_serves_it(
    gateway: GatewayUnderTest, token: str, client: httpx.Client
) -> None:
    link = re.search(r'href="(/console/new/endpoint[^"]*)"', client.get("/console/experts/digits:2").text)
    assert link is not None
    text = client.get(html.unescape(link[1])).text
    assert chosen(text, "expert") == "digits:2"
    assert "the expert's own PEF" in html.unescape(text)
    assert 'optgroup label="compiled to train"' in text
    given = {"name": "new", "expert": "digits:2", "replicas": "0", "idle": "15m"}
    assert client.post("/console/endpoints", data=given).headers["location"] == "/console/endpoints/new"
    made = endpoint(gateway, token, "new")
    assert (made["expert"], made["replicas"], made["idle_s"]) == ("digits:2", 0, 900.0)
    again = client.post("/console/endpoints", data=given)
    assert again.status_code == 422
    assert "endpoint 'new' already exists" in error_at(again.text, "name")
    assert chosen(again.text, "expert") == "digits:2", "what was filled in is not lost"
    assert [one["action"] for one in gateway.entries(token, "?about=new")] == ["endpoint.create"]


def test_each_wrong_field_says_what_would_be_legal(client: httpx.Client) -> None:
    given = {"name": "No Name", "replicas": "65", "idle": "1s", "tiles": "none", "pef": "art-000000000000"}
    answer = client.post("/console/endpoints", data=given)
    assert answer.status_code == 422
    for field, legal in (("name", "a-z"), ("replicas", "0 to 64"), ("idle", "5s to 30d"), ("tiles", "1 to 1024")):
        assert legal in error_at(answer.text, field)
    alone = client.post("/console/endpoints", data={"name": "a", "pef": "art-000000000000", "box": "logreg"})
    assert "there is no artifact" in error_at(alone.text, "pef")
    assert "name exactly one" in error_at(client.post("/console/endpoints", data={"name": "a"}).text, "expert")


def test_a_revision_is_served_split_promoted_and_taken_back(
    gateway: GatewayUnderTest, token: str, client: httpx.Client
) -> None:
    path = "/console/endpoints/read"
    text = client.get(f"{path}/revision").text
    assert (chosen(text, "expert"), chosen(text, "pef")) == ("digits:1", ""), "what is the expert's own is left to it"
    nothing = client.post(f"{path}/revision", data={"canary": "10"})
    assert "choose an expert" in error_at(nothing.text, "expert")
    told = client.post(f"{path}/revision", data={"expert": "digits:2", "canary": "10"})
    assert told.headers["location"] == path
    before = endpoint(gateway, token, "read")
    assert before["canary"] == {"revision": 3, "percent": 10, "replicas": 1}
    assert "Promote it" in (text := client.get(path).text) and 'name="canary" value="10"' in text
    assert error_at(client.post(f"{path}/canary", data={"canary": "100"}).text, "canary").endswith(
        "1 to 99, or an empty field"
    )
    assert client.post(f"{path}/canary", data={"canary": "50"}).status_code == 303
    assert client.post(f"{path}/promote").status_code == 303
    after = endpoint(gateway, token, "read")
    assert (after["revision"], after["canary"], after["expert"]) == (3, None, "digits:2")
    refused = client.post(f"{path}/promote")
    assert refused.status_code == 422 and "has no canary" in html.unescape(refused.text)
    assert 'name="revision" value="1"' in refused.text and 'name="revision" value="3"' not in refused.text
    assert client.post(f"{path}/rollback", data={"revision": "1"}).status_code == 303
    assert endpoint(gateway, token, "read")["revision"] == 1
    for number in ("99", "-1", "1e9", "x" * 500, "9" * 30):
        assert client.post(f"{path}/rollback", data={"revision": number}).status_code == 422, number


def test_replicas_and_idle_time_are_changed_and_an_endpoint_is_deleted(
    gateway: GatewayUnderTest, token: str, client: httpx.Client
) -> None:
    given = {"name": "small", "expert": "digits:2", "replicas": "1"}
    assert client.post("/console/endpoints", data=given).status_code == 303
    path = "/console/endpoints/small"
    assert client.post(f"{path}/scale", data={"replicas": "0", "idle": "600"}).status_code == 303
    found = endpoint(gateway, token, "small")
    assert (found["replicas"], found["idle_s"]) == (0, 600.0)
    assert 'name="idle" value="600"' in client.get(path).text
    wrong = client.post(f"{path}/scale", data={"replicas": "many"})
    assert wrong.status_code == 422 and "0 to 64" in error_at(wrong.text, "replicas")
    assert client.post(f"{path}/delete").headers["location"] == "/console/endpoints"
    assert client.get(path).status_code == 404
    assert client.post(f"{path}/scale", data={"replicas": "1"}).status_code == 404


def test_forms_are_for_those_who_may_and_from_the_consoles_own_pages(
    gateway: GatewayUnderTest, token: str, client: httpx.Client
) -> None:
    given = {"name": "theirs", "expert": "digits:2"}
    foreign = client.post("/console/endpoints", data=given, headers={"Origin": "https://evil.example"})
    assert foreign.status_code == 403
    with log_in(gateway, gateway.token("lab", "read")) as viewer:
        assert "endpoints:write" in viewer.get("/console/new/endpoint").text
        assert "Scale it" not in (text := viewer.get("/console/endpoints/read").text) and "/rollback" not in text
        assert "Deprecate it" not in viewer.get("/console/experts/digits:2").text
        assert viewer.post("/console/endpoints", data=given).status_code == 403
    assert gateway.ask("GET", "/v1/endpoints/theirs", token).status_code == 404


@pytest.mark.long
def test_an_endpoint_says_that_its_expert_is_deprecated(
    gateway: GatewayUnderTest, token: str, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert endpoint(gateway, token, "read")["deprecated"] is None
    path = "/console/experts/digits:1"
    empty = client.post(f"{path}/deprecate", data={"reason": " "})
    assert empty.status_code == 422 and "give a short reason" in error_at(empty.text, "reason")
    long = client.post(f"{path}/deprecate", data={"reason": "r" * 501})
    assert "501 characters; expected 1 to 500" in error_at(long.text, "reason")
    assert client.post(f"{path}/deprecate", data={"reason": "digits:2 is <better>"}).headers["location"] == path
    assert "Serve it" not in (text := client.get(path).text) and "digits:2 is &lt;better&gt;" in text
    assert "It serves a deprecated expert" in client.get("/console/endpoints/read").text
    assert "It serves a deprecated expert" in client.get("/console/endpoints/read/playground").text
    assert ">deprecated</span>" in client.get("/console/endpoints").text
    assert endpoint(gateway, token, "read")["deprecated"] == "digits:2 is <better>"
    monkeypatch.setenv("RDUKIT_GATEWAY_URL", gateway.url)
    told = run_rdukit("endpoint", "show", "read", "--token", token)
    assert "digits:1: digits:2 is <better>" in told
    assert 'value="digits:1"' not in client.get("/console/new/endpoint").text
    refused = client.post("/console/endpoints", data={"name": "old", "expert": "digits:1"})
    assert "is deprecated: digits:2 is <better>" in error_at(refused.text, "expert")


def test_experts_that_are_all_deprecated_are_said_to_be_there(gateway: GatewayUnderTest) -> None:
    token = gateway.token("old", "read", "write")
    with gateway.platform.database.read() as session:
        tenant = find_tenant(session, "old")
        assert tenant is not None
        tenant_id = tenant.id
    example = Example(gateway.platform.database, gateway.platform.store, tenant_id, time.time())
    with log_in(gateway, token) as visitor:
        assert "No experts yet" in visitor.get("/console/experts").text
        example.promote(example.run_pipeline()[1])
        with gateway.platform.database.write() as session:
            deprecate_expert(session, tenant_id, "digits:1", "it is old", 3.0)
        assert "All experts are deprecated" in visitor.get("/console/experts").text
        assert "No expert has these words" in visitor.get("/console/experts?search=letters").text
        found = visitor.get("/console/experts?search=digits").text
        assert "All experts with these words are deprecated" in found and "deprecated=true&amp;search=digits" in found
