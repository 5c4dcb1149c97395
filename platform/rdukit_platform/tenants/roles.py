"""Roles (pure): names for sets of scopes. Four are the stack's personas, ``viewer`` and ``tenant-admin`` are ours.

Source: the overview of the software stack (May 2024) shows four users of it. "ML Engineer: author own models to add to
the ModelZoo. Data Scientist: finetunes existing models to create new experts; administers access and which experts are
available. App Developer: composes experts together to build real world solution. Business User: often a budgetary
decision maker; wants to see outcomes." It names no permissions: the roles' scopes are ours.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from rdukit.errors import InvalidArgument, PermissionDenied
from rdukit_platform.tenants.scopes import (
    ARTIFACTS_WRITE,
    BOXES_WRITE,
    ENDPOINTS_CALL,
    ENDPOINTS_WRITE,
    JOBS_WRITE,
    MEMBERS,
    READ,
    TOKENS,
    WRITE,
    allows,
    name_scopes,
)

#: Role that manages members; administrators of an organisation have it in each of its tenants.
TENANT_ADMIN: Final = "tenant-admin"


@dataclass(frozen=True, slots=True)
class Role:
    """A role: its scopes, and its purpose in a sentence."""

    name: str
    title: str
    scopes: tuple[str, ...]
    #: Purpose of the role, from the stack's documents or ours.
    purpose: str


ROLES: Final = {
    role.name: role
    for role in (
        Role(
            "ml-engineer", "ML Engineer", (READ, JOBS_WRITE, ARTIFACTS_WRITE, BOXES_WRITE),
            "develops models: runs jobs, adds artifacts, installs boxes",
        ),
        Role(
            "data-scientist", "Data Scientist", (READ, WRITE, TOKENS),
            "fine-tunes models to new experts, and administers access and which experts are available",
        ),
        Role(
            "app-developer", "App Developer", (READ, ENDPOINTS_WRITE, ENDPOINTS_CALL),
            "composes experts: creates endpoints and calls them",
        ),
        Role("business-user", "Business User", (READ, ENDPOINTS_CALL), "sees outcomes, and tries endpoints"),
        Role("viewer", "Viewer", (READ,), "sees everything of the tenant, and changes nothing"),
        Role(
            TENANT_ADMIN, "Tenant Administrator", (READ, WRITE, TOKENS, MEMBERS),
            "does everything in the tenant, and manages its members",
        ),
    )
}  # fmt: skip


def get_role(name: str) -> Role:
    """Return the role of this name.

    Raises:
        InvalidArgument: there is no such role.
    """
    if name not in ROLES:
        raise InvalidArgument(f"there is no role {name[:64]!r}; expected {', '.join(ROLES)}", legal=list(ROLES))
    return ROLES[name]


def lacks_scope(scopes: Iterable[str], needed: str, alternatives: Iterable[Iterable[str]] = ()) -> PermissionDenied:
    """Return the error for a token that lacks the scope ``needed``; it names the roles that have it.

    ``alternatives``: sets of scopes, each of which suffices; without them ``needed`` is one scope.
    """
    enough = [frozenset(each) for each in alternatives] or [frozenset({needed})]
    roles = [
        role.name for role in ROLES.values() if any(all(allows(role.scopes, one) for one in each) for each in enough)
    ]
    having = f"; roles that have it: {', '.join(roles)}" if roles else ""
    return PermissionDenied(f"this needs the scope {needed}, and the token has: {name_scopes(scopes)}{having}")


def choose_scopes(role: str | None, scopes: Sequence[str] | None) -> list[str]:
    """Choose the scopes of a new token: those of its role, or those named, or ``read`` and ``write``.

    Raises:
        InvalidArgument: both a role and scopes are given, or there is no such role.
    """
    if role is None:
        return [READ, WRITE] if scopes is None else list(scopes)
    if scopes is not None:
        raise InvalidArgument(f"role {role[:64]!r} and scopes cannot be combined; give one of them")
    return list(get_role(role).scopes)
