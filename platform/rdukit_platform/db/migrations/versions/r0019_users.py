"""Users, their memberships in tenants, and organisations; tokens and sessions of a user."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "organisations",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_organisations")),
        sa.UniqueConstraint("name", name=op.f("uq_organisations_name")),
    )
    op.create_table(
        "users",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("issuer", sa.String(length=255), nullable=True),
        sa.Column("subject", sa.String(length=255), nullable=True),
        sa.Column("email", sa.String(length=254), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("is_admin", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("last_login_at", sa.Double(), nullable=True),
        sa.Column("disabled_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_users")),
        sa.UniqueConstraint("issuer", "subject", name=op.f("uq_users_issuer_subject")),
    )
    op.create_index(op.f("ix_users_email"), "users", ["email"], unique=False)
    op.create_index(op.f("ix_users_created_at"), "users", ["created_at"], unique=False)
    op.create_table(
        "memberships",
        sa.Column("user_id", sa.String(length=32), nullable=False),
        sa.Column("tenant_id", sa.String(length=32), nullable=False),
        sa.Column("role", sa.String(length=32), nullable=False),
        sa.Column("is_claimed", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_memberships_user_id_users")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_memberships_tenant_id_tenants")),
        sa.PrimaryKeyConstraint("user_id", "tenant_id", name=op.f("pk_memberships")),
    )
    op.create_index(op.f("ix_memberships_tenant_id"), "memberships", ["tenant_id"], unique=False)
    op.create_table(
        "organisation_admins",
        sa.Column("organisation_id", sa.String(length=32), nullable=False),
        sa.Column("user_id", sa.String(length=32), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["organisation_id"], ["organisations.id"], name=op.f("fk_organisation_admins_organisation_id_organisations")
        ),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_organisation_admins_user_id_users")),
        sa.PrimaryKeyConstraint("organisation_id", "user_id", name=op.f("pk_organisation_admins")),
    )
    op.create_index(op.f("ix_organisation_admins_user_id"), "organisation_admins", ["user_id"], unique=False)
    op.add_column("tenants", sa.Column("organisation_id", sa.String(length=32), nullable=True))
    op.create_index(op.f("ix_tenants_organisation_id"), "tenants", ["organisation_id"], unique=False)
    op.add_column("tokens", sa.Column("user_id", sa.String(length=32), nullable=True))
    op.add_column("tokens", sa.Column("is_session", sa.Boolean(), server_default=sa.false(), nullable=False))
    op.create_index(op.f("ix_tokens_user_id"), "tokens", ["user_id"], unique=False)


def downgrade() -> None:
    # A user's tokens would outlive what bounds them.
    op.execute("DELETE FROM tokens WHERE user_id IS NOT NULL")
    op.drop_index(op.f("ix_tokens_user_id"), table_name="tokens")
    op.drop_column("tokens", "is_session")
    op.drop_column("tokens", "user_id")
    op.drop_index(op.f("ix_tenants_organisation_id"), table_name="tenants")
    op.drop_column("tenants", "organisation_id")
    for table in ("organisation_admins", "memberships", "users", "organisations"):
        op.drop_table(table)
