"""Jobs have deadlines and retry policies, and are paused."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

INDEX = "ix_jobs_state_start_by"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("deadline_at", sa.Double(), nullable=True))
    op.add_column("jobs", sa.Column("start_by", sa.Double(), nullable=True))
    op.add_column("jobs", sa.Column("retry", sa.JSON(), nullable=True))
    op.add_column("attempts", sa.Column("pause_asked_at", sa.Double(), nullable=True))
    op.create_index(INDEX, "jobs", ["state", "start_by"], unique=False)


def downgrade() -> None:
    op.drop_index(INDEX, table_name="jobs")
    op.drop_column("attempts", "pause_asked_at")
    for column in ("retry", "start_by", "deadline_at"):
        op.drop_column("jobs", column)
