"""Every route with every role, for the caller's own tenant and for another: nobody gets in where they should not.

Each route is a test; one that fails names every caller that is let in or kept out wrongly. Routes declare their
permissions (``rdukit_platform.gateway.routes``); ``docs/permissions.md`` is the table that a review reads.
"""

import hashlib
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from fastapi import APIRouter, FastAPI
from sqlalchemy import select

from rdukit.errors import PermissionDenied
from rdukit_platform.api.dependencies import JobsReader, JobsWriter
from rdukit_platform.catalog.model import Boxes, Selector
from rdukit_platform.console.access import COOKIE
from rdukit_platform.db.models import Base, BoxRow, MembershipRow
from rdukit_platform.endpoints.service import ServedParts, create_endpoint
from rdukit_platform.gateway.app import create_app
from rdukit_platform.gateway.permissions import declared_permissions
from rdukit_platform.gateway.routes import PERMISSIONS
from rdukit_platform.jobs.experts import promote_job
from rdukit_platform.schedules.service import ScheduleRequest, create_schedule
from rdukit_platform.tenants.organisations import create_organisation
from rdukit_platform.tenants.permissions import needs, roles_let_in
from rdukit_platform.tenants.roles import ROLES
from rdukit_platform.tenants.scopes import MEANINGS, all_of
from rdukit_platform.tenants.users import find_or_add_user
from rdukit_platform.webhooks.service import add_test, create_webhook
from support import shows
from support.platform.gateway import Example, GatewayUnderTest, example_box, gateway_under_test
from support.platform.processes import short_folder
from support.tiers import every_third_short

pytestmark = shows("permissions", "console")

#: Callers that have no role, and their scopes; ``None``: no token at all.
OTHERS: Final = {"application": ["endpoints:call"], "metrics": ["metrics"], "admin": ["admin"], "nobody": None}
CALLERS: Final = [*ROLES, *OTHERS]
#: Scopes that a role has, written down a second time: a change of the table must be meant.
EXPECTED: Final = {
    "ml-engineer": {"read", "jobs:write", "artifacts:write", "boxes:write"},
    "data-scientist": {"read", "write", "tokens"},
    "app-developer": {"read", "endpoints:write", "endpoints:call"},
    "business-user": {"read", "endpoints:call"},
    "viewer": {"read"},
    "tenant-admin": {"read", "write", "tokens", "members"},
}
#: Bodies without which a route answers before it looks for what its path names.
BODIES: Final[dict[str, dict[str, Any]]] = {
    "POST /v1/experts/{expert}/deprecate": {"json": {"reason": "r"}},
    "POST /v1/endpoints/{name}/update": {"json": {"replicas": 2}},
    "PUT /v1/uploads/{upload_id}/files/{number}": {"content": b"x", "headers": {"Upload-Offset": "0"}},
    "POST /v1/jobs/{job_id}/clone": {"json": {}},
    "POST /v1/endpoints/{name}/promote": {"json": {}},
    "POST /v1/endpoints/{name}/rollback": {"json": {}},
    "PATCH /v1/members/{user}": {"json": {"role": "viewer"}},
    "POST /console/members/{user}/role": {"data": {"role": "viewer"}},
    "POST /console/jobs/{job_id}/promote": {"data": {"name": "digits"}},
    "POST /console/endpoints/{name}/revision": {"data": {"box": "logreg"}},
    "POST /console/endpoints/{name}/scale": {"data": {"replicas": "2"}},
    "POST /console/experts/{name}/deprecate": {"data": {"reason": "r"}},
    "PATCH /v1/users/{user}": {"json": {"disabled": True}},
    "POST /console/nodes/maintenance": {"data": {"act": "cordon", "component": "/NODE"}},
}
STEP: Final = {"name": "a", "box": "logreg", "verb": "compile"}
#: End the token, or the session, that asks.
LOGOUT: Final = "POST /v1/logout"
CONSOLE_LOGOUT: Final = "POST /console/logout"
_PARAMETER: Final = re.compile(r"\{(\w+)(:path)?\}")


def name_of(route: str) -> str:
    """Return what ``{name}`` in a route's path is the name of."""
    return (
        "endpoint" if "endpoints" in route else "expert" if "experts" in route else "box" if "catalog" in route else ""
    )


@dataclass(frozen=True)
class Parties:
    """A gateway with two tenants that have one of everything, and callers of the first."""

    gateway: GatewayUnderTest
    client: httpx.Client
    #: By name of the caller.
    tokens: dict[str, str | None]
    cookies: dict[str, str]
    own: dict[str, str]
    other: dict[str, str]

    def ask(self, route: str, caller: str, ids: dict[str, str]) -> httpx.Response:
        """Return the answer to a request for a route, with ``ids`` in its path."""
        method, template = route.split(" ")
        self.client.cookies.clear()  # what a login before left
        path = _PARAMETER.sub(
            lambda found: ids[name_of(route) or found[1] if found[1] == "name" else found[1]], template
        )
        given: dict[str, Any] = dict(BODIES.get(route, {}))
        headers = dict(given.pop("headers", {}))
        if route == "POST /console/login":
            given["data"] = {"token": self.tokens[caller] or "none"}
        elif path.startswith("/console"):
            if caller in self.cookies:
                cookie = self.cookies[caller] if route != CONSOLE_LOGOUT else self.fresh_session(caller)
                headers["Cookie"] = f"{COOKIE}={cookie}"
        elif self.tokens[caller] is not None:
            headers["Authorization"] = f"Bearer {self.tokens[caller] if route != LOGOUT else self.fresh(caller)}"
        return self.client.request(method, path, headers=headers, **given)

    def fresh(self, caller: str) -> str:
        """Return another token of a caller, to be ended."""
        return self.gateway.token("lab", *(OTHERS[caller] or [] if caller in OTHERS else ROLES[caller].scopes))

    def fresh_session(self, caller: str) -> str:
        """Return the cookie of another session of a caller, to be ended."""
        login = self.client.post("/console/login", data={"token": self.fresh(caller)})
        self.client.cookies.clear()
        return login.cookies[COOKIE]

    def rows_of_other(self) -> dict[str, list[str]]:
        """Return all rows of the other tenant as texts, by table."""
        found = {}
        with self.gateway.platform.database.read() as session:
            for table in Base.metadata.sorted_tables:
                if "tenant_id" in table.c and table.name != "audit":
                    rows = session.execute(select(table).where(table.c.tenant_id == self.other["tenant_id"]))
                    found[table.name] = sorted(map(str, rows))
        return found


def fill(gateway: GatewayUnderTest, tenant: str) -> dict[str, str]:
    """Give a tenant one of everything. Returns the ids by the names of parameters."""
    platform, now = gateway.platform, time.time()
    keeper_id, keeper = gateway.id_and_token(tenant, "read", "write", "tokens")
    tenant_id = gateway.ask("GET", "/v1/me", keeper).json()["tenant"]["id"]
    example = Example(platform.database, platform.store, tenant_id, now)
    jobs = example.fill()
    artifact = gateway.ask("GET", "/v1/artifacts", keeper).json()["artifacts"][0]["id"]
    pipeline = gateway.ask("GET", "/v1/pipelines", keeper).json()["pipelines"][0]["id"]
    files = [{"path": "a.csv", "bytes": 1, "digest": hashlib.sha256(b"x").hexdigest()}]
    upload = gateway.ask("POST", "/v1/uploads", keeper, json={"name": "u", "kind": "dataset", "files": files})
    assert upload.status_code == 201, upload.text
    names = {"expert": f"exp-{tenant}", "endpoint": f"end-{tenant}", "box": f"box-{tenant}"}
    with platform.database.write() as session:
        promote_job(session, Boxes({"logreg": example_box()}), tenant_id, jobs["succeeded"], names["expert"], now, "d")
        parts = ServedParts(Selector("logreg"), artifact, artifact, None, 1)
        create_endpoint(session, tenant_id, names["endpoint"], parts, 1, now)
        webhook = create_webhook(session, tenant_id, "https://example.org/hooks", [], now)
        delivery = add_test(session, webhook, now + 1e9)
        asked = {"name": f"sched-{tenant}", "cron": "0 3 * * *", "pipeline": {"name": "p", "steps": [STEP]}}
        names["schedule"] = create_schedule(session, tenant_id, ScheduleRequest.model_validate(asked), now).id
        names |= {"webhook_id": webhook.id, "delivery_id": delivery.id}
        box = {**example_box().raw, "name": names["box"]}
        user = find_or_add_user(session, f"ada@{tenant}.example", now)
        session.add(
            MembershipRow(user_id=user.id, tenant_id=tenant_id, role="viewer", is_claimed=False, created_at=now)
        )
        organisation = create_organisation(session, f"org-{tenant}", now).id
        ids = {"user": user.id, "organisation": organisation}
        session.add(BoxRow(
            id=f"box-{tenant}", tenant_id=tenant_id, name=names["box"], version=1, description=box,
            digest=platform.store.add_manifest([]).digest, artifact_id=artifact, created_at=now,
        ))  # fmt: skip
    return names | ids | {
        "tenant": tenant, "tenant_id": tenant_id, "job_id": jobs["running"], "pipeline_id": pipeline,
        "sweep_id": example.sweep(), "artifact_id": artifact, "upload_id": upload.json()["id"], "number": "0",
        "token_id": keeper_id, "path": "v2/models/x", "node": "-", "lease": "lease-0", "window": "mw-0",
        "name": "swagger-ui.css", "verb": "compile",
    }  # fmt: skip


@pytest.fixture(scope="module")
def parties() -> Iterator[Parties]:
    with (
        pytest.MonkeyPatch.context() as patch,
        short_folder() as folder,
    ):
        patch.setenv("RDUKIT_HOME", str(folder))
        patch.setenv("RDUKIT_LOGIN_RATE", "0")
        with gateway_under_test() as gateway, httpx.Client(base_url=gateway.url, timeout=60.0) as client:
            tokens, cookies = dict[str, str | None](), dict[str, str]()
            for caller in CALLERS:
                scopes = OTHERS[caller] if caller in OTHERS else list(ROLES[caller].scopes)
                token = tokens[caller] = None if scopes is None else gateway.token("lab", *scopes)
                login = client.post("/console/login", data={"token": token or "none"})
                client.cookies.clear()
                if COOKIE in login.cookies:
                    cookies[caller] = login.cookies[COOKIE]
            yield Parties(gateway, client, tokens, cookies, fill(gateway, "lab"), fill(gateway, "victim"))


def routes_of(app: FastAPI) -> set[str]:
    """Return method and path of each route of an application, those that its documents leave out too."""
    found, pending = set[str](), list(app.routes)
    while pending:
        route = pending.pop()
        pending += getattr(getattr(route, "original_router", None), "routes", [])
        found |= {f"{method} {route.path}" for method in getattr(route, "methods", None) or () if method != "HEAD"}  # type: ignore[attr-defined]
    return found


def test_every_route_has_a_permission_and_every_permission_a_route(parties: Parties) -> None:
    app = create_app(parties.gateway.platform)
    found = routes_of(app)
    documented = {
        f"{method.upper()} {path.replace('{path}', '{path:path}')}"
        for path, methods in app.openapi()["paths"].items()
        for method in methods
    }
    assert documented <= found, "routes are looked for where they are"
    assert found == set(PERMISSIONS)


async def test_a_route_that_declares_no_permission_is_refused_to_everybody(parties: Parties) -> None:
    app = create_app(parties.gateway.platform)
    called = []
    router = APIRouter(prefix="/v1")
    router.get("/other-door")(lambda: called.append(1))
    app.get("/v1/back-door")(lambda: called.append(1))
    app.include_router(router)
    assert routes_of(app) - set(PERMISSIONS) == {"GET /v1/back-door", "GET /v1/other-door"}
    headers = {"Authorization": f"Bearer {parties.gateway.admin}"}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        answers = [await client.get(f"/v1/{door}-door", headers=headers) for door in ("back", "other")]
    assert [answer.status_code for answer in answers] == [403, 403] and not called
    assert "declares no permission" in answers[0].text


def two_callers(reader: JobsReader, writer: JobsWriter) -> None:
    """Ask for two permissions."""


@pytest.mark.parametrize(("count", "endpoint"), [(0, lambda: None), (2, two_callers)])
def test_a_route_without_one_permission_keeps_the_gateway_from_starting(
    count: int, endpoint: Callable[..., None]
) -> None:
    app = FastAPI(openapi_url=None)
    assert declared_permissions(app.routes) == {}
    app.get("/v1/back-door")(endpoint)
    with pytest.raises(PermissionDenied, match=f"GET /v1/back-door declares {count} permissions"):
        declared_permissions(app.routes)


def test_a_route_around_the_framework_keeps_the_gateway_from_starting() -> None:
    app = FastAPI(openapi_url=None)
    app.router.add_route("/v1/back-door", lambda request: None)
    with pytest.raises(PermissionDenied, match="GET /v1/back-door"):
        declared_permissions(app.routes)


def test_each_role_has_the_scopes_that_are_meant() -> None:
    assert {name: set(role.scopes) for name, role in ROLES.items()} == EXPECTED
    assert all(all_of(role.scopes) <= set(MEANINGS) for role in ROLES.values())
    others = [scopes for name, scopes in EXPECTED.items() if name != "tenant-admin"]
    assert all(scopes <= all_of(ROLES["data-scientist"].scopes) for scopes in others), "it gives all roles but one"
    assert roles_let_in(needs("read", "jobs:write")) == ["ml-engineer", "data-scientist", "tenant-admin"]


def is_let_in(route: str, caller: str) -> bool:
    permission = PERMISSIONS[route]
    if not permission.needs_token:
        return True
    scopes = OTHERS[caller] if caller in OTHERS else ROLES[caller].scopes
    return scopes is not None and permission.lets_in(scopes)


def refusals(route: str, caller: str) -> set[int]:
    """Return the statuses by which a route refuses a caller: a visitor who may not log in is sent to the login."""
    if not route.split(" ")[1].startswith("/console"):
        return {401} if caller == "nobody" else {403}
    return {303} if caller == "nobody" or "read" not in all_of(OTHERS.get(caller) or ["read"]) else {403}


def find_fault(parties: Parties, route: str, caller: str) -> str | None:
    """Return what is wrong with how a route of the caller's own tenant answers, if anything is."""
    # What would change or call something names what is not there: the permission is looked at first.
    reads = route.startswith("GET ") and "{path:path}" not in route
    ids = parties.own if reads else parties.own | {
        name: re.sub(r"-\w+$", "-000000000000", value) for name, value in parties.own.items() if name != "name"
    }  # fmt: skip
    code = parties.ask(route, caller, ids).status_code
    if route == "POST /console/login":  # the form itself is everybody's; those who may read get a session
        legal = {401 if caller == "nobody" else 303 if is_let_in("GET /console/", caller) else 403}
    elif route == "GET /console/oidc/callback":  # everybody's, but nobody has begun a login
        legal = {401}
    elif not is_let_in(route, caller):
        legal = refusals(route, caller)
    elif reads:
        legal = {200, 204, 303, 307, 400, 404, 409}
    else:
        legal = {*range(500), 503} - {401, 403}
    return None if code in legal else f"{caller}: {code}"


@pytest.mark.parametrize("route", every_third_short(PERMISSIONS))
def test_each_role_enters_a_route_of_its_own_tenant_that_it_may(parties: Parties, route: str) -> None:
    faults = [find_fault(parties, route, caller) for caller in CALLERS]
    assert [fault for fault in faults if fault is not None] == []


@pytest.mark.parametrize("route", every_third_short(
    route for route, permission in PERMISSIONS.items()
    if set(_PARAMETER.findall(route)) - {("node", ""), ("lease", ""), ("window", "")} and permission.needs_token
))  # fmt: skip
def test_no_role_enters_what_another_tenant_has(parties: Parties, route: str) -> None:
    before = parties.rows_of_other()
    faults = []
    for caller in [*ROLES, "application", "metrics", "nobody"]:
        code = parties.ask(route, caller, parties.other).status_code
        if code not in ({404} if is_let_in(route, caller) else refusals(route, caller)):
            faults.append(f"{caller}: {code}")
    assert faults == []
    assert parties.rows_of_other() == before


def test_the_manual_has_the_tables() -> None:
    page = (Path(__file__).parents[2] / "docs" / "permissions.md").read_text()
    for route, permission in PERMISSIONS.items():
        assert re.search(rf"\| `{re.escape(route)}` \| {re.escape(str(permission))} \|", page), route
    for role in ROLES.values():
        assert f"| `{role.name}` |" in page
