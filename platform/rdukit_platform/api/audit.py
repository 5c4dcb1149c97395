"""The route of the audit log: read-only."""

from collections.abc import Mapping, Set
from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel
from starlette.responses import StreamingResponse

from rdukit.errors import InvalidArgument, suggest
from rdukit_platform.api.content_threads import reads_content
from rdukit_platform.api.context import Platform
from rdukit_platform.api.dependencies import Admin, Cursor, Limit, Reader, platform_of
from rdukit_platform.audit.chain import export, verify
from rdukit_platform.audit.service import (
    ADMINISTRATOR,
    NOBODY,
    SCHEDULER,
    SYSTEM,
    WORKER,
    Act,
    AuditOutcome,
    list_entries,
)
from rdukit_platform.db.models import AuditRow
from rdukit_platform.tenants.scopes import ADMIN
from rdukit_platform.tenants.service import Caller
from rdukit_platform.tenants.tokens import own_tokens
from rdukit_platform.tenants.users import emails_of_tokens

router = APIRouter(prefix="/v1/audit", tags=["audit"])


class AuditEntry(BaseModel):
    """Entry of the audit log: an action, or a refusal."""

    id: str
    at: float
    #: Null: no tenant, as for a call without a valid token.
    tenant: str | None
    #: A token's id, or ``administrator`` (another tenant's), ``nobody``, ``worker``, ``scheduler``, ``system``.
    actor: str
    #: E-mail of the user whose token that is.
    user: str | None
    action: str
    target: str
    #: done or refused
    outcome: str
    #: For a refusal: the error's code.
    reason: str
    detail: str
    address: str
    #: Number of events that it represents.
    count: int


class AuditPage(BaseModel):
    """Entries, newest first; ``next_cursor`` asks for the rest."""

    entries: list[AuditEntry]
    next_cursor: str | None


class AuditVerdict(BaseModel):
    """Result of a verification of the log's chains: whether they are intact, and the first wrong entry."""

    intact: bool
    chains: int
    #: Entries that are intact.
    entries: int
    #: First problem; empty: none.
    problem: str
    #: The entry that the problem is about; empty: it is missing, or nothing is wrong.
    entry: str


@router.get("/verify")
@reads_content
def verify_(request: Request, caller: Reader) -> AuditVerdict:
    """Verify the hash chains of the caller's tenant; with the scope admin all chains."""
    platform = platform_of(request)
    platform.audit.flush()
    found = verify(platform.database, None if ADMIN in caller.scopes else caller.tenant_id)
    return AuditVerdict(
        intact=found.is_intact, chains=found.chains, entries=found.entries, problem=found.problem, entry=found.entry
    )


@router.get("/export", response_class=StreamingResponse)
def export_(request: Request, caller: Admin) -> StreamingResponse:
    """Return the whole log as JSON lines with its digests: the ends of each chain, then the entries, oldest first."""
    platform = platform_of(request)
    platform.audit.flush()
    return StreamingResponse(export(platform.database), media_type="application/x-ndjson")


@router.get("")
def list_(
    request: Request,
    caller: Reader,
    action: Annotated[str | None, Query(description="Only this action, such as token.create.")] = None,
    outcome: Annotated[str | None, Query(description=f"Only entries with outcome {' or '.join(AuditOutcome)}.")] = None,
    about: Annotated[
        str | None, Query(max_length=160, description="Beginning of the target or actor: a token's id, nobody, …")
    ] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> AuditPage:
    """Return the audit log, newest first: of the caller's tenant; with the scope admin of all."""
    return read_entries(platform_of(request), caller, action, outcome, limit, cursor, about)


def read_entries(
    platform: Platform,
    caller: Caller,
    action: str | None = None,
    outcome: str | None = None,
    limit: int = 50,
    cursor: str | None = None,
    about: str | None = None,
) -> AuditPage:
    """Read the entries that ``caller`` may see, including refusals up to now.

    Raises:
        InvalidArgument: a value is not valid.
    """
    check_choices(action, outcome)
    platform.audit.flush()
    with platform.database.read() as session:
        tenant_id = None if ADMIN in caller.scopes else caller.tenant_id
        own = None if tenant_id is None else own_tokens(session, tenant_id)
        # Another tenant's token is shown as administrator only, so a search by its id does not find it.
        actors = None if own is None else {*own, NOBODY, WORKER, SCHEDULER, SYSTEM}
        rows, following = list_entries(session, tenant_id, action, outcome, limit, cursor, about=about, actors=actors)
        emails = emails_of_tokens(session, [row.actor for row in rows])
    return AuditPage(entries=[show_entry(row, own, emails) for row in rows], next_cursor=following)


def check_choices(action: str | None, outcome: str | None) -> None:
    """Refuse unknown actions and outcomes.

    Raises:
        InvalidArgument: the action or the outcome is unknown.
    """
    for name, value, legal in (("action", action, Act), ("outcome", outcome, AuditOutcome)):
        if value is not None and value not in list(legal):
            raise InvalidArgument(f"{name} is {value!r}; expected {', '.join(legal)}.{suggest(value[:64], legal)}")


def show_entry(row: AuditRow, own: Set[str] | None, emails: Mapping[str, str]) -> AuditEntry:
    """Return a row as the API shows it to the tenant of the tokens ``own``; ``None``: to an administrator.

    ``emails``: e-mail addresses of users by the ids of their tokens.

    For actions of an administrator, a tenant does not see the token or the address.
    """
    is_strange = own is not None and row.actor.startswith("tok-") and row.actor not in own
    return AuditEntry(
        id=row.id, at=row.created_at, tenant=row.tenant_id, actor=ADMINISTRATOR if is_strange else row.actor,
        user=None if is_strange else emails.get(row.actor), action=row.action, target=row.target, outcome=row.outcome,
        reason=row.reason, detail=row.detail, address="" if is_strange else row.address, count=row.count,
    )  # fmt: skip
