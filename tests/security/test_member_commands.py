"""``rdukit user`` and ``rdukit org``: members of a tenant and organisations, from a shell."""

import json
from collections.abc import Iterator

import pytest

from support import shows
from support.platform.gateway import GatewayUnderTest, gateway_under_test
from support.platform.processes import run_rdukit, short_folder

pytestmark = shows("user", "org", "members", "identity")


@pytest.fixture(scope="module")
def gateway() -> Iterator[GatewayUnderTest]:
    """A gateway whose address and first token the commands find in the home."""
    with pytest.MonkeyPatch.context() as patch, short_folder() as folder:
        patch.setenv("RDUKIT_HOME", str(folder))
        patch.setenv("RDUKIT_OIDC_ISSUER", "https://login.example.com")
        with gateway_under_test() as running:
            patch.setenv("RDUKIT_GATEWAY_URL", running.url)
            for tenant in ("lab", "annex"):
                running.token(tenant, "read")
            yield running


def test_a_member_is_invited_gets_another_role_is_disabled_and_removed(gateway: GatewayUnderTest) -> None:
    assert gateway.url
    run_rdukit("user", "invite", "ada@example.com", "--role", "viewer", "--tenant", "lab")
    run_rdukit("user", "role", "ada@example.com", "ml-engineer", "--tenant", "lab")
    (found,) = json.loads(run_rdukit("user", "list", "--tenant", "lab", "--json"))["members"]
    assert (found["email"], found["role"]) == ("ada@example.com", "ml-engineer")
    run_rdukit("user", "disable", "ada@example.com")
    assert "ada@example.com" in run_rdukit("user", "list", "--all")
    run_rdukit("user", "enable", "ada@example.com")
    run_rdukit("user", "remove", "ada@example.com", "--tenant", "lab")
    assert json.loads(run_rdukit("user", "list", "--tenant", "lab", "--json"))["members"] == []


def test_an_organisation_groups_tenants_and_has_administrators(gateway: GatewayUnderTest) -> None:
    run_rdukit("user", "invite", "grace@example.com", "--role", "viewer", "--tenant", "annex")
    run_rdukit("org", "create", "works")
    run_rdukit("org", "add-tenant", "works", "annex")
    run_rdukit("org", "add-admin", "works", "grace@example.com")
    shown = run_rdukit("org", "list")
    assert "works" in shown and "annex" in shown and "grace@example.com" in shown
    run_rdukit("org", "remove-admin", "works", "grace@example.com")
    run_rdukit("org", "remove-tenant", "works", "annex")
    shown = run_rdukit("org", "list")
    assert "annex" not in shown and "grace@example.com" not in shown


def test_a_mistake_is_one_line_with_what_is_expected(gateway: GatewayUnderTest) -> None:
    assert "viewer" in run_rdukit("user", "invite", "a@example.com", "--role", "king", status=2)
    assert "rdukit user list" in run_rdukit("user", "role", "nobody@example.com", "viewer", status=3)
    assert "'none'" in run_rdukit("org", "add-tenant", "none", "lab", status=3)
