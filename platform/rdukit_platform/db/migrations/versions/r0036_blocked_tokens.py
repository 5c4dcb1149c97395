"""Administrators block tokens, and let them in again."""

import sqlalchemy as sa
from alembic import op

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tokens", sa.Column("blocked_at", sa.Double(), nullable=True))


def downgrade() -> None:
    op.drop_column("tokens", "blocked_at")
