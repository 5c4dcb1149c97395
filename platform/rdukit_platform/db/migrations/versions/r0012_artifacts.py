"""Artifacts are deleted, pinned and counted."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    count = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    if op.get_bind().dialect.name == "postgresql":
        op.alter_column("artifacts", "bytes", type_=sa.BigInteger())
    op.add_column("artifacts", sa.Column("pinned_at", sa.Double(), nullable=True))
    op.add_column("artifacts", sa.Column("deleted_at", sa.Double(), nullable=True))
    op.add_column("tenants", sa.Column("artifact_bytes", count, nullable=True))


def downgrade() -> None:
    # Not in a batch, which would recreate the table: SQLite drops no table that others refer to.
    op.drop_column("tenants", "artifact_bytes")
    op.drop_column("artifacts", "deleted_at")
    op.drop_column("artifacts", "pinned_at")
