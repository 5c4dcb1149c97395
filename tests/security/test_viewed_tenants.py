"""Administrators look at other tenants' jobs and endpoints, and the audit log says that they did."""

from collections.abc import Iterator

import pytest

from support import shows, wait_until
from support.platform.gateway import Example, GatewayUnderTest, gateway_under_test
from support.platform.processes import short_folder

pytestmark = shows("security", "jobs", "endpoints", "audit")


@pytest.fixture(scope="module")
def gateway() -> Iterator[GatewayUnderTest]:
    with short_folder() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RDUKIT_HOME", str(folder))
        with gateway_under_test() as running:
            yield running


@pytest.fixture(scope="module")
def theirs(gateway: GatewayUnderTest) -> dict[str, str]:
    """Give a tenant jobs and an endpoint. Returns its token, a job and the endpoint's name."""
    token = gateway.token("lab", "read", "write")
    platform = gateway.platform
    with platform.database.read() as session:
        from rdukit_platform.tenants.service import find_tenant

        found = find_tenant(session, "lab")
        assert found is not None
    example = Example(platform.database, platform.store, found.id, platform.clock.now())
    _, job = example.run_pipeline()
    example.serve("read", example.promote(job))
    return {"token": token, "job": job, "endpoint": "read"}


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/jobs/{job}", "/v1/endpoints", "/v1/endpoints/{endpoint}"])
def test_an_administrator_sees_what_the_tenant_sees_and_it_is_recorded(
    gateway: GatewayUnderTest, theirs: dict[str, str], path: str
) -> None:
    place = path.format(**theirs)
    own = gateway.ask("GET", place, theirs["token"]).json()
    seen = gateway.ask("GET", f"{place}?tenant=lab", gateway.admin)
    assert (seen.status_code, set(seen.json())) == (200, set(own))
    assert [one["id"] for one in seen.json().get("jobs", [])] == [one["id"] for one in own.get("jobs", [])]
    query = "?action=tenant.view"
    wait_until(lambda: any(one["target"] == f"GET {place}" for one in gateway.entries(theirs["token"], query)))


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/jobs/{job}", "/v1/endpoints", "/v1/endpoints/{endpoint}"])
def test_nobody_else_does(gateway: GatewayUnderTest, theirs: dict[str, str], path: str) -> None:
    place = path.format(**theirs)
    other = gateway.token("other", "read", "write")
    assert gateway.refused("GET", f"{place}?tenant=lab", other)[0] == 403
    assert gateway.refused("GET", f"{place}?tenant=nobody", other)[0] == 403
    assert gateway.refused("GET", f"{place}?tenant=nobody", gateway.admin)[0] == 404
    assert gateway.ask("GET", f"{place}?tenant=lab", theirs["token"]).status_code == 200, "its own"


def test_looking_is_all(gateway: GatewayUnderTest, theirs: dict[str, str]) -> None:
    for method, path in (
        ("POST", f"/v1/jobs/{theirs['job']}/cancel?tenant=lab"), ("DELETE", "/v1/endpoints/read?tenant=lab"),
        ("GET", f"/v1/jobs/{theirs['job']}/logs?tenant=lab"),
    ):  # fmt: skip
        assert gateway.ask(method, path, gateway.admin).status_code in {404, 405, 422}, path
