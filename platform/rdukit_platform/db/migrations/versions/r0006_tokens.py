"""Tokens expire, can be rotated, and record their last use and the token that created them."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tokens", sa.Column("expires_at", sa.Double(), nullable=True))
    op.add_column("tokens", sa.Column("last_used_at", sa.Double(), nullable=True))
    op.add_column("tokens", sa.Column("made_by", sa.String(length=32), nullable=True))
    op.add_column("tokens", sa.Column("replaced_by", sa.String(length=32), nullable=True))
    op.create_index(op.f("ix_tokens_made_by"), "tokens", ["made_by"], unique=False)


def downgrade() -> None:
    op.drop_index(op.f("ix_tokens_made_by"), table_name="tokens")
    for column in ("replaced_by", "made_by", "last_used_at", "expires_at"):
        op.drop_column("tokens", column)
