"""What the audit log records, and how (pure).

An entry says who (actor: a token's id, or a part of the platform) did or tried what (action) to what (target), how it
ended, and for which reason it was refused. It holds no secret: no token's text, no body, no query.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from rdukit.errors import (
    NotFenced,
    OutputRefused,
    PefCorrupt,
    PefNotAllowed,
    PermissionDenied,
    RdukitError,
    Unauthenticated,
)

#: Actors that are no token.
SYSTEM: Final = "system"
SCHEDULER: Final = "scheduler"
WORKER: Final = "worker"
#: Somebody who showed no valid token.
NOBODY: Final = "nobody"
#: What a tenant is told of another tenant's token.
ADMINISTRATOR: Final = "administrator"

#: HTTP statuses of answers that are recorded.
REFUSALS: Final = frozenset({401, 403, 413, 429})

#: Codes of errors by which an attempt ends for a reason of security. A wall that refuses adds its code here.
SECURITY_CODES: Final = frozenset(
    {
        PermissionDenied.code,
        Unauthenticated.code,
        PefCorrupt.code,
        PefNotAllowed.code,
        NotFenced.code,
        OutputRefused.code,
    }
)

MAX_TEXT: Final = 256


class AuditOutcome(StrEnum):
    """How an act ended."""

    DONE = "done"
    REFUSED = "refused"


class Act(StrEnum):
    """What is recorded. Refused requests have the action ``request``, refused attempts ``attempt``."""

    REQUEST = "request"
    ATTEMPT = "attempt"
    LOGIN = "console.login"
    CREATE_TENANT = "tenant.create"
    CREATE_TOKEN = "token.create"
    ROTATE_TOKEN = "token.rotate"
    REVOKE_TOKEN = "token.revoke"
    #: An administrator's token that was made on the host.
    BREAK_GLASS = "token.break-glass"
    INSTALL_BOX = "box.install"
    UNINSTALL_BOX = "box.uninstall"
    PRUNE = "audit.prune"


@dataclass(frozen=True, slots=True)
class Entry:
    """One row to be."""

    #: Seconds since the epoch.
    at: float
    action: Act
    outcome: AuditOutcome = AuditOutcome.DONE
    #: A token's id, or one of the constants above.
    actor: str = SYSTEM
    #: Whom it concerns; ``None``: nobody in particular, only administrators see it.
    tenant_id: str | None = None
    #: Such as the id of what was made, or method and path of a request.
    target: str = ""
    #: Of a refusal: the error's code.
    reason: str = ""
    #: What there is to say besides.
    detail: str = ""
    #: Where it came from.
    address: str = ""
    #: How often, where many alike are one row.
    count: int = 1


def is_recorded(error: RdukitError) -> bool:
    """Whether an answer with this error is a refusal that the log records."""
    return error.http_status in REFUSALS


def is_security_code(code: object) -> bool:
    """Whether an attempt that failed with this code was refused for a reason of security."""
    return code in SECURITY_CODES


def printable(text: str, most: int = MAX_TEXT) -> str:
    """``text`` without what would control a terminal or break a line, and no longer than ``most``."""
    cleaned = "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text[: most + 1])
    return cleaned if len(cleaned) <= most else cleaned[: most - 1] + "…"
