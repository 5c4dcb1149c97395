"""Entries of the audit log about HTTP requests, and about what was to become one."""

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
    """Return an act that ``caller`` did; ``tenant_id``: whom it concerns, if not the caller's own tenant."""
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
    """Record that a request was refused, if its error is one of those that are."""
    if not is_recorded(error):
        return
    platform: Platform = request.app.state.platform
    caller: Caller | None = getattr(request.state, "caller", None)
    note_refused_call(platform, caller, address_of(request), f"{request.method} {request.url.path}", error)


def note_refused_call(platform: Platform, caller: Caller | None, address: str, target: str, error: RdukitError) -> None:
    """Record that a call was refused, if its error is one of those that are. Touches no database."""
    if not is_recorded(error):
        return
    # A token that has ended is known, but lets nobody in.
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
    """Record that what came on a connection was refused before it was a request. Touches no database."""
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
