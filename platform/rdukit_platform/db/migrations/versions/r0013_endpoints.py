"""Endpoints: wanted models of a tenant, their revisions, replicas, and use."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "endpoints",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("tenant_id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("held_name", sa.String(length=64), nullable=True),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("replicas", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.Column("deleted_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_endpoints_tenant_id_tenants")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_endpoints")),
        sa.UniqueConstraint("tenant_id", "held_name", name=op.f("uq_endpoints_tenant_id_held_name")),
    )
    op.create_index(op.f("ix_endpoints_tenant_id_created_at"), "endpoints", ["tenant_id", "created_at"], unique=False)
    op.create_table(
        "endpoint_revisions",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("endpoint_id", sa.String(length=32), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("box", sa.String(length=64), nullable=False),
        sa.Column("box_version", sa.Integer(), nullable=True),
        sa.Column("pef_id", sa.String(length=32), nullable=False),
        sa.Column("checkpoint_id", sa.String(length=32), nullable=True),
        sa.Column("expert_id", sa.String(length=32), nullable=True),
        sa.Column("tiles", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["checkpoint_id"], ["artifacts.id"], name=op.f("fk_endpoint_revisions_checkpoint_id_artifacts")
        ),
        sa.ForeignKeyConstraint(
            ["endpoint_id"], ["endpoints.id"], name=op.f("fk_endpoint_revisions_endpoint_id_endpoints")
        ),
        sa.ForeignKeyConstraint(["expert_id"], ["experts.id"], name=op.f("fk_endpoint_revisions_expert_id_experts")),
        sa.ForeignKeyConstraint(["pef_id"], ["artifacts.id"], name=op.f("fk_endpoint_revisions_pef_id_artifacts")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_endpoint_revisions")),
        sa.UniqueConstraint("endpoint_id", "number", name=op.f("uq_endpoint_revisions_endpoint_id_number")),
    )
    for column in ("pef_id", "checkpoint_id"):
        op.create_index(op.f(f"ix_endpoint_revisions_{column}"), "endpoint_revisions", [column], unique=False)
    op.create_table(
        "endpoint_replicas",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("endpoint_id", sa.String(length=32), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.String(length=32), nullable=True),
        sa.Column("message", sa.Text(), nullable=True),
        sa.Column("token", sa.String(length=64), nullable=False),
        sa.Column("worker", sa.String(length=128), nullable=True),
        sa.Column("lease_expires_at", sa.Double(), nullable=True),
        sa.Column("tiles", sa.JSON(), nullable=True),
        sa.Column("box", sa.JSON(), nullable=True),
        sa.Column("address", sa.Text(), nullable=True),
        sa.Column("address_uid", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("claimed_at", sa.Double(), nullable=True),
        sa.Column("ready_at", sa.Double(), nullable=True),
        sa.Column("draining_at", sa.Double(), nullable=True),
        sa.Column("busy_until", sa.Double(), nullable=True),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["endpoint_id"], ["endpoints.id"], name=op.f("fk_endpoint_replicas_endpoint_id_endpoints")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_endpoint_replicas")),
    )
    op.create_index(
        op.f("ix_endpoint_replicas_endpoint_id_created_at"), "endpoint_replicas", ["endpoint_id", "created_at"]
    )
    op.create_index(op.f("ix_endpoint_replicas_state"), "endpoint_replicas", ["state"], unique=False)
    op.create_table(
        "endpoint_usage",
        sa.Column("endpoint_id", sa.String(length=32), nullable=False),
        sa.Column("day", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.Column("failures", sa.BigInteger(), nullable=False),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("completion_tokens", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["endpoint_id"], ["endpoints.id"], name=op.f("fk_endpoint_usage_endpoint_id_endpoints")
        ),
        sa.PrimaryKeyConstraint("endpoint_id", "day", name=op.f("pk_endpoint_usage")),
    )


def downgrade() -> None:
    for table in ("endpoint_usage", "endpoint_replicas", "endpoint_revisions", "endpoints"):
        op.drop_table(table)
