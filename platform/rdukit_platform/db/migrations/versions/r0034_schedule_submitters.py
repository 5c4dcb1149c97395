"""Schedules record their creators."""

import sqlalchemy as sa
from alembic import op

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("schedules", sa.Column("submitted_by", sa.String(length=32), nullable=True))


def downgrade() -> None:
    op.drop_column("schedules", "submitted_by")
