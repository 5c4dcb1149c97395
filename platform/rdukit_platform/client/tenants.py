"""Tenants of a platform, for programs: their limits, and their present use."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from rdukit_platform.client.http import ApiClient
from rdukit_platform.client.values import read_value


@dataclass(frozen=True, slots=True)
class TenantInfo:
    """A tenant: its limits (``None`` if not set), and its present use.

    ``tiles`` are those of its ``active_jobs``. ``quota`` are guaranteed tiles; ``max_tiles`` and ``max_jobs`` are
    limits. ``limit_bytes`` of artifacts is 0 without a limit.
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
        """Parse the API's description of a tenant."""
        kept = value.get("artifacts") or {}
        return read_value(
            cls, value, artifacts=kept.get("artifacts", 0), artifact_bytes=kept.get("bytes", 0),
            limit_bytes=kept.get("limit_bytes", 0),
        )  # fmt: skip


class Tenants:
    """Tenants, from the view of their members: ``platform.tenants``."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api

    def own(self) -> TenantInfo:
        """Return the token's tenant, with its present use.

        Raises:
            PermissionDenied: the token lacks the scope read.
        """
        return self.get(self._api.get("/v1/me")["tenant"]["id"])

    def get(self, tenant: str) -> TenantInfo:
        """Return a tenant by its id or name; administrators may name any, others their own.

        Raises:
            NotFound: there is no such tenant.
        """
        return TenantInfo.of(self._api.get(f"/v1/tenants/{quote(tenant, safe='')}"))
