"""Schedules of pipelines, and their runs."""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "schedules",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("tenant_id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("cron", sa.String(length=128), nullable=False),
        sa.Column("zone", sa.String(length=64), nullable=False),
        sa.Column("missed", sa.String(length=16), nullable=False),
        sa.Column("overlap", sa.String(length=16), nullable=False),
        sa.Column("request", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("paused_at", sa.Double(), nullable=True),
        sa.Column("next_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_schedules_tenant_id_tenants")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_schedules")),
        sa.UniqueConstraint("tenant_id", "name", name=op.f("uq_schedules_tenant_id_name")),
    )
    op.create_index(op.f("ix_schedules_tenant_id_created_at"), "schedules", ["tenant_id", "created_at"], unique=False)
    op.create_index(op.f("ix_schedules_next_at"), "schedules", ["next_at"], unique=False)
    op.create_table(
        "scheduled_runs",
        sa.Column("schedule_id", sa.String(length=32), nullable=False),
        sa.Column("due_at", sa.Double(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("why", sa.Text(), nullable=True),
        sa.Column("pipeline_id", sa.String(length=32), nullable=True),
        sa.Column("at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["schedule_id"], ["schedules.id"], name=op.f("fk_scheduled_runs_schedule_id_schedules")
        ),
        sa.PrimaryKeyConstraint("schedule_id", "due_at", name=op.f("pk_scheduled_runs")),
    )
    op.create_index(op.f("ix_scheduled_runs_state"), "scheduled_runs", ["state"], unique=False)


def downgrade() -> None:
    op.drop_table("scheduled_runs")
    op.drop_table("schedules")
