"""Sweeps: jobs of one kind with several values of their parameters, each a trial."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "sweeps",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("tenant_id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("request", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("idempotency_key", sa.String(length=128), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_sweeps_tenant_id_tenants")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sweeps")),
        sa.UniqueConstraint("tenant_id", "idempotency_key", name=op.f("uq_sweeps_tenant_id_idempotency_key")),
    )
    op.create_index(op.f("ix_sweeps_tenant_id_created_at"), "sweeps", ["tenant_id", "created_at"], unique=False)
    op.create_index(op.f("ix_sweeps_state"), "sweeps", ["state"], unique=False)
    op.create_table(
        "trials",
        sa.Column("sweep_id", sa.String(length=32), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("job_id", sa.String(length=32), nullable=False),
        sa.Column("parameters", sa.JSON(), nullable=False),
        sa.Column("value", sa.Double(), nullable=True),
        sa.Column("curve", sa.JSON(), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_trials_job_id_jobs")),
        sa.ForeignKeyConstraint(["sweep_id"], ["sweeps.id"], name=op.f("fk_trials_sweep_id_sweeps")),
        sa.PrimaryKeyConstraint("sweep_id", "number", name=op.f("pk_trials")),
        sa.UniqueConstraint("job_id", name=op.f("uq_trials_job_id")),
    )


def downgrade() -> None:
    op.drop_table("trials")
    op.drop_index(op.f("ix_sweeps_state"), table_name="sweeps")
    op.drop_index(op.f("ix_sweeps_tenant_id_created_at"), table_name="sweeps")
    op.drop_table("sweeps")
