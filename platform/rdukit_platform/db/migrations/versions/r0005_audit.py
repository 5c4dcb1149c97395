"""An audit log: acts and refusals, with their actors."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("tenant_id", sa.String(length=32), nullable=True),
        sa.Column("actor", sa.String(length=160), nullable=False),
        sa.Column("action", sa.String(length=64), nullable=False),
        sa.Column("target", sa.String(length=256), nullable=False),
        sa.Column("outcome", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.String(length=64), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("address", sa.String(length=64), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
    )
    op.create_index(op.f("ix_audit_created_at_id"), "audit", ["created_at", "id"], unique=False)
    op.create_index(
        op.f("ix_audit_tenant_id_outcome_created_at"), "audit", ["tenant_id", "outcome", "created_at"], unique=False
    )


def downgrade() -> None:
    op.drop_index(op.f("ix_audit_tenant_id_outcome_created_at"), table_name="audit")
    op.drop_index(op.f("ix_audit_created_at_id"), table_name="audit")
    op.drop_table("audit")
