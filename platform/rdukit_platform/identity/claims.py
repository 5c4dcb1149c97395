"""Claims of an issuer about a user (pure): verify tokens, and derive an identity and roles in tenants.

Source: OpenID Connect Core 1.0, section 3.1.3.7 (verification), RFC 7636 (PKCE), RFC 8725 (permitted algorithms).
"""

import base64
import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from joserfc import jwt
from joserfc.errors import BadSignatureError, InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet

from rdukit.errors import InvalidArgument, PermissionDenied, Unauthenticated

#: Permitted signatures: by a key that only the issuer has. ``none`` and shared secrets are excluded.
ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512")
#: Largest difference between the clocks of issuer and platform, in seconds.
LEEWAY_S: Final = 60.0
#: Largest age in seconds of a login's ID token.
MAX_AGE_S: Final = 600.0
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


class KeyUnknown(Unauthenticated):
    """A token is signed by an unknown key; the issuer may have new ones."""


@dataclass(frozen=True, slots=True)
class ClaimedIdentity:
    """A user's identity, from the issuer's claims."""

    issuer: str
    subject: str
    #: Verified address in lower case; empty: there is no such address.
    email: str
    name: str
    groups: frozenset[str]


def check_issuer_url(url: str, what: str) -> str:
    """Return an address of the issuer if it is permitted: https, or on this machine.

    Raises:
        InvalidArgument: the URL is not permitted.
    """
    parts = urlsplit(url)
    is_here = parts.scheme == "http" and parts.hostname in _LOOPBACK
    if not (parts.hostname and (parts.scheme == "https" or is_here)) or parts.username or parts.fragment:
        raise InvalidArgument(f"{what} is {url[:200]!r}; expected https://…, or http:// on a loopback address")
    return url


def challenge_of(verifier: str) -> str:
    """Return the PKCE challenge (S256) of a verifier."""
    return base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()


def verify_id_token(
    text: str, keys: KeySet, *, issuer: str, client_id: str, nonce: str, now: float
) -> Mapping[str, Any]:
    """Verify an ID token, and return its claims.

    Raises:
        KeyUnknown: no known key has signed it.
        Unauthenticated: a check fails; the message says which.
    """
    claims = _decode(text, keys, "the issuer's ID token")
    if problem := find_problem(claims, issuer=issuer, client_id=client_id, nonce=nonce, now=now):
        raise Unauthenticated(f"the issuer's ID token is not valid: {problem}")
    return claims


def verify_bearer(text: str, keys: KeySet, *, issuer: str, audiences: Collection[str], now: float) -> Mapping[str, Any]:
    """Verify an access or ID token of the issuer in an API call, and return its claims.

    Raises:
        KeyUnknown: no known key has signed it.
        Unauthenticated: a check fails; the message says which.
    """
    claims = _decode(text, keys, "the token")
    if problem := find_bearer_problem(claims, issuer=issuer, audiences=audiences, now=now):
        raise Unauthenticated(f"the token is not valid: {problem}")
    return claims


def find_bearer_problem(claims: Mapping[str, Any], *, issuer: str, audiences: Collection[str], now: float) -> str:
    """Find the problem in a bearer token's claims; empty: no problem.

    Source: RFC 9068, section 4 (issuer, audience, expiry); RFC 8725, section 3.12 (tokens of another kind).
    """
    given, subject = claims.get("aud"), claims.get("sub")
    named = [given] if isinstance(given, str) else given if isinstance(given, list) else []
    ends, since = _read_time(claims, "exp"), _read_time(claims, "nbf")
    if claims.get("iss") != issuer:
        return f"it comes from another issuer than {issuer}"
    if not any(isinstance(one, str) and one in audiences for one in named):
        return f"it is for none of {', '.join(sorted(audiences))} (aud)"
    if not isinstance(subject, str) or not 0 < len(subject) <= 255:
        return "it has no subject (sub)"
    if ends is None or ends <= now - LEEWAY_S:
        return "it has expired (exp)"
    if "nbf" in claims and (since is None or since > now + LEEWAY_S):
        return "it is not valid yet (nbf)"
    return "it reports events and is not a user's token" if "events" in claims else ""


def find_problem(claims: Mapping[str, Any], *, issuer: str, client_id: str, nonce: str, now: float) -> str:
    """Find the problem in an ID token's claims; empty: no problem."""
    audience = claims.get("aud")
    audiences = [audience] if isinstance(audience, str) else audience if isinstance(audience, list) else []
    party, subject = claims.get("azp"), claims.get("sub")
    if claims.get("iss") != issuer:
        return f"it comes from another issuer than {issuer}"
    if client_id not in audiences:
        return f"it is not for {client_id!r} (aud)"
    if (len(audiences) > 1 or party is not None) and party != client_id:
        return f"it was issued to another party than {client_id!r} (azp)"
    if not isinstance(subject, str) or not 0 < len(subject) <= 255:
        return "it has no subject (sub)"
    ends, issued, since = (_read_time(claims, name) for name in ("exp", "iat", "nbf"))
    if ends is None or ends <= now - LEEWAY_S:
        return "it has expired (exp)"
    if issued is None or not now - MAX_AGE_S <= issued <= now + LEEWAY_S:
        return "it was not issued just now (iat)"
    if "nbf" in claims and (since is None or since > now + LEEWAY_S):
        return "it is not valid yet (nbf)"
    return "" if nonce and claims.get("nonce") == nonce else "it is not of this login (nonce)"


def read_identity(claims: Mapping[str, Any], groups_claim: str, *, trust_email: bool) -> ClaimedIdentity:
    """Read an identity from verified claims. ``trust_email``: an e-mail without a verification claim is verified."""
    email, verified = claims.get("email"), claims.get("email_verified", trust_email)
    is_known = isinstance(email, str) and len(email) <= 254 and verified in (True, "true")
    name = claims.get("name") or claims.get("preferred_username") or ""
    groups = claims.get(groups_claim)
    found = [groups] if isinstance(groups, str) else groups if isinstance(groups, list) else []
    return ClaimedIdentity(
        issuer=str(claims["iss"]),
        subject=str(claims["sub"]),
        email=str(email).strip().lower() if is_known else "",
        name="".join(c for c in str(name)[:128] if c.isprintable()),
        groups=frozenset(group for group in found if isinstance(group, str)),
    )


def check_domain(identity: ClaimedIdentity, allowed: Sequence[str]) -> None:
    """Refuse identities without a verified e-mail address of an allowed domain; an empty list allows all.

    Raises:
        PermissionDenied: the identity is not allowed.
    """
    if not allowed or is_of_domain(identity.email, allowed):
        return
    who = "the issuer says no verified e-mail address of this account" if not identity.email else identity.email
    raise PermissionDenied(f"{who}; only addresses of {', '.join(allowed)} may log in here (oidc.allowed_domains)")


def is_of_domain(email: str, allowed: Sequence[str]) -> bool:
    """Return whether an e-mail address, which may be empty, is of one of these domains (pure)."""
    _, mark, domain = email.rpartition("@")
    return bool(mark) and domain.lower() in allowed


def claimed_roles(groups: frozenset[str], table: Sequence[tuple[str, str, str]]) -> dict[str, str]:
    """Return the role in each tenant, from the first line of the table that names one of the groups."""
    roles: dict[str, str] = {}
    for group, tenant, role in table:
        if group in groups:
            roles.setdefault(tenant, role)
    return roles


def _decode(text: str, keys: KeySet, what: str) -> Mapping[str, Any]:
    try:
        return jwt.decode(text, keys, algorithms=ALGORITHMS).claims
    except (InvalidKeyIdError, BadSignatureError) as cause:
        raise KeyUnknown(f"{what} is not valid: it is not signed by the issuer's keys") from cause
    except (JoseError, ValueError, TypeError) as cause:
        raise Unauthenticated(f"{what} is not valid: {type(cause).__name__}") from cause


def _read_time(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
