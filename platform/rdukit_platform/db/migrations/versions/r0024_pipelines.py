"""Steps of pipelines keep their references, and reuse the outputs of identical jobs."""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

INDEX = "ix_jobs_tenant_id_cache_key"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("references", sa.JSON(), nullable=False, server_default="{}"))
    op.add_column("jobs", sa.Column("cache_base", sa.String(64), nullable=True))
    op.add_column("jobs", sa.Column("cache_key", sa.String(64), nullable=True))
    op.add_column("jobs", sa.Column("cached_from", sa.String(32), nullable=True))
    op.create_index(INDEX, "jobs", ["tenant_id", "cache_key"], unique=False)


def downgrade() -> None:
    op.drop_index(INDEX, table_name="jobs")
    for column in ("cached_from", "cache_key", "cache_base", "references"):
        op.drop_column("jobs", column)
