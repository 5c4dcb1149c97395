"""Tenants install versions of their own boxes; a job keeps its version."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "boxes",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("tenant_id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("description", sa.JSON(), nullable=False),
        sa.Column("artifact_id", sa.String(length=32), nullable=True),
        sa.Column("image", sa.String(length=512), nullable=True),
        sa.Column("digest", sa.String(length=80), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("uninstalled_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["artifact_id"], ["artifacts.id"], name=op.f("fk_boxes_artifact_id_artifacts")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_boxes_tenant_id_tenants")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_boxes")),
        sa.UniqueConstraint("tenant_id", "name", "version", name=op.f("uq_boxes_tenant_id_name_version")),
    )
    op.create_index(op.f("ix_boxes_tenant_id_created_at"), "boxes", ["tenant_id", "created_at"], unique=False)
    op.add_column("jobs", sa.Column("box_version", sa.Integer(), nullable=True))


def downgrade() -> None:
    op.drop_column("jobs", "box_version")
    op.drop_index(op.f("ix_boxes_tenant_id_created_at"), table_name="boxes")
    op.drop_table("boxes")
