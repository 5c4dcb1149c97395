"""Audit log: its actions, and how entries are written, listed and pruned.

An entry has an actor (a token's id, or a part of the platform), an action, a target, an outcome, and the reason if it
was refused. It contains no secrets: no token's text, body or query.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sqlalchemy import Select, func, or_, select, update
from sqlalchemy.orm import Session

from rdukit.errors import (
    NotFenced,
    OutputRefused,
    PefCorrupt,
    PefNotAllowed,
    PermissionDenied,
    RdukitError,
    Unauthenticated,
)
from rdukit.settings import resolve
from rdukit_platform.audit.chain import add_to_chain, chain_of, prune_chain
from rdukit_platform.db.engine import Database
from rdukit_platform.db.models import AuditChainRow, AuditRow, TokenRow
from rdukit_platform.db.rows import new_id, read_page
from rdukit_platform.settings import AUDIT_DAYS, AUDIT_ROWS

#: Actors that are not tokens.
SYSTEM: Final = "system"
SCHEDULER: Final = "scheduler"
WORKER: Final = "worker"
#: Caller without a valid token.
NOBODY: Final = "nobody"
#: Actor that a tenant sees instead of another tenant's token.
ADMINISTRATOR: Final = "administrator"

#: HTTP statuses of answers that are recorded.
REFUSALS: Final = frozenset({401, 403, 413, 429})

#: Error codes of attempts that end for a security reason; each isolating check adds its code here.
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
    """Outcome of an action."""

    DONE = "done"
    REFUSED = "refused"


class Act(StrEnum):
    """Recorded actions. Refused requests have the action ``request``, refused attempts ``attempt``."""

    REQUEST = "request"
    ATTEMPT = "attempt"
    LOGIN = "console.login"
    #: Login through the issuer.
    OIDC_LOGIN = "console.login.oidc"
    #: First API call with a token of the issuer.
    BEARER_LOGIN = "login.bearer"
    LOGOUT = "logout"
    #: An administrator reads jobs or endpoints of another tenant.
    VIEW_TENANT = "tenant.view"
    SWITCH_TENANT = "console.tenant"
    #: Decision about a command's login by its code.
    DEVICE_LOGIN = "login.device"
    CREATE_TENANT = "tenant.create"
    CHANGE_TENANT = "tenant.change"
    CREATE_TOKEN = "token.create"
    ROTATE_TOKEN = "token.rotate"
    REVOKE_TOKEN = "token.revoke"
    BLOCK_TOKEN = "token.block"
    UNBLOCK_TOKEN = "token.unblock"
    #: An administrator's token created on the host.
    BREAK_GLASS = "token.break-glass"
    INVITE_MEMBER = "member.invite"
    CHANGE_MEMBER = "member.role"
    REMOVE_MEMBER = "member.remove"
    #: A user is disabled, enabled, or made an administrator of the platform.
    CHANGE_USER = "user.change"
    CHANGE_ORGANISATION = "organisation.change"
    INSTALL_BOX = "box.install"
    UNINSTALL_BOX = "box.uninstall"
    PROMOTE_EXPERT = "expert.promote"
    DEPRECATE_EXPERT = "expert.deprecate"
    DELETE_ARTIFACT = "artifact.delete"
    PIN_ARTIFACT = "artifact.pin"
    UNPIN_ARTIFACT = "artifact.unpin"
    #: Artifacts that have expired.
    EXPIRE_ARTIFACTS = "artifact.expire"
    COLLECT_CONTENT = "artifact.collect"
    CORDON = "node.cordon"
    UNCORDON = "node.uncordon"
    DRAIN = "node.drain"
    LEAVE_NODE = "node.leave"
    REJOIN_NODE = "node.rejoin"
    LABEL_NODE = "node.label"
    RELEASE_LEASE = "lease.release"
    MAINTAIN = "maintenance.plan"
    END_MAINTENANCE = "maintenance.end"
    CREATE_ENDPOINT = "endpoint.create"
    UPDATE_ENDPOINT = "endpoint.update"
    DELETE_ENDPOINT = "endpoint.delete"
    CREATE_WEBHOOK = "webhook.create"
    DISABLE_WEBHOOK = "webhook.disable"
    ENABLE_WEBHOOK = "webhook.enable"
    ROTATE_WEBHOOK = "webhook.rotate"
    REMOVE_WEBHOOK = "webhook.remove"
    CREATE_SCHEDULE = "schedule.create"
    PAUSE_SCHEDULE = "schedule.pause"
    RESUME_SCHEDULE = "schedule.resume"
    REMOVE_SCHEDULE = "schedule.remove"
    PRUNE = "audit.prune"


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """Entry to write."""

    #: Seconds since the epoch.
    at: float
    action: Act
    outcome: AuditOutcome = AuditOutcome.DONE
    #: A token's id, or one of the constants above.
    actor: str = SYSTEM
    #: Tenant of the entry; ``None``: only administrators see it.
    tenant_id: str | None = None
    #: Target, such as the id of a new resource, or method and path of a request.
    target: str = ""
    #: Error code of a refusal.
    reason: str = ""
    #: Further text.
    detail: str = ""
    #: Address of the caller.
    address: str = ""
    #: Number of equal events that the entry represents.
    count: int = 1


def is_recorded(error: RdukitError) -> bool:
    """Return whether an answer with this error is a refusal that the log records."""
    return error.http_status in REFUSALS


def is_security_code(code: object) -> bool:
    """Return whether an attempt that failed with this code was refused for a reason of security."""
    return code in SECURITY_CODES


_TOKEN: Final = re.compile(r"rdk_[\w-]{8,}")


def hide_tokens(text: str) -> str:
    """Return ``text`` with tokens masked, in case a caller gave one instead of an id."""
    return _TOKEN.sub("rdk_…", text)


def printable(text: str, most: int = MAX_TEXT) -> str:
    """Return ``text`` without tokens, control characters and line breaks, cut to ``most``."""
    text = hide_tokens(text[: 8 * most])
    cleaned = "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text[: most + 1])
    return cleaned if len(cleaned) <= most else cleaned[: most - 1] + "…"


#: Rows that one transaction deletes.
BATCH: Final = 1000


def record(session: Session, entry: AuditRecord) -> None:
    """Add an entry in the caller's transaction: a rollback removes it, too."""
    add_to_chain(
        session,
        AuditRow(
            id=new_id("aud"),
            created_at=entry.at,
            tenant_id=entry.tenant_id,
            actor=printable(entry.actor, 160),
            action=str(entry.action),
            target=printable(entry.target),
            outcome=str(entry.outcome),
            reason=printable(entry.reason, 64),
            detail=printable(entry.detail, 1000),
            address=printable(entry.address, 64),
            count=entry.count,
            chain=chain_of(entry.tenant_id, str(entry.outcome)),
        ),
    )


def note_uses(session: Session, used: Mapping[str, float]) -> None:
    """Store the times of the last use of tokens."""
    for token_id, at in sorted(used.items()):
        is_later = TokenRow.last_used_at.is_(None) | (TokenRow.last_used_at < at)
        session.execute(update(TokenRow).where(TokenRow.id == token_id, is_later).values(last_used_at=at))


def list_entries(
    session: Session,
    tenant_id: str | None,
    action: str | None = None,
    outcome: str | None = None,
    limit: int = 50,
    cursor: str | None = None,
    *,
    about: str | None = None,
    actors: Collection[str] | None = None,
) -> tuple[list[AuditRow], str | None]:
    """Return entries of a tenant (``None``: of all), newest first, and the cursor of the next page.

    Args:
        about: beginning of the target, or the actor; ``actors``: actors whose entries are visible (``None``: all).
    """
    query = select(AuditRow)
    if tenant_id is not None:
        query = query.where(AuditRow.tenant_id == tenant_id)
    if action is not None:
        query = query.where(AuditRow.action == action)
    if outcome is not None:
        query = query.where(AuditRow.outcome == outcome)
    if about:
        of_target = AuditRow.target.startswith(about, autoescape=True)
        query = query.where(or_(of_target, AuditRow.actor == about) if actors is None or about in actors else of_target)
    return read_page(session, query, AuditRow.created_at, AuditRow.id, limit, cursor)


Group = tuple[str | None, str]


def plan_pruning(counts: Mapping[Group, int], keep: int) -> dict[Group, int]:
    """Choose how many of the oldest rows of each group (tenant, outcome) to delete, so that ``keep`` stay (pure).

    The largest groups lose rows first, so a tenant that fills the log displaces only its own rows.
    """
    excess = sum(counts.values()) - keep
    if excess <= 0:
        return {}
    sizes = sorted(counts.values(), reverse=True)
    # The level to which the largest groups are cut.
    taken, level = 0, 0
    for rank, size in enumerate(sizes, 1):
        following = sizes[rank] if rank < len(sizes) else 0
        if taken + (size - following) * rank >= excess:
            level = size - -(-(excess - taken) // rank)
            break
        taken += (size - following) * rank
    return {group: count - level for group, count in counts.items() if count > level}


def prune_by_settings(database: Database, now: float) -> None:
    """Prune the log by the settings, and record that in the log."""
    gone = prune(database, now, resolve(AUDIT_DAYS) * 86400, resolve(AUDIT_ROWS))
    if gone:
        with database.write() as session:
            record(session, AuditRecord(now, Act.PRUNE, actor=SCHEDULER, detail=f"{gone} old entries"))


def prune(database: Database, now: float, keep_s: float, keep_rows: int) -> int:
    """Delete rows older than ``keep_s``, then those beyond ``keep_rows``, in batches. Returns the number of deleted
    entries.
    """
    gone = 0
    with database.read() as session:
        chains = session.scalars(select(AuditChainRow.chain)).all()
    for chain in chains:
        gone += _prune_old(database, chain, now - keep_s)
    with database.read() as session:
        rows = session.execute(select(AuditRow.tenant_id, AuditRow.outcome, func.count()).group_by(
            AuditRow.tenant_id, AuditRow.outcome
        )).all()  # fmt: skip
    for (tenant_id, outcome), count in plan_pruning({(t, o): n for t, o, n in rows}, keep_rows).items():
        left = count
        while left > 0 and (batch := _delete_oldest(database, chain_of(tenant_id, outcome), min(left, BATCH))) > 0:
            left -= batch
            gone += batch
    return gone


def _prune_old(database: Database, chain: str, before: float) -> int:
    # An older row after a younger one stays, because a chain has no gaps.
    gone = 0
    while True:
        with database.read() as session:
            rows = session.execute(_oldest(chain, BATCH)).all()
        old = next((k for k, row in enumerate(rows) if row.created_at >= before), len(rows))
        batch = _delete_oldest(database, chain, old) if old else 0
        gone += batch
        if batch < BATCH:
            return gone


def _delete_oldest(database: Database, chain: str, most: int) -> int:
    with database.write() as session:
        rows = session.execute(_oldest(chain, most)).all()
        return prune_chain(session, chain, rows[-1].number) if rows else 0


def _oldest(chain: str, most: int) -> Select[int | None, float]:
    chosen = select(AuditRow.number, AuditRow.created_at).where(AuditRow.chain == chain)
    return chosen.order_by(AuditRow.number).limit(most)
