"""Sessions of the console that were opened with a token and ended: their cookies open nothing any more."""

import sqlalchemy as sa
from alembic import op

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "ended_sessions",
        sa.Column("cookie_sha256", sa.String(length=64), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("cookie_sha256", name=op.f("pk_ended_sessions")),
    )
    op.create_index(op.f("ix_ended_sessions_expires_at"), "ended_sessions", ["expires_at"])


def downgrade() -> None:
    op.drop_table("ended_sessions")
