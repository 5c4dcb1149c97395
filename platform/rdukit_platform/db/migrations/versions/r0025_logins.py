"""Logins in progress: at an issuer, and of devices."""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "oidc_logins",
        sa.Column("state_sha256", sa.String(length=64), nullable=False),
        sa.Column("browser_sha256", sa.String(length=64), nullable=False),
        sa.Column("nonce", sa.String(length=64), nullable=False),
        sa.Column("verifier", sa.String(length=128), nullable=False),
        sa.Column("redirect_uri", sa.String(length=512), nullable=False),
        sa.Column("next", sa.String(length=512), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("state_sha256", name=op.f("pk_oidc_logins")),
    )
    op.create_index(op.f("ix_oidc_logins_expires_at"), "oidc_logins", ["expires_at"], unique=False)
    op.create_table(
        "device_logins",
        sa.Column("device_sha256", sa.String(length=64), nullable=False),
        sa.Column("user_code", sa.String(length=16), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("address", sa.String(length=64), nullable=False),
        sa.Column("token_id", sa.String(length=32), nullable=True),
        sa.Column("is_denied", sa.Boolean(), nullable=False),
        sa.Column("next_poll_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("device_sha256", name=op.f("pk_device_logins")),
        sa.UniqueConstraint("user_code", name=op.f("uq_device_logins_user_code")),
    )
    op.create_index(op.f("ix_device_logins_expires_at"), "device_logins", ["expires_at"], unique=False)


def downgrade() -> None:
    op.drop_table("device_logins")
    op.drop_table("oidc_logins")
