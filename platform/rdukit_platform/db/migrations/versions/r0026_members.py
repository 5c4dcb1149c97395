"""Jobs have members that compute together."""

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("members", sa.Integer(), nullable=False, server_default="1"))


def downgrade() -> None:
    op.drop_column("jobs", "members")
