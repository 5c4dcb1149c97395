"""Webhooks are disabled and enabled, by hand and after failures."""

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("webhooks", sa.Column("disabled_at", sa.Double(), nullable=True))
    op.add_column("webhooks", sa.Column("disabled_reason", sa.Text(), nullable=True))
    op.add_column("webhooks", sa.Column("failures", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("webhooks", sa.Column("failing_since", sa.Double(), nullable=True))


def downgrade() -> None:
    for column in ("failing_since", "failures", "disabled_reason", "disabled_at"):
        op.drop_column("webhooks", column)
