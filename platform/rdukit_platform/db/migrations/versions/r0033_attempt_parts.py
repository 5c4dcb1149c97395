"""Members of a job on several nodes."""

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "attempt_parts",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("attempt_id", sa.String(length=32), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("members", sa.Integer(), nullable=False),
        sa.Column("token", sa.String(length=64), nullable=False),
        sa.Column("published_at", sa.Double(), nullable=False),
        sa.Column("node", sa.String(length=64), nullable=False),
        sa.Column("worker", sa.String(length=128), nullable=True),
        sa.Column("claimed_at", sa.Double(), nullable=True),
        sa.Column("lease_expires_at", sa.Double(), nullable=True),
        sa.Column("tiles", sa.JSON(), nullable=True),
        sa.Column("address", sa.String(length=255), nullable=True),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempts.id"], name=op.f("fk_attempt_parts_attempt_id_attempts")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_attempt_parts")),
        sa.UniqueConstraint("attempt_id", "number", name=op.f("uq_attempt_parts_attempt_id_number")),
    )
    op.create_index(op.f("ix_attempt_parts_attempt_id"), "attempt_parts", ["attempt_id"])
    op.add_column("attempts", sa.Column("address", sa.String(length=255), nullable=True))
    op.add_column("nodes", sa.Column("link_host", sa.String(length=255), nullable=True))


def downgrade() -> None:
    op.drop_column("nodes", "link_host")
    op.drop_column("attempts", "address")
    op.drop_table("attempt_parts")
