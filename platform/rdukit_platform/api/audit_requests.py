"""Entries of the audit log about HTTP requests, and about refused connections."""

from fastapi import Request

from rdukit.errors import RdukitError
from rdukit_platform.api.context import Platform
from rdukit_platform.audit.service import NOBODY, Act, AuditOutcome, AuditRecord, is_recorded
from rdukit_platform.tenants.service import Caller, TokenEnded


def address_of(request: Request) -> str:
    """Return the address that a request came from."""
    return request.client.host if request.client else ""


def entry_of(
    request: Request, caller: Caller, action: Act, target: str, tenant_id: str | None = None, detail: str = ""
) -> AuditRecord:
    """Return an entry for an action of ``caller``; ``tenant_id``: the tenant concerned, if not the caller's own."""
    platform: Platform = request.app.state.platform
    return AuditRecord(
        at=platform.clock.now(),
        action=action,
        actor=caller.token_id,
        tenant_id=tenant_id or caller.tenant_id,
        target=target,
        detail=detail,
        address=address_of(request),
    )


def note_refusal(request: Request, error: RdukitError) -> None:
    """Record a refused request, if its error is of a recorded kind."""
    if not is_recorded(error):
        return
    platform: Platform = request.app.state.platform
    caller: Caller | None = getattr(request.state, "caller", None)
    note_refused_call(platform, caller, address_of(request), f"{request.method} {request.url.path}", error)


def note_refused_call(platform: Platform, caller: Caller | None, address: str, target: str, error: RdukitError) -> None:
    """Record a refused call, if its error is of a recorded kind. Does not access the database."""
    if not is_recorded(error):
        return
    # An ended token is known, but not accepted.
    cause = error.__cause__
    caller = cause.caller if isinstance(cause, TokenEnded) else caller
    platform.audit.note(
        AuditRecord(
            at=platform.clock.now(),
            action=Act.REQUEST,
            outcome=AuditOutcome.REFUSED,
            actor=caller.token_id if caller else NOBODY,
            tenant_id=caller.tenant_id if caller else None,
            target=target,
            reason=error.code,
            detail=error.message,
            address=address,
        )
    )


def note_refused_bytes(platform: Platform, address: str, target: str, error: RdukitError) -> None:
    """Record a refusal of bytes that formed no complete request. Does not access the database."""
    platform.audit.note(
        AuditRecord(
            at=platform.clock.now(),
            action=Act.REQUEST,
            outcome=AuditOutcome.REFUSED,
            actor=NOBODY,
            target=target,
            reason=error.code,
            detail=error.message,
            address=address,
        )
    )
