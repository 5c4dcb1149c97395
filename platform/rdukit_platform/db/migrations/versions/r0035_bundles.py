"""Endpoints serve bundles of experts: what names their artifacts is lineage without a job, use is counted by model."""

import sqlalchemy as sa
from alembic import op

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None

KEY = "pk_endpoint_usage"
FOREIGN = "fk_endpoint_revisions_bundle_id_artifacts"
INDEX = "ix_endpoint_revisions_bundle_id"


def upgrade() -> None:
    with op.batch_alter_table("lineage") as batch:
        batch.alter_column("job_id", existing_type=sa.String(length=32), nullable=True)
    with op.batch_alter_table("endpoint_revisions") as batch:
        batch.add_column(sa.Column("bundle_id", sa.String(length=32), nullable=True))
        batch.add_column(sa.Column("models", sa.JSON(), nullable=True))
        batch.create_foreign_key(FOREIGN, "artifacts", ["bundle_id"], ["id"])
    op.create_index(INDEX, "endpoint_revisions", ["bundle_id"])
    with op.batch_alter_table("endpoint_usage") as batch:
        batch.add_column(sa.Column("model", sa.String(length=128), nullable=False, server_default=""))
        batch.drop_constraint(KEY, type_="primary")
        batch.create_primary_key(KEY, ["endpoint_id", "day", "revision", "model"])


def downgrade() -> None:
    # A day's row of a revision has the sum over its models.
    same = "o.endpoint_id = endpoint_usage.endpoint_id AND o.day = endpoint_usage.day"
    same += " AND o.revision = endpoint_usage.revision"
    sums = ", ".join(
        f"{name} = (SELECT SUM(o.{name}) FROM endpoint_usage o WHERE {same})"
        for name in ("requests", "failures", "rows", "prompt_tokens", "completion_tokens")
    )
    first = f"(SELECT MIN(o.model) FROM endpoint_usage o WHERE {same})"
    op.execute(f"UPDATE endpoint_usage SET {sums} WHERE model = {first}")
    op.execute(f"DELETE FROM endpoint_usage WHERE model > {first}")
    with op.batch_alter_table("endpoint_usage") as batch:
        batch.drop_constraint(KEY, type_="primary")
        batch.drop_column("model")
        batch.create_primary_key(KEY, ["endpoint_id", "day", "revision"])
    op.drop_index(INDEX, "endpoint_revisions")
    with op.batch_alter_table("endpoint_revisions") as batch:
        batch.drop_constraint(FOREIGN, type_="foreignkey")
        batch.drop_column("models")
        batch.drop_column("bundle_id")
    op.execute("DELETE FROM lineage WHERE job_id IS NULL")
    with op.batch_alter_table("lineage") as batch:
        batch.alter_column("job_id", existing_type=sa.String(length=32), nullable=False)
