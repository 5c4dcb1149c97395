"""Experts: a box with a checkpoint that one of its jobs trained, under a name, in versions."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "experts",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("tenant_id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("box", sa.String(length=64), nullable=False),
        sa.Column("box_version", sa.Integer(), nullable=True),
        sa.Column("checkpoint_id", sa.String(length=32), nullable=False),
        sa.Column("pef_id", sa.String(length=32), nullable=True),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("licence", sa.String(length=200), nullable=False),
        sa.Column("metrics", sa.JSON(), nullable=False),
        sa.Column("job_id", sa.String(length=32), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("deprecated_at", sa.Double(), nullable=True),
        sa.Column("deprecated_reason", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["checkpoint_id"], ["artifacts.id"], name=op.f("fk_experts_checkpoint_id_artifacts")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_experts_job_id_jobs")),
        sa.ForeignKeyConstraint(["pef_id"], ["artifacts.id"], name=op.f("fk_experts_pef_id_artifacts")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_experts_tenant_id_tenants")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_experts")),
        sa.UniqueConstraint("tenant_id", "name", "version", name=op.f("uq_experts_tenant_id_name_version")),
    )
    op.create_index(op.f("ix_experts_tenant_id_created_at"), "experts", ["tenant_id", "created_at"], unique=False)
    op.create_index(op.f("ix_experts_checkpoint_id"), "experts", ["checkpoint_id"], unique=False)
    op.create_index(op.f("ix_experts_job_id"), "experts", ["job_id"], unique=False)


def downgrade() -> None:
    op.drop_index(op.f("ix_experts_job_id"), table_name="experts")
    op.drop_index(op.f("ix_experts_checkpoint_id"), table_name="experts")
    op.drop_index(op.f("ix_experts_tenant_id_created_at"), table_name="experts")
    op.drop_table("experts")
