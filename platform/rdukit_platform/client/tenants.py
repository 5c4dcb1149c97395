"""Tenants of a platform, for programs: what one may have, and what it uses now."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from rdukit_platform.client.http import ApiClient
from rdukit_platform.client.values import read_value


@dataclass(frozen=True, slots=True)
class TenantInfo:
    """A tenant: what it may have, none where nothing is set, and what it uses now.

    ``tiles`` are those that its ``active_jobs`` have; ``quota`` are its own, ``max_tiles`` and ``max_jobs`` the most
    at once. ``limit_bytes`` of artifacts is 0 where there may be any number.
    """

    id: str
    name: str
    created_at: float | None = None
    weight: float | None = None
    quota: int | None = None
    max_tiles: int | None = None
    max_jobs: int | None = None
    tiles: int = 0
    active_jobs: int = 0
    queued_jobs: int = 0
    artifacts: int = 0
    artifact_bytes: int = 0
    limit_bytes: int = 0

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> "TenantInfo":
        """Read what the API says of a tenant."""
        kept = value.get("artifacts") or {}
        return read_value(
            cls, value, artifacts=kept.get("artifacts", 0), artifact_bytes=kept.get("bytes", 0),
            limit_bytes=kept.get("limit_bytes", 0),
        )  # fmt: skip


class Tenants:
    """Tenants, as far as their members see them: ``platform.tenants``."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api

    def own(self) -> TenantInfo:
        """Return the tenant that the token is of, and what it uses now.

        Raises:
            PermissionDenied: the token lacks the scope read.
        """
        return self.get(self._api.get("/v1/me")["tenant"]["id"])

    def get(self, tenant: str) -> TenantInfo:
        """Return a tenant by its id or name; administrators may name any, others their own.

        Raises:
            NotFound: there is none.
        """
        return TenantInfo.of(self._api.get(f"/v1/tenants/{quote(tenant, safe='')}"))
