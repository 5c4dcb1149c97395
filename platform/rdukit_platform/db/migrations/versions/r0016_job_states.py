"""Index of a tenant's jobs in one state, newest first, which finds rare states without reading all jobs."""

from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

_NAME = "ix_jobs_tenant_id_state_created_at"


def upgrade() -> None:
    op.create_index(op.f(_NAME), "jobs", ["tenant_id", "state", "created_at"], unique=False)


def downgrade() -> None:
    op.drop_index(op.f(_NAME), table_name="jobs")
