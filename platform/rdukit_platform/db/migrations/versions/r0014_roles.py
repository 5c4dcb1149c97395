"""Tokens say which role they were made with."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tokens", sa.Column("role", sa.String(length=32), nullable=True))


def downgrade() -> None:
    op.drop_column("tokens", "role")
