"""Attempts say which box took their verb: backend, the backend's name for it, limits."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("attempts", sa.Column("box", sa.JSON(), nullable=True))


def downgrade() -> None:
    op.drop_column("attempts", "box")
