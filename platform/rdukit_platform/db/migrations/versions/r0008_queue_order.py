"""Jobs have priorities, run limits and labels, tenants have weights; waiting jobs have a reason code and an estimated
start."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

EARLIER_INDEX = "ix_jobs_state_tenant_id_queued_at"
INDEX = "ix_jobs_state_tenant_id_priority_queued_at"


def upgrade() -> None:
    op.add_column("tenants", sa.Column("weight", sa.Double(), nullable=False, server_default="1.0"))
    op.add_column("jobs", sa.Column("priority", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("jobs", sa.Column("run_limit_s", sa.Double(), nullable=True))
    op.add_column("jobs", sa.Column("labels", sa.JSON(), nullable=False, server_default="{}"))
    op.add_column("jobs", sa.Column("wait_code", sa.String(length=32), nullable=True))
    op.add_column("jobs", sa.Column("estimated_start", sa.Double(), nullable=True))
    op.drop_index(EARLIER_INDEX, table_name="jobs")
    op.create_index(INDEX, "jobs", ["state", "tenant_id", "priority", "queued_at"], unique=False)


def downgrade() -> None:
    op.drop_index(INDEX, table_name="jobs")
    op.create_index(EARLIER_INDEX, "jobs", ["state", "tenant_id", "queued_at"], unique=False)
    for column in ("estimated_start", "wait_code", "labels", "run_limit_s", "priority"):
        op.drop_column("jobs", column)
    op.drop_column("tenants", "weight")
