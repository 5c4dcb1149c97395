"""An index finds the front of each tenant's queue; lost attempts are counted; files keep their names."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

INDEX = "ix_jobs_state_tenant_id_queued_at"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("losses", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("artifacts", sa.Column("file_name", sa.String(length=128), nullable=True))
    op.create_index(INDEX, "jobs", ["state", "tenant_id", "queued_at"], unique=False)


def downgrade() -> None:
    op.drop_index(INDEX, table_name="jobs")
    op.drop_column("artifacts", "file_name")
    op.drop_column("jobs", "losses")
