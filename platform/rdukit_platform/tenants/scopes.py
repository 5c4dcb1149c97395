"""Scopes and lifetimes of tokens (pure)."""

from collections.abc import Iterable, Mapping
from typing import Final

from rdukit.errors import InvalidArgument, PermissionDenied

READ: Final = "read"
WRITE: Final = "write"
ADMIN: Final = "admin"
JOBS_READ: Final = "jobs:read"
JOBS_WRITE: Final = "jobs:write"
ARTIFACTS_READ: Final = "artifacts:read"
ARTIFACTS_WRITE: Final = "artifacts:write"
BOXES_READ: Final = "boxes:read"
BOXES_WRITE: Final = "boxes:write"
ENDPOINTS_READ: Final = "endpoints:read"
ENDPOINTS_WRITE: Final = "endpoints:write"
ENDPOINTS_CALL: Final = "endpoints:call"
TOKENS: Final = "tokens"
MEMBERS: Final = "members"
METRICS: Final = "metrics"

#: Meaning of each scope; the manual shows these lines.
MEANINGS: Final[Mapping[str, str]] = {
    READ: "see everything of the tenant: jobs, artifacts, boxes, experts, endpoints, nodes, audit log",
    WRITE: "submit and cancel jobs, add, pin and delete artifacts, install boxes, promote experts, run and call "
    "endpoints",
    ADMIN: "everything, of all tenants",
    JOBS_READ: "see jobs, pipelines, sweeps, their events and logs",
    JOBS_WRITE: "submit and cancel jobs, pipelines and sweeps",
    ARTIFACTS_READ: "list and fetch artifacts",
    ARTIFACTS_WRITE: "add, pin and delete artifacts",
    BOXES_READ: "see the catalog, installed boxes and experts",
    BOXES_WRITE: "install and uninstall boxes, promote and deprecate experts",
    ENDPOINTS_READ: "see endpoints, their replicas and usage",
    ENDPOINTS_WRITE: "create, change and delete endpoints",
    ENDPOINTS_CALL: "call endpoints, and nothing else",
    TOKENS: "list, create, rotate and revoke the tenant's tokens, within its own scopes",
    MEMBERS: "invite and remove the tenant's members, and choose their roles, within its own scopes",
    METRICS: "read the metrics and nodes of the whole platform",
}
SCOPES: Final = tuple(MEANINGS)

_INCLUDED: Final[Mapping[str, frozenset[str]]] = {
    READ: frozenset({JOBS_READ, ARTIFACTS_READ, BOXES_READ, ENDPOINTS_READ}),
    WRITE: frozenset({JOBS_WRITE, ARTIFACTS_WRITE, BOXES_WRITE, ENDPOINTS_WRITE, ENDPOINTS_CALL}),
    ADMIN: frozenset(SCOPES),
}


def all_of(scopes: Iterable[str]) -> frozenset[str]:
    """Return ``scopes`` and all that they include."""
    own = frozenset(scopes)
    return own.union(*(_INCLUDED.get(scope, frozenset()) for scope in own))


def allows(scopes: Iterable[str], needed: str) -> bool:
    """Return whether ``scopes`` include the scope ``needed``."""
    return needed in all_of(scopes)


def name_scopes(scopes: Iterable[str]) -> str:
    """Return ``scopes`` as text: in order, without those that another includes."""
    own = frozenset(scopes)
    included = frozenset().union(*(_INCLUDED[scope] - {scope} for scope in own if scope in _INCLUDED))
    return ", ".join(scope for scope in SCOPES if scope in own - included) or "none"


def restrict(scopes: Iterable[str], bound: Iterable[str]) -> frozenset[str]:
    """Return the scopes in both ``scopes`` and ``bound``."""
    return all_of(scopes) & all_of(bound)


def may_give(own: Iterable[str], wanted: Iterable[str]) -> bool:
    """Return whether a token with ``own`` may grant ``wanted``: it must have all of them."""
    return all_of(wanted) <= all_of(own)


DAY_S: Final = 86400.0


def choose_end(now: float, asked_s: float | None, makers_end: float | None, max_s: float) -> float | None:
    """Choose the end of a new token: as requested, otherwise its maker's end within the longest lifetime.

    ``makers_end``: latest permitted end. ``max_s``: longest lifetime; 0: no limit.

    Raises:
        InvalidArgument: the requested lifetime exceeds ``max_s``.
        PermissionDenied: it would outlive its maker.
    """
    if asked_s is None:
        ends = [end for end in (makers_end, now + max_s if max_s else None) if end is not None]
        return min(ends) if ends else None
    if asked_s <= 0 or (max_s and asked_s > max_s):
        legal = f"up to {max_s:.0f} (token.max_days)" if max_s else "more than 0"
        raise InvalidArgument(f"a lifetime of {asked_s:g} s was requested; expected {legal}")
    if makers_end is not None and now + asked_s > makers_end:
        left = max(makers_end - now, 0.0)
        raise PermissionDenied(
            f"this token ends in {left:.0f} s, and tokens that it creates cannot end later; request a shorter lifetime"
        )
    return now + asked_s


def choose_next_end(now: float, created_at: float, expires_at: float | None, max_s: float) -> float | None:
    """Choose the end of a rotated token: the same lifetime again, at most ``max_s``."""
    lives = [life for life in (expires_at and expires_at - created_at, max_s) if life]
    return now + min(lives) if lives else None


def end_of_old(now: float, expires_at: float | None, grace_s: float) -> float:
    """Choose the end of a token that was rotated."""
    return now + grace_s if expires_at is None else min(expires_at, now + grace_s)


def is_over(now: float, revoked_at: float | None, expires_at: float | None, blocked_at: float | None = None) -> str:
    """Return why a token is not valid now; empty: it is valid."""
    if revoked_at is not None:
        return "was revoked"
    if blocked_at is not None:
        return "is blocked by an administrator"
    return "has expired" if expires_at is not None and expires_at <= now else ""
