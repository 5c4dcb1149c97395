"""Only one scheduler holds a lease, and decides."""

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "scheduler_lease",
        sa.Column("name", sa.String(length=32), nullable=False),
        sa.Column("holder", sa.String(length=128), nullable=False),
        sa.Column("place", sa.String(length=128), nullable=False),
        sa.Column("token", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("beats", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("beat_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_scheduler_lease")),
    )


def downgrade() -> None:
    op.drop_table("scheduler_lease")
