"""A table of labels finds jobs."""

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None

INDEX = "ix_job_labels_found"
#: Function that yields the keys and values of an object of texts, and the condition that it has any.
READ = {"sqlite": ("json_each(jobs.labels)", "jobs.labels <> '{}'"),
        "postgresql": ("json_each_text(jobs.labels)", "jobs.labels::text <> '{}'")}  # fmt: skip


def upgrade() -> None:
    op.create_table(
        "job_labels",
        sa.Column("job_id", sa.String(32), sa.ForeignKey("jobs.id"), primary_key=True),
        sa.Column("key", sa.String(64), primary_key=True),
        sa.Column("value", sa.String(128), nullable=False),
        sa.Column("tenant_id", sa.String(32), sa.ForeignKey("tenants.id"), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
    )
    each, has_any = READ[op.get_bind().dialect.name]
    op.execute(
        "INSERT INTO job_labels (job_id, key, value, tenant_id, created_at) "
        f"SELECT jobs.id, each.key, each.value, jobs.tenant_id, jobs.created_at FROM jobs, {each} AS each "
        f"WHERE {has_any}"
    )
    op.create_index(INDEX, "job_labels", ["tenant_id", "key", "value", "created_at", "job_id"])


def downgrade() -> None:
    op.drop_table("job_labels")
