"""Tables of users, their memberships, and organisations; ``db.models`` has all tables."""

from sqlalchemy import Boolean, Double, ForeignKey, Index, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from rdukit_platform.db.base import Base


class OrganisationRow(Base):
    """Organisation: a group of tenants with administrators of its own. Isolation is by tenant."""

    __tablename__ = "organisations"
    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    name: Mapped[str] = mapped_column(String(64), unique=True)
    created_at: Mapped[float]


class UserRow(Base):
    """A person. Issuer and subject identify the user; they are null between an invitation and the first login."""

    __tablename__ = "users"
    __table_args__ = (UniqueConstraint("issuer", "subject"), Index(None, "email"), Index(None, "created_at"))
    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    issuer: Mapped[str | None] = mapped_column(String(255))
    subject: Mapped[str | None] = mapped_column(String(255))
    #: Address of the invitation or the issuer, in lower case; empty: no address is verified.
    email: Mapped[str] = mapped_column(String(254))
    name: Mapped[str] = mapped_column(String(128))
    #: Whether it has the scope admin.
    is_admin: Mapped[bool] = mapped_column(Boolean)
    created_at: Mapped[float]
    last_login_at: Mapped[float | None]
    disabled_at: Mapped[float | None]


class MembershipRow(Base):
    """Membership of a user in a tenant, by a role."""

    __tablename__ = "memberships"
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), primary_key=True, index=True)
    role: Mapped[str] = mapped_column(String(32))
    #: Whether the issuer's claims grant it; each login then updates it.
    is_claimed: Mapped[bool] = mapped_column(Boolean)
    created_at: Mapped[float]


class OrganisationAdminRow(Base):
    """Administrator of an organisation: a tenant administrator in each of its tenants."""

    __tablename__ = "organisation_admins"
    organisation_id: Mapped[str] = mapped_column(ForeignKey("organisations.id"), primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"), primary_key=True, index=True)
    created_at: Mapped[float]


class OidcLoginRow(Base):
    """A login at the issuer. The row is deleted on its return, so it is used once."""

    __tablename__ = "oidc_logins"
    state_sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    #: SHA-256 of the secret in the cookie of the browser that began it.
    browser_sha256: Mapped[str] = mapped_column(String(64))
    nonce: Mapped[str] = mapped_column(String(64))
    #: PKCE verifier.
    verifier: Mapped[str] = mapped_column(String(128))
    redirect_uri: Mapped[str] = mapped_column(String(512))
    #: The console's page that it leads to.
    next: Mapped[str] = mapped_column(String(512))
    expires_at: Mapped[float] = mapped_column(Double, index=True)


class EndedSessionRow(Base):
    """A console session that was opened with a token, and ended before its cookie."""

    __tablename__ = "ended_sessions"
    cookie_sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    #: End of the cookie, when the row is deleted.
    expires_at: Mapped[float] = mapped_column(Double, index=True)


class DeviceLoginRow(Base):
    """A command that waits for its user's approval in the console."""

    __tablename__ = "device_logins"
    device_sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    user_code: Mapped[str] = mapped_column(String(16), unique=True)
    #: Name and address of the command.
    name: Mapped[str] = mapped_column(String(64))
    address: Mapped[str] = mapped_column(String(64))
    #: The token or session that approved it.
    token_id: Mapped[str | None] = mapped_column(String(32))
    is_denied: Mapped[bool] = mapped_column(Boolean)
    next_poll_at: Mapped[float]
    expires_at: Mapped[float] = mapped_column(Double, index=True)
