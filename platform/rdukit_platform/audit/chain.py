"""Hash chain of the audit log: each entry has the SHA-256 of its content and of the entry before it.

Each tenant and outcome has a chain of its own: pruning removes the oldest entries of each, so chains have no gaps. A
chain's row in ``audit_chains`` has the number and digest of its last entry and of the last pruned entry (the anchor);
verification starts at the anchor.

An attacker who can write the database can also rewrite a complete chain. The digest of a chain's last entry, kept
elsewhere, shows that, too: an export has it in each line.
"""

import hashlib
import json
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import CursorResult, delete, event, select, text, update
from sqlalchemy.orm import Session

from rdukit.errors import InvalidArgument
from rdukit_platform.db.engine import Database
from rdukit_platform.db.models import AuditChainRow, AuditRow

#: Predecessor's digest for the first entry of a chain.
GENESIS: Final = "0" * 64
#: Fields of an entry that are hashed, in this order, after its predecessor's digest.
FIELDS: Final = (
    "chain", "number", "id", "created_at", "tenant_id", "actor", "action", "target", "outcome", "reason", "detail",
    "address", "count",
)  # fmt: skip
_PENDING: Final = "audit entries"
_ROWS_AT_ONCE: Final = 1000


def chain_of(tenant_id: str | None, outcome: str) -> str:
    """Return the name of the chain that an entry belongs to."""
    return f"{tenant_id or '-'}/{outcome}"


def digest_entry(previous: str, entry: Mapping[str, object]) -> str:
    """Return the digest of an entry after one with the digest ``previous`` (pure)."""
    content = json.dumps([previous, *(entry[name] for name in FIELDS)], separators=(",", ":"))
    return hashlib.sha256(content.encode()).hexdigest()


def add_to_chain(session: Session, row: AuditRow) -> None:
    """Add a row. Its number and digest are set at the commit, so the chain is locked only briefly."""
    session.add(row)
    session.info.setdefault(_PENDING, []).append(row)


@event.listens_for(Session, "before_commit")
def _link(session: Session) -> None:
    # Chains are locked last and in order, so that transactions cannot deadlock.
    rows = [row for row in session.info.pop(_PENDING, []) if row in session]
    by_chain: dict[str, list[AuditRow]] = {}
    for row in rows:
        by_chain.setdefault(row.chain, []).append(row)
    for chain, entries in sorted(by_chain.items()):
        head = lock_chain(session, chain)
        number, digest = head.number, head.digest
        for row in entries:
            row.number = number = number + 1
            row.digest = digest = digest_entry(digest, as_entry(row))
        changed = update(AuditChainRow).where(AuditChainRow.chain == chain).values(number=number, digest=digest)
        session.execute(changed, execution_options={"synchronize_session": False})


def lock_chain(session: Session, chain: str) -> "ChainEnds":
    """Return a chain's ends, locked until the transaction ends. A new chain is created."""
    values = {"chain": chain, "genesis": GENESIS}
    columns = "chain, number, digest, anchor_number, anchor_digest"
    session.execute(
        text(f"INSERT INTO audit_chains ({columns}) VALUES (:chain, 0, :genesis, 0, :genesis) ON CONFLICT DO NOTHING"),
        values,
    )
    found = session.execute(_ENDS.where(AuditChainRow.chain == chain).with_for_update()).one()
    return ChainEnds(*found)


_ENDS: Final = select(
    AuditChainRow.chain, AuditChainRow.number, AuditChainRow.digest, AuditChainRow.anchor_number,
    AuditChainRow.anchor_digest,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ChainEnds:
    """Ends of a chain: its last entry, and the last one that was pruned."""

    chain: str
    number: int
    digest: str
    anchor_number: int
    anchor_digest: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """Outcome of a verification: number of intact entries, and the first problem."""

    chains: int
    entries: int
    #: First problem; empty: none.
    problem: str = ""
    #: The entry that the problem is about; empty: it is missing.
    entry: str = ""

    @property
    def is_intact(self) -> bool:
        """Return whether nothing is wrong."""
        return not self.problem


def as_entry(row: AuditRow) -> dict[str, Any]:
    """Return the hashed fields of an entry."""
    return {name: getattr(row, name) for name in FIELDS}


def verify_entries(ends: Mapping[str, ChainEnds], entries: Iterable[Mapping[str, Any]]) -> Verdict:
    """Verify entries, sorted by chain and number, against the ends of their chains (pure).

    Reports the first entry that was changed or added, or that follows a deleted one.
    """
    count, last = 0, {chain: (each.anchor_number, each.anchor_digest) for chain, each in ends.items()}
    for entry in entries:
        chain, name = entry["chain"], entry["id"]
        if chain not in ends or entry["number"] is None:
            return Verdict(len(ends), count, "an entry belongs to no chain", name)
        if entry["chain"] != chain_of(entry["tenant_id"], entry["outcome"]):
            return Verdict(len(ends), count, f"an entry belongs to another chain, {chain}", name)
        number, digest = last[chain]
        if entry["number"] != number + 1:
            what = f"entry {number + 1} of {chain} is missing; the next one has number {entry['number']}"
            return Verdict(len(ends), count, what, name)
        if entry["number"] > ends[chain].number:
            return Verdict(len(ends), count, f"an entry comes after the end of {chain}", name)
        if entry["digest"] != digest_entry(digest, entry):
            return Verdict(len(ends), count, f"entry {entry['number']} of {chain} was changed", name)
        last[chain] = entry["number"], entry["digest"]
        count += 1
    for chain, (number, digest) in sorted(last.items()):
        if (number, digest) != (ends[chain].number, ends[chain].digest):
            what = f"{chain} ends with entry {number} instead of {ends[chain].number}; entries are missing"
            return Verdict(len(ends), count, what)
    return Verdict(len(ends), count)


def verify(database: Database, tenant_id: str | None) -> Verdict:
    """Verify the chains of a tenant, or all (``None``), in one snapshot."""
    with database.read() as session:
        hold_snapshot(session)
        query = _ENDS
        if tenant_id is not None:
            query = query.where(AuditChainRow.chain.startswith(f"{tenant_id}/", autoescape=True))
        ends = {each.chain: each for each in (ChainEnds(*row) for row in session.execute(query))}
        with closing(_read(session, tenant_id)) as entries:
            return verify_entries(ends, entries)


def export(database: Database) -> Iterator[bytes]:
    """Yield a snapshot of the log as JSON lines: the ends of each chain, then all entries by chain and number."""
    with database.read() as session:
        hold_snapshot(session)
        for row in session.execute(_ENDS.order_by(AuditChainRow.chain)):
            ends = ChainEnds(*row)
            yield _line({"kind": "chain", **{name: getattr(ends, name) for name in ChainEnds.__slots__}})
        for entry in _read(session, None):
            yield _line({"kind": "entry", **entry})


def verify_export(lines: Iterable[bytes]) -> Verdict:
    """Verify what ``export`` wrote.

    Raises:
        InvalidArgument: a line is not of an export.
    """
    ends: dict[str, ChainEnds] = {}

    def entries() -> Iterator[dict[str, Any]]:
        for number, line in enumerate(lines, 1):
            try:
                read = json.loads(line)
                if read.pop("kind") == "entry":
                    yield {name: read[name] for name in (*FIELDS, "digest")}
                else:
                    ends[read["chain"]] = ChainEnds(**read)
            except (ValueError, KeyError, TypeError, AttributeError) as cause:
                raise InvalidArgument(f"line {number} is not from an export of the audit log") from cause

    read = iter(entries())
    first = next(read, None)  # chains precede entries
    return verify_entries(ends, [] if first is None else _and_then(first, read))


def _and_then(first: dict[str, Any], rest: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    yield first
    yield from rest


def prune_chain(session: Session, chain: str, up_to: int) -> int:
    """Delete a chain's entries with numbers up to ``up_to``; the anchor moves there. Returns the number of deleted
    entries.
    """
    ends = lock_chain(session, chain)
    last = select(AuditRow.digest).where(AuditRow.chain == chain, AuditRow.number == up_to)
    found = session.execute(last).one_or_none()
    if found is None or up_to <= ends.anchor_number:
        return 0
    gone = session.execute(delete(AuditRow).where(AuditRow.chain == chain, AuditRow.number <= up_to))
    anchor = {"anchor_number": up_to, "anchor_digest": found[0]}
    session.execute(update(AuditChainRow).where(AuditChainRow.chain == chain).values(**anchor))
    assert isinstance(gone, CursorResult)
    return gone.rowcount


def hold_snapshot(session: Session) -> None:
    """Make all reads of a session see one snapshot."""
    if session.get_bind().dialect.name == "postgresql":
        session.connection(execution_options={"isolation_level": "REPEATABLE READ"})


def _read(session: Session, tenant_id: str | None) -> Generator[dict[str, Any]]:
    columns = [getattr(AuditRow, name) for name in (*FIELDS, "digest")]
    query = select(*columns).order_by(AuditRow.chain, AuditRow.number)
    if tenant_id is not None:
        query = query.where(AuditRow.tenant_id == tenant_id)
    with session.execute(query.execution_options(yield_per=_ROWS_AT_ONCE)) as rows:
        for row in rows:
            yield dict(zip((*FIELDS, "digest"), row, strict=True))


def _line(values: Mapping[str, object]) -> bytes:
    return json.dumps(values, separators=(",", ":")).encode() + b"\n"
