"""The front of each tenant's queue is found by an index."""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

NAME = op.f("ix_jobs_state_tenant_id_queued_at")


def upgrade() -> None:
    op.create_index(
        op.f("ix_jobs_state_tenant_id_queued_at"), "jobs", ["state", "tenant_id", "queued_at"], unique=False
    )


def downgrade() -> None:
    op.drop_index(NAME, table_name="jobs")
