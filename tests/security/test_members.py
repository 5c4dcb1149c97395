"""Members of a tenant: who manages whom, and that whoever is out has nothing left that opens a door."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from rdukit_platform.db.models import TokenRow
from rdukit_platform.tenants.service import find_tenant
from rdukit_platform.tenants.standing import choose_standing, find_standing
from rdukit_platform.tenants.tokens import create_token
from rdukit_platform.tenants.users import read_email
from support import shows
from support.platform.gateway import GatewayUnderTest, gateway_under_test
from support.platform.processes import short_folder

pytestmark = shows("members", "identity", "permissions", "audit")


@pytest.fixture(scope="module")
def gateway() -> Iterator[GatewayUnderTest]:
    with pytest.MonkeyPatch.context() as patch, short_folder() as folder:
        patch.setenv("RDUKIT_HOME", str(folder))
        patch.setenv("RDUKIT_OIDC_ISSUER", "https://login.example.com")
        with gateway_under_test() as running:
            for tenant in ("lab", "annex", "victim"):
                running.token(tenant, "read")
            yield running


@dataclass(frozen=True)
class Person:
    """A member with a token of its own, which allows what its role allowed when it was made."""

    gateway: GatewayUnderTest
    id: str
    token: str
    tenant: str

    def asks(self, method: str, path: str, **arguments: Any) -> int:
        return self.gateway.ask(method, path, self.token, **arguments).status_code


_NUMBERS = iter(range(1000))


def join(gateway: GatewayUnderTest, role: str, tenant: str = "lab", **token: Any) -> Person:
    """Invite somebody new, and make a token as a login would."""
    email = f"user{next(_NUMBERS)}@example.com"
    body = {"email": email, "role": role, "tenant": tenant}
    made = gateway.ask("POST", "/v1/members", gateway.admin, json=body)
    assert made.status_code == 201, made.text
    return own_token(gateway, made.json()["id"], tenant, **token)


def own_token(gateway: GatewayUnderTest, user: str, tenant: str, **more: Any) -> Person:
    now = gateway.platform.clock.now()
    with gateway.platform.database.write() as session:
        row = find_tenant(session, tenant)
        standing = row and find_standing(session, user, row.id)
        assert row is not None and standing is not None
        _, text = create_token(session, row.id, "t", sorted(standing.scopes), now, user_id=user, **more)
    return Person(gateway, user, text, tenant)


def test_a_member_does_what_its_role_allows_now(gateway: GatewayUnderTest) -> None:
    ada = join(gateway, "ml-engineer")
    assert (ada.asks("GET", "/v1/jobs"), ada.asks("POST", "/v1/jobs")) == (200, 400)
    me = gateway.ask("GET", "/v1/me", ada.token).json()
    assert (me["user"]["role"], me["user"]["tenants"]) == ("ml-engineer", ["lab"])
    changed = gateway.ask("PATCH", f"/v1/members/{ada.id}?tenant=lab", gateway.admin, json={"role": "viewer"})
    assert changed.json()["role"] == "viewer"
    assert (ada.asks("GET", "/v1/jobs"), ada.asks("POST", "/v1/jobs")) == (200, 403)
    entries = gateway.entries(gateway.admin, "?action=member.role")
    assert entries[0]["detail"] == f"{me['user']['email']} from ml-engineer to viewer"


def test_nobody_is_invited_where_nobody_can_log_in(gateway: GatewayUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RDUKIT_OIDC_ISSUER")
    body = {"email": "eve@example.com", "role": "viewer"}
    status, said = gateway.refused("POST", "/v1/members", gateway.admin, json=body)
    assert status == 409 and "by which users log in, is not set" in said and "rdukit token create" in said


def test_a_raised_role_gives_a_token_no_more_than_it_was_made_with(gateway: GatewayUnderTest) -> None:
    ada = join(gateway, "viewer")
    gateway.ask("PATCH", f"/v1/members/{ada.id}?tenant=lab", gateway.admin, json={"role": "ml-engineer"})
    assert ada.asks("POST", "/v1/jobs") == 403


def test_removal_ends_the_tokens_of_that_tenant_and_what_they_made(gateway: GatewayUnderTest) -> None:
    ada = join(gateway, "data-scientist")
    gateway.ask("POST", "/v1/members", gateway.admin, json={
        "email": gateway.ask("GET", "/v1/me", ada.token).json()["user"]["email"], "role": "viewer", "tenant": "annex",
    })  # fmt: skip
    there = own_token(gateway, ada.id, "annex")
    made = gateway.ask("POST", "/v1/tokens", ada.token, json={"scopes": ["read"]}).json()["token"]
    assert gateway.ask("GET", "/v1/jobs", made).status_code == 200
    assert gateway.ask("DELETE", f"/v1/members/{ada.id}?tenant=lab", gateway.admin).status_code == 200
    assert ada.asks("GET", "/v1/me") == 401
    assert gateway.ask("GET", "/v1/me", made).status_code == 401
    assert there.asks("GET", "/v1/me") == 200
    back = {"email": gateway.ask("GET", "/v1/me", there.token).json()["user"]["email"], "role": "viewer"}
    assert gateway.ask("POST", "/v1/members", gateway.admin, json=back | {"tenant": "lab"}).status_code == 201
    assert ada.asks("GET", "/v1/me") == 401, "what has ended stays ended"


def test_disabling_ends_all_and_enabling_revives_nothing(gateway: GatewayUnderTest) -> None:
    ada = join(gateway, "viewer")
    assert gateway.ask("PATCH", f"/v1/users/{ada.id}", gateway.admin, json={"disabled": True}).status_code == 200
    assert ada.asks("GET", "/v1/me") == 401
    gateway.ask("PATCH", f"/v1/users/{ada.id}", gateway.admin, json={"disabled": False})
    assert ada.asks("GET", "/v1/me") == 401
    assert own_token(gateway, ada.id, "lab").asks("GET", "/v1/me") == 200


@pytest.mark.parametrize("role", ["data-scientist", "ml-engineer", "viewer"])
def test_who_lacks_the_scope_manages_nobody(gateway: GatewayUnderTest, role: str) -> None:
    ada, bob = join(gateway, role), join(gateway, "viewer")
    assert ada.asks("GET", "/v1/members") == 200
    assert ada.asks("POST", "/v1/members", json={"email": "x@example.com", "role": "viewer"}) == 403
    assert ada.asks("PATCH", f"/v1/members/{ada.id}", json={"role": "tenant-admin"}) == 403
    assert ada.asks("DELETE", f"/v1/members/{bob.id}") == 403


def test_a_tenant_admin_manages_its_own_tenant_and_no_other(gateway: GatewayUnderTest) -> None:
    ada, other = join(gateway, "tenant-admin"), join(gateway, "viewer", "victim")
    body = {"email": "new@example.com", "role": "tenant-admin"}
    assert ada.asks("POST", "/v1/members", json=body) == 201
    assert ada.asks("POST", "/v1/members", json=body) == 409
    for method, path, given in [
        ("POST", "/v1/members", body | {"tenant": "victim"}),
        ("GET", "/v1/members?tenant=victim", None),
        ("PATCH", f"/v1/members/{other.id}?tenant=victim", {"role": "viewer"}),
        ("PATCH", f"/v1/members/{other.id}", {"role": "viewer"}),
        ("DELETE", f"/v1/members/{other.id}?tenant=victim", None),
        ("DELETE", f"/v1/members/{other.id}", None),
    ]:
        assert ada.asks(method, path, json=given) == 404, path
    assert ada.asks("POST", "/v1/members", json={"email": "x@example.com", "role": "admin"}) == 400
    assert ada.asks("PATCH", f"/v1/users/{ada.id}", json={"admin": True}) == 403
    assert other.asks("GET", "/v1/me") == 200


def test_a_narrow_token_of_a_tenant_admin_gives_no_more_than_it_has(gateway: GatewayUnderTest) -> None:
    ada = join(gateway, "tenant-admin")
    narrow = gateway.ask("POST", "/v1/tokens", ada.token, json={"scopes": ["read", "members"]}).json()["token"]
    code, said = gateway.refused("POST", "/v1/members", narrow, json={"email": "x@y.z", "role": "ml-engineer"})
    assert (code, "you cannot give scopes that you lack" in said) == (403, True)


def test_an_organisations_administrator_manages_its_tenants_until_it_is_none(gateway: GatewayUnderTest) -> None:
    def change(method: str, path: str, **arguments: Any) -> Any:
        answer = gateway.ask(method, f"/v1/organisations{path}", gateway.admin, **arguments)
        assert answer.status_code in {200, 201}, answer.text
        return answer.json()

    change("POST", "", json={"name": "acme"})
    change("PUT", "/acme/tenants/lab")
    assert [t["name"] for t in change("PUT", "/acme/tenants/annex")["tenants"]] == ["annex", "lab"]
    ada = join(gateway, "viewer", "victim")
    email = gateway.ask("GET", "/v1/me", ada.token).json()["user"]["email"]
    assert change("PUT", f"/acme/admins/{email}")["admins"] == [email]
    boss = own_token(gateway, ada.id, "annex")
    assert boss.asks("POST", "/v1/members", json={"email": "n1@example.com", "role": "viewer"}) == 201
    assert boss.asks("POST", "/v1/members", json={"email": "n1@example.com", "role": "viewer", "tenant": "lab"}) == 201
    assert (
        boss.asks("POST", "/v1/members", json={"email": "n1@example.com", "role": "viewer", "tenant": "victim"}) == 404
    )
    listed = gateway.ask("GET", "/v1/members?tenant=lab", boss.token).json()["members"]
    assert [(m["role"], m["by"]) for m in listed if m["id"] == ada.id] == [("tenant-admin", "organisation")]
    assert boss.asks("PATCH", f"/v1/members/{ada.id}", json={"role": "viewer"}) == 409
    change("DELETE", f"/acme/admins/{email}")
    assert (boss.asks("GET", "/v1/me"), ada.asks("GET", "/v1/me")) == (401, 200)


def test_a_users_own_token_is_given_to_nobody_else(gateway: GatewayUnderTest) -> None:
    ada, bob = join(gateway, "viewer"), join(gateway, "tenant-admin")
    row = gateway.ask("GET", "/v1/me", ada.token).json()["token"]
    assert bob.asks("POST", f"/v1/tokens/{row}/rotate") == 403
    assert gateway.ask("POST", f"/v1/tokens/{row}/rotate", gateway.admin).status_code == 403
    assert bob.asks("DELETE", f"/v1/tokens/{row}") == 200
    assert ada.asks("GET", "/v1/me") == 401


def test_a_users_rotated_token_is_still_the_users_own(gateway: GatewayUnderTest) -> None:
    ada = join(gateway, "data-scientist")
    row = gateway.ask("GET", "/v1/me", ada.token).json()["token"]
    rotated = gateway.ask("POST", f"/v1/tokens/{row}/rotate", ada.token).json()["token"]
    again = Person(gateway, ada.id, rotated, "lab")
    gateway.ask("PATCH", f"/v1/members/{ada.id}?tenant=lab", gateway.admin, json={"role": "viewer"})
    assert (again.asks("GET", "/v1/jobs"), again.asks("POST", "/v1/jobs")) == (200, 403)
    assert gateway.ask("DELETE", f"/v1/members/{ada.id}?tenant=lab", gateway.admin).status_code == 200
    assert again.asks("GET", "/v1/me") == 401


def test_the_audit_log_says_which_user_did_it(gateway: GatewayUnderTest) -> None:
    ada = join(gateway, "tenant-admin", "annex")
    ada.asks("POST", "/v1/members", json={"email": "n2@example.com", "role": "viewer"})
    entry = gateway.entries(ada.token, "?action=member.invite")[0]
    assert entry["user"] == gateway.ask("GET", "/v1/me", ada.token).json()["user"]["email"]
    assert entry["detail"] == "n2@example.com as viewer"


def test_what_a_user_is_in_a_tenant_is_the_most_that_says_so() -> None:
    def role(*, is_admin: bool = False, administers: bool = False, role: str | None = None) -> str | None:
        found = choose_standing(is_admin=is_admin, administers=administers, role=role)
        return found and found.role

    assert role() is None and role(role="gone") is None
    assert role(role="viewer") == "viewer"
    assert role(role="viewer", administers=True) == "tenant-admin"
    assert role(is_admin=True, role="viewer") == "admin"


@pytest.mark.parametrize("text", ["", "a", "a@", "@b", "a b@c", "a\n@b", "a@b@c", f"a@{'b' * 300}", "a@\u0430.com"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(Exception, match="not an e-mail address"):
        read_email(text)


def test_an_address_is_kept_in_lower_case() -> None:
    assert read_email(" Ada@Example.COM ") == "ada@example.com"


def test_sessions_are_no_tokens_in_lists(gateway: GatewayUnderTest) -> None:
    ada = join(gateway, "tenant-admin", "victim")
    with gateway.platform.database.write() as session:
        row = session.get_one(TokenRow, gateway.ask("GET", "/v1/me", ada.token).json()["token"])
        row.is_session = True
    assert row.id not in {t["id"] for t in gateway.ask("GET", "/v1/tokens", ada.token).json()["tokens"]}
    assert ada.asks("POST", f"/v1/tokens/{row.id}/rotate") == 409
