"""Hashes chain the entries of the audit log, including existing ones."""

import hashlib
import json

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

_FIELDS = ("id", "created_at", "tenant_id", "actor", "action", "target", "outcome", "reason", "detail", "address",
           "count")  # fmt: skip


def upgrade() -> None:
    op.create_table(
        "audit_chains",
        sa.Column("chain", sa.String(length=64), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("anchor_number", sa.Integer(), nullable=False),
        sa.Column("anchor_digest", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("chain", name=op.f("pk_audit_chains")),
    )
    op.add_column("audit", sa.Column("chain", sa.String(length=64), nullable=True))
    op.add_column("audit", sa.Column("number", sa.Integer(), nullable=True))
    op.add_column("audit", sa.Column("digest", sa.String(length=64), nullable=True))
    op.create_index(op.f("ix_audit_chain"), "audit", ["chain", "number"], unique=True)
    _chain_entries()


def _chain_entries() -> None:
    connection = op.get_bind()
    ends: dict[str, tuple[int, str]] = {}
    audit = sa.table("audit", *(sa.column(name) for name in ("chain", "number", "digest", *_FIELDS)))
    columns = [audit.c[name] for name in _FIELDS]
    query = sa.select(*columns).order_by(audit.c.created_at, audit.c.id)
    change = (
        sa.update(audit)
        .where(audit.c.id == sa.bindparam("row"))
        .values(chain=sa.bindparam("in_chain"), number=sa.bindparam("at"), digest=sa.bindparam("hashed"))
    )
    entries = connection.execute(query).all()
    for start in range(0, len(entries), 1000):
        changes = []
        for row in entries[start : start + 1000]:
            chain = f"{row.tenant_id or '-'}/{row.outcome}"
            number, digest = ends.get(chain, (0, "0" * 64))
            text = json.dumps([digest, chain, number + 1, *row], separators=(",", ":"))
            ends[chain] = number + 1, hashlib.sha256(text.encode()).hexdigest()
            changes.append({"row": row.id, "in_chain": chain, "at": number + 1, "hashed": ends[chain][1]})
        connection.execute(change, changes)
    for chain, (number, digest) in ends.items():
        connection.execute(
            sa.text("INSERT INTO audit_chains VALUES (:chain, :number, :digest, 0, :genesis)"),
            {"chain": chain, "number": number, "digest": digest, "genesis": "0" * 64},
        )


def downgrade() -> None:
    op.drop_index(op.f("ix_audit_chain"), table_name="audit")
    for column in ("digest", "number", "chain"):
        op.drop_column("audit", column)
    op.drop_table("audit_chains")
