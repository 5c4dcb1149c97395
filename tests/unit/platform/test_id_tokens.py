"""What an issuer says is believed only if everything about it is right."""

import base64
import hmac
import json
from collections.abc import Callable
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, RSAKey

from rdukit.errors import InvalidArgument, PermissionDenied, Unauthenticated
from rdukit_platform.identity.claims import (
    ClaimedIdentity,
    KeyUnknown,
    challenge_of,
    check_domain,
    check_issuer_url,
    claimed_roles,
    read_identity,
    verify_bearer,
    verify_id_token,
)
from rdukit_platform.identity.settings import read_claim_roles
from support import shows

pytestmark = shows("identity")

NOW = 1_800_000_000.0
ISSUER = "https://issuer.example"
KEY = RSAKey.generate_key(2048, {"kid": "one", "use": "sig"})
OTHER = RSAKey.generate_key(2048, {"kid": "two", "use": "sig"})
KEYS = KeySet.import_key_set({"keys": [KEY.as_dict(private=False)]})
CLAIMS: dict[str, Any] = {
    "iss": ISSUER, "aud": "rdukit", "sub": "ada", "nonce": "n", "iat": NOW - 1, "exp": NOW + 300,
}  # fmt: skip


def sign(key: Any = KEY, algorithm: str = "RS256", kid: str | None = "one", **changes: Any) -> str:
    claims = {name: value for name, value in (CLAIMS | changes).items() if value is not None}
    return jwt.encode({"alg": algorithm} | ({"kid": kid} if kid else {}), claims, key, algorithms=[algorithm])


def verify(text: str, keys: KeySet = KEYS) -> Any:
    return verify_id_token(text, keys, issuer=ISSUER, client_id="rdukit", nonce="n", now=NOW)


def unsigned(alg: str = "none") -> str:
    parts = [json.dumps(part).encode() for part in ({"alg": alg, "kid": "one"}, CLAIMS)]
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts) + "."


def public_key_as_secret() -> str:
    text = unsigned("HS256").rstrip(".")
    digest = hmac.digest(KEY.as_pem(private=False), text.encode(), "sha256")
    return f"{text}.{base64.urlsafe_b64encode(digest).decode().rstrip('=')}"


def tampered() -> str:
    head, _, signature = sign().split(".")
    body = base64.urlsafe_b64encode(json.dumps(CLAIMS | {"sub": "root"}).encode()).decode().rstrip("=")
    return f"{head}.{body}.{signature}"


def test_a_right_token_is_believed() -> None:
    assert verify(sign())["sub"] == "ada"
    assert verify(sign(aud=["rdukit", "x"], azp="rdukit"))["sub"] == "ada"
    curve = ECKey.generate_key("P-256", {"kid": "ec"})
    assert verify(sign(curve, "ES256", "ec"), KeySet([curve]))["sub"] == "ada"
    assert verify(sign(kid=None))["sub"] == "ada", "an issuer with one key need not name it"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"aud": "other"}, "aud"),
        ({"aud": ["other", "x"]}, "aud"),
        ({"aud": None}, "aud"),
        ({"aud": ["rdukit", "x"]}, "azp"),
        ({"azp": "other"}, "azp"),
        ({"iss": "https://evil.example"}, "another issuer"),
        ({"iss": f"{ISSUER}/"}, "another issuer"),
        ({"iss": None}, "another issuer"),
        ({"exp": NOW - 61}, "expired"),
        ({"exp": None}, "expired"),
        ({"exp": True}, "expired"),
        ({"exp": "9999999999"}, "expired"),
        ({"iat": NOW - 3600}, "iat"),
        ({"iat": NOW + 3600}, "iat"),
        ({"iat": None}, "iat"),
        ({"nbf": NOW + 3600}, "nbf"),
        ({"nonce": "of another login"}, "nonce"),
        ({"nonce": None}, "nonce"),
        ({"sub": None}, "sub"),
        ({"sub": ""}, "sub"),
        ({"sub": "s" * 256}, "sub"),
        ({"sub": 7}, "sub"),
    ],
)
def test_a_claim_that_is_wrong_is_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(Unauthenticated, match=why):
        verify(sign(**changes))


@pytest.mark.parametrize(
    "forge",
    [
        unsigned,
        lambda: unsigned("None"),
        lambda: unsigned("RS256"),
        public_key_as_secret,
        tampered,
        lambda: sign(OTHER, kid="one"),
        lambda: "",
        lambda: "a.b",
        lambda: "a.b.c",
        lambda: sign() + "x",
    ],
)
def test_a_forged_token_is_refused(forge: Callable[[], str]) -> None:
    with pytest.raises(Unauthenticated, match="not valid"):
        verify(forge())


def test_a_token_by_an_unknown_key_asks_for_the_issuers_new_keys() -> None:
    with pytest.raises(KeyUnknown):
        verify(sign(OTHER, kid="two"))
    rotated = KeySet.import_key_set({"keys": [KEY.as_dict(private=False), OTHER.as_dict(private=False)]})
    assert verify(sign(OTHER, kid="two"), rotated)["sub"] == "ada"


def test_the_challenge_is_that_of_the_rfc() -> None:
    """RFC 7636, appendix B."""
    verifier = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"
    assert challenge_of(verifier) == "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"


@pytest.mark.parametrize("url", [
    "http://issuer.example", "ftp://issuer.example", "https://", "", "https://a@b", "http://127.0.0.1.evil.example",
    "http://169.254.169.254/", "https://issuer.example#x", "file:///etc/passwd",
])  # fmt: skip
def test_an_issuer_without_tls_is_asked_on_this_machine_only(url: str) -> None:
    with pytest.raises(InvalidArgument, match="https"):
        check_issuer_url(url, "it")


def test_an_address_counts_only_if_the_issuer_vouches_for_it() -> None:
    def email(*, trust: bool = False, **claims: object) -> str:
        found = read_identity({"iss": ISSUER, "sub": "s", "email": "Ada@Example.com", **claims}, "g", trust_email=trust)
        return found.email

    assert email(email_verified=True) == "ada@example.com"
    assert email() == email(email_verified=False) == email(email_verified=False, trust=True) == ""
    assert email(trust=True) == "ada@example.com"
    assert email(email_verified=True, email=["x"]) == ""


def test_groups_give_the_first_role_that_fits() -> None:
    table = read_claim_roles("ml=lab:ml-engineer, all=lab:viewer,all=annex:viewer")
    assert claimed_roles(frozenset({"all", "ml"}), table) == {"lab": "ml-engineer", "annex": "viewer"}
    assert claimed_roles(frozenset({"none"}), table) == {}
    for wrong in ("ml", "ml=lab", "=lab:viewer", "ml=:viewer", "ml=lab:"):
        with pytest.raises(ValueError, match="GROUP=TENANT:ROLE"):
            read_claim_roles(wrong)


def test_only_allowed_domains_log_in() -> None:
    def who(email: str) -> ClaimedIdentity:
        return ClaimedIdentity(ISSUER, "s", email, "", frozenset())

    check_domain(who(""), [])
    check_domain(who("a@example.com"), ["example.com"])
    for email in ("", "a@evil.com", "a@example.com.evil.com", "a@sub.example.com", "example.com"):
        with pytest.raises(PermissionDenied, match=r"only addresses of example\.com may log in"):
            check_domain(who(email), ["example.com"])


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"aud": "other"}, "for none of api, rdukit"),
        ({"aud": ["other", 7]}, "for none of api, rdukit"),
        ({"aud": None}, "for none of api, rdukit"),
        ({"iss": "https://other.example"}, "another issuer"),
        ({"sub": None}, "no subject"),
        ({"exp": NOW - 61}, "has expired"),
        ({"exp": None}, "has expired"),
        ({"exp": "never"}, "has expired"),
        ({"nbf": NOW + 61}, "not valid yet"),
        ({"events": {"http://schemas.openid.net/event/backchannel-logout": {}}}, "reports events"),
    ],
)
def test_a_bearer_token_is_refused_for_what_is_wrong_with_it(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(Unauthenticated, match=problem):
        verify_bearer(sign(**changes), KEYS, issuer=ISSUER, audiences={"rdukit", "api"}, now=NOW)


def test_a_bearer_token_needs_no_nonce_and_may_be_an_hour_old() -> None:
    text = sign(aud=["account", "api"], nonce=None, azp="ci", iat=NOW - 3600)
    assert verify_bearer(text, KEYS, issuer=ISSUER, audiences={"api"}, now=NOW)["sub"] == "ada"
    for wrong in (unsigned(), public_key_as_secret(), tampered(), sign(OTHER)):
        with pytest.raises(Unauthenticated):
            verify_bearer(wrong, KEYS, issuer=ISSUER, audiences={"rdukit"}, now=NOW)
