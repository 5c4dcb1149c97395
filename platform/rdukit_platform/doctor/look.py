"""Reads what the platform's checks need, and changes nothing."""

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from rdukit.doctor.cli import Finding, Severity
from rdukit.errors import RdukitError
from rdukit.fence.probe import what_holds
from rdukit.interfaces import SystemClock
from rdukit.settings import TLS_KEY, resolve
from rdukit_platform.db.engine import Database
from rdukit_platform.db.migrate import is_newest
from rdukit_platform.db.models import TenantRow, TokenRow
from rdukit_platform.doctor.checks import (
    TokenFacts,
    boxes_finding,
    broker_finding,
    compose_findings,
    database_finding,
    gateway_finding,
    key_findings,
    token_findings,
)
from rdukit_platform.settings import (
    BOX_BACKEND,
    BROKER_PASSWORD_FILE,
    FENCE,
    GATEWAY_HOST,
    GATEWAY_PROXIES,
    GATEWAY_TLS_CERTIFICATE,
    GATEWAY_TLS_KEY,
    INSTALL_TENANTS,
    Home,
    current_home,
)
from rdukit_platform.tenants.lifetimes import is_over


def check_platform() -> Iterator[Finding]:
    """The settings of gateway, broker, database and boxes, and the tokens that are valid."""
    home = current_home()
    yield gateway_finding(resolve(GATEWAY_HOST), bool(resolve(GATEWAY_TLS_CERTIFICATE)), resolve(GATEWAY_PROXIES))
    yield from key_findings(_modes([resolve(GATEWAY_TLS_KEY), resolve(TLS_KEY), resolve(BROKER_PASSWORD_FILE)]))
    try:
        yield broker_finding(home.broker_url())
    except RdukitError as error:
        yield Finding("broker.password", Severity.UNKNOWN, error.message)
    yield database_finding(home.database_url())
    yield from compose_findings(os.environ)
    yield from _of_database(home)


def _modes(files: Iterable[str]) -> list[tuple[str, int]]:
    return [(file, stat.S_IMODE(Path(file).stat().st_mode)) for file in files if file and Path(file).exists()]


def _of_database(home: Home) -> Iterator[Finding]:
    path = home.database_file()
    if path is not None and not path.exists():
        yield Finding("tokens", Severity.GOOD, f"there is no database {path} yet")
        return
    try:
        with closing(Database.of_home(home)) as database:
            if not is_newest(database):
                yield Finding("tokens", Severity.UNKNOWN, "the database is of another version of rdukit")
                return
            with database.read() as session:
                rows = session.execute(
                    select(TokenRow, TenantRow.name).join(TenantRow, TenantRow.id == TokenRow.tenant_id)
                )
                now = SystemClock().now()
                tokens = [
                    TokenFacts(row.id, name, frozenset(row.scopes), row.created_at, row.expires_at, row.last_used_at,
                               row.made_by)
                    for row, name in rows
                    if not is_over(now, row.revoked_at, row.expires_at)
                ]  # fmt: skip
                tenants = len(session.scalars(select(TenantRow.id)).all())
    except SQLAlchemyError as error:
        yield Finding("tokens", Severity.UNKNOWN, f"the database does not answer: {type(error).__name__}")
        return
    yield from token_findings(tokens, now)
    yield boxes_finding(resolve(BOX_BACKEND), _is_fenced(), tenants, resolve(INSTALL_TENANTS))


def _is_fenced() -> bool:
    return resolve(FENCE) != "off" and what_holds().holds
