"""Jobs belong to traces, and attempts keep their spans."""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("traceparent", sa.String(64), nullable=True))
    op.add_column("attempts", sa.Column("spans", sa.JSON(), nullable=True))


def downgrade() -> None:
    op.drop_column("attempts", "spans")
    op.drop_column("jobs", "traceparent")
