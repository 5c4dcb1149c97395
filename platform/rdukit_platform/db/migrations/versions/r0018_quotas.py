"""Tenants have quotas, and jobs may be preempted."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for column in ("quota", "max_tiles", "max_jobs"):
        op.add_column("tenants", sa.Column(column, sa.Integer(), nullable=True))
    op.add_column("jobs", sa.Column("preemptible", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("jobs", sa.Column("preemptions", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("attempts", sa.Column("preempt_asked_at", sa.Double(), nullable=True))


def downgrade() -> None:
    op.drop_column("attempts", "preempt_asked_at")
    for column in ("preemptions", "preemptible"):
        op.drop_column("jobs", column)
    for column in ("max_jobs", "max_tiles", "quota"):
        op.drop_column("tenants", column)
