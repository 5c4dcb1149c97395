"""Settings of logins."""

from typing import Final

from rdukit.settings import Setting, parse_bool, resolve


def read_claim_roles(text: str) -> list[tuple[str, str, str]]:
    """Parse comma-separated ``GROUP=TENANT:ROLE``, in order of precedence (pure).

    Raises:
        ValueError: the text has another form.
    """
    found = []
    for word in filter(None, map(str.strip, text.split(","))):
        group, mark, right = word.rpartition("=")
        tenant, colon, role = right.partition(":")
        if not (mark and colon and group.strip() and tenant.strip() and role.strip()):
            raise ValueError(f"{word!r} is not GROUP=TENANT:ROLE")
        found.append((group.strip(), tenant.strip(), role.strip()))
    return found


def parse_claim_roles(text: str) -> str:
    """Return the text if ``read_claim_roles`` accepts it."""
    read_claim_roles(text)
    return text


def parse_days(text: str) -> float:
    """Parse a number of days, 0 or more."""
    days = float(text)
    if not 0 <= days < float("inf"):
        raise ValueError(f"{text} is less than 0")
    return days


OIDC_ISSUER: Final = Setting(
    "oidc.issuer",
    "",
    "OpenID Connect issuer for logins of users; https, or on a loopback address; empty: none.",
    str,
)
OIDC_CLIENT_ID: Final = Setting("oidc.client_id", "", "Client id of this platform at the issuer.", str)
OIDC_CLIENT_SECRET_FILE: Final = Setting(
    "oidc.client_secret_file", "", "File with the secret of `oidc.client_id`; empty: a public client.", str
)
OIDC_SCOPES: Final = Setting("oidc.scopes", "openid email profile", "Scopes requested from the issuer.", str)
OIDC_GROUPS_CLAIM: Final = Setting("oidc.groups_claim", "groups", "Claim that contains a user's groups.", str)
OIDC_CLAIM_ROLES: Final = Setting(
    "oidc.claim_roles", "",
    "Roles for groups: comma-separated GROUP=TENANT:ROLE; the first match for a tenant applies.",
    parse_claim_roles,
)  # fmt: skip
OIDC_ALLOWED_DOMAINS: Final = Setting(
    "oidc.allowed_domains", "", "Comma-separated domains of e-mail addresses that may log in; empty: all.", str
)
OIDC_TRUST_EMAIL: Final = Setting(
    "oidc.trust_email", False,
    "Whether e-mail addresses without a verification claim count as verified; only for issuers whose users cannot "
    "choose addresses.",
    parse_bool,
)  # fmt: skip
OIDC_BEARER_AUDIENCES: Final = Setting(
    "oidc.bearer_audiences", "",
    "Comma-separated audiences of issuer tokens that API calls may use, such as `oidc.client_id`; empty: none.",
    str,
)  # fmt: skip
OIDC_TLS_CA: Final = Setting(
    "oidc.tls_ca", "", "File with the certificate authority of the issuer; default: the system's.", str
)
LOGIN_RATE: Final = Setting(
    "login.rate", 60, "Logins per minute that one address may begin, successful or not; 0: no limit.", int
)
LOGIN_DAYS: Final = Setting(
    "login.days", 30.0, "Lifetime in days of a token of rdukit login; 0: as long as token.max_days allows.",
    parse_days,
)  # fmt: skip


def read_allowed_domains() -> list[str]:
    """Read the domains whose e-mail addresses may log in; an empty list allows all."""
    return [domain.strip().lower() for domain in resolve(OIDC_ALLOWED_DOMAINS).split(",") if domain.strip()]
