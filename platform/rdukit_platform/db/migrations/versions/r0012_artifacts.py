"""Artifacts are deleted, pinned and counted, and come in parts."""

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
    op.create_table(
        "uploads",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("tenant_id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=256), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("is_folder", sa.Boolean(), nullable=False),
        sa.Column("files", sa.JSON(), nullable=False),
        sa.Column("bytes", count, nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("artifact_id", sa.String(length=32), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("used_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_uploads_tenant_id_tenants")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_uploads")),
    )
    op.create_index(op.f("ix_uploads_tenant_id_fingerprint"), "uploads", ["tenant_id", "fingerprint"], unique=False)


def downgrade() -> None:
    op.drop_index(op.f("ix_uploads_tenant_id_fingerprint"), table_name="uploads")
    op.drop_table("uploads")
    with op.batch_alter_table("tenants") as batch:
        batch.drop_column("artifact_bytes")
    with op.batch_alter_table("artifacts") as batch:
        batch.drop_column("deleted_at")
        batch.drop_column("pinned_at")
