"""For tests: a gateway over a real database, in this process, and callers of it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import httpx

from rdukit.interfaces import Clock
from rdukit_platform.audit.writer import AuditWriter
from rdukit_platform.console.testing import serving
from rdukit_platform.context import Platform, open_platform
from rdukit_platform.db.migrate import migrate
from rdukit_platform.settings import checked_home
from rdukit_platform.tenants.service import create_tenant, find_tenant
from rdukit_platform.tenants.tokens import create_token, ensure_first_token


class GatewayUnderTest:
    """A gateway and those who ask it."""

    def __init__(self, url: str, platform: Platform) -> None:
        self.url, self.platform = url, platform

    @property
    def admin(self) -> str:
        """The first token."""
        return self.platform.home.token_file.read_text().strip()

    def token(self, tenant: str, *scopes: str, life_s: float | None = None) -> str:
        """A new token of a tenant, which is made if there is none of this name."""
        return self.id_and_token(tenant, *scopes, life_s=life_s)[1]

    def id_and_token(self, tenant: str, *scopes: str, life_s: float | None = None) -> tuple[str, str]:
        """A new token's id and text, as ``token``."""
        now = self.platform.clock.now()
        with self.platform.database.write() as session:
            found = find_tenant(session, tenant) or create_tenant(session, tenant, now)
            row, text = create_token(session, found.id, "t", scopes, now, None if life_s is None else now + life_s)
            return row.id, text

    def ask(self, method: str, path: str, token: str | None, **arguments: Any) -> httpx.Response:
        """The answer to one request."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        headers |= arguments.pop("headers", {})
        return httpx.request(method, self.url + path, headers=headers, timeout=60.0, **arguments)

    def refused(self, method: str, path: str, token: str | None, **arguments: Any) -> tuple[int, str]:
        """Status and message of the answer to a request that must be refused."""
        answer = self.ask(method, path, token, **arguments)
        assert answer.status_code >= 400, answer.text
        return answer.status_code, str(answer.json()["error"]["message"])

    def entries(self, token: str, query: str = "") -> list[dict[str, Any]]:
        """What the token sees of the audit log."""
        answer = self.ask("GET", f"/v1/audit{query}", token)
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()["entries"]
        return found


@contextmanager
def opened_platform(clock: Clock | None = None) -> Iterator[Platform]:
    """The platform of ``RDUKIT_HOME``, with its first token; nothing of it runs."""
    opened = open_platform(checked_home())
    if clock is not None:
        opened = replace(opened, clock=clock, audit=AuditWriter(opened.database, clock))
    migrate(opened.database)
    ensure_first_token(opened.database, opened.home, time.time() if clock is None else clock.now())
    try:
        yield opened
    finally:
        opened.database.close()


@contextmanager
def gateway_under_test(clock: Clock | None = None) -> Iterator[GatewayUnderTest]:
    """``opened_platform`` at a real socket."""
    with opened_platform(clock) as platform, serving(platform) as url:
        yield GatewayUnderTest(url, platform)
