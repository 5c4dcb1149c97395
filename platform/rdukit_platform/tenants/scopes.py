"""What a token allows (pure): the scopes, what each includes, and who may give which."""

from collections.abc import Iterable, Mapping
from typing import Final

READ: Final = "read"
WRITE: Final = "write"
ADMIN: Final = "admin"
JOBS_READ: Final = "jobs:read"
JOBS_WRITE: Final = "jobs:write"
ARTIFACTS_READ: Final = "artifacts:read"
ARTIFACTS_WRITE: Final = "artifacts:write"
BOXES_READ: Final = "boxes:read"
BOXES_WRITE: Final = "boxes:write"
TOKENS: Final = "tokens"
METRICS: Final = "metrics"

#: Each scope and what it lets its holder do; the manual shows these lines.
MEANINGS: Final[Mapping[str, str]] = {
    READ: "see everything of the tenant: jobs, artifacts, boxes, nodes, audit log",
    WRITE: "submit and cancel jobs, add artifacts, install boxes",
    ADMIN: "everything, of all tenants",
    JOBS_READ: "see jobs, pipelines, their events and logs",
    JOBS_WRITE: "submit and cancel jobs and pipelines",
    ARTIFACTS_READ: "list and fetch artifacts",
    ARTIFACTS_WRITE: "add artifacts",
    BOXES_READ: "see the catalog and installed boxes",
    BOXES_WRITE: "install and uninstall boxes",
    TOKENS: "list, make, rotate and revoke the tenant's tokens, within its own scopes",
    METRICS: "read the metrics and nodes of the whole platform",
}
SCOPES: Final = tuple(MEANINGS)

_INCLUDED: Final[Mapping[str, frozenset[str]]] = {
    READ: frozenset({JOBS_READ, ARTIFACTS_READ, BOXES_READ}),
    WRITE: frozenset({JOBS_WRITE, ARTIFACTS_WRITE, BOXES_WRITE}),
    ADMIN: frozenset(SCOPES),
}


def all_of(scopes: Iterable[str]) -> frozenset[str]:
    """``scopes`` and all that they include."""
    own = frozenset(scopes)
    return own.union(*(_INCLUDED.get(scope, frozenset()) for scope in own))


def allows(scopes: Iterable[str], needed: str) -> bool:
    """Whether a token with ``scopes`` may do what needs the scope ``needed``."""
    return needed in all_of(scopes)


def may_give(own: Iterable[str], wanted: Iterable[str]) -> bool:
    """Whether who has ``own`` may give ``wanted``: nobody gives more than they have."""
    return all_of(wanted) <= all_of(own)
