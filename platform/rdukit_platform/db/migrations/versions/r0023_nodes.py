"""Several nodes: each with its row, orders to their daemons, and of attempts, replicas and workers the node."""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

INDEX = "ix_node_orders_node_created_at"


def upgrade() -> None:
    op.create_table(
        "nodes",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("home_id", sa.String(length=64), nullable=False),
        sa.Column("host", sa.String(length=255), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("capacity", sa.JSON(), nullable=True),
        sa.Column("leased", sa.JSON(), nullable=False),
        sa.Column("told", sa.JSON(), nullable=False),
        sa.Column("beats", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("beat_at", sa.Double(), nullable=False),
        sa.Column("joined_at", sa.Double(), nullable=False),
        sa.Column("changed_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_nodes")),
    )
    op.create_table(
        "node_orders",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("node", sa.String(length=64), nullable=False),
        sa.Column("operation", sa.String(length=32), nullable=False),
        sa.Column("arguments", sa.JSON(), nullable=False),
        sa.Column("ordered_by", sa.String(length=160), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("taken_at", sa.Double(), nullable=True),
        sa.Column("answer", sa.JSON(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_node_orders")),
    )
    op.create_index(INDEX, "node_orders", ["node", "created_at"], unique=False)
    for column in ("node", "kept"):
        op.add_column("attempts", sa.Column(column, sa.String(length=64), nullable=True))
    op.add_column("endpoint_replicas", sa.Column("node", sa.String(length=64), nullable=True))
    op.add_column("services", sa.Column("node", sa.String(length=64), nullable=False, server_default=""))


def downgrade() -> None:
    op.drop_column("attempts", "kept")
    for table in ("services", "endpoint_replicas", "attempts"):
        op.drop_column(table, "node")
    op.drop_index(INDEX, table_name="node_orders")
    op.drop_table("node_orders")
    op.drop_table("nodes")
