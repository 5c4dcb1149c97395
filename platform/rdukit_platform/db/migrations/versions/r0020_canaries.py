"""Endpoints have canaries and end their replicas while they get no calls; calls are counted for each revision."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

KEY = "pk_endpoint_usage"


def upgrade() -> None:
    op.add_column("endpoints", sa.Column("canary", sa.Integer(), nullable=True))
    op.add_column("endpoints", sa.Column("canary_percent", sa.Integer(), nullable=True))
    op.add_column("endpoints", sa.Column("idle_s", sa.Double(), nullable=True))
    op.add_column("endpoints", sa.Column("called_at", sa.Double(), nullable=True))
    with op.batch_alter_table("endpoint_usage") as batch:
        batch.add_column(sa.Column("revision", sa.Integer(), autoincrement=False, nullable=False, server_default="0"))
        batch.drop_constraint(KEY, type_="primary")
        batch.create_primary_key(KEY, ["endpoint_id", "day", "revision"])


def downgrade() -> None:
    # A day's row has the sum over its revisions.
    sums = ", ".join(
        f"{name} = (SELECT SUM(o.{name}) FROM endpoint_usage o"
        " WHERE o.endpoint_id = endpoint_usage.endpoint_id AND o.day = endpoint_usage.day)"
        for name in ("requests", "failures", "rows", "prompt_tokens", "completion_tokens")
    )
    first = (
        "(SELECT MIN(o.revision) FROM endpoint_usage o"
        " WHERE o.endpoint_id = endpoint_usage.endpoint_id AND o.day = endpoint_usage.day)"
    )
    op.execute(f"UPDATE endpoint_usage SET {sums} WHERE revision = {first}")
    op.execute(f"DELETE FROM endpoint_usage WHERE revision > {first}")
    with op.batch_alter_table("endpoint_usage") as batch:
        batch.drop_constraint(KEY, type_="primary")
        batch.drop_column("revision")
        batch.create_primary_key(KEY, ["endpoint_id", "day"])
    for column in ("called_at", "idle_s", "canary_percent", "canary"):
        op.drop_column("endpoints", column)
