"""Limits of tiles for endpoints: their tenant's limit, and its quota with the tiles of no quota.

Endpoints cannot be preempted, so they borrow no tiles that another tenant may claim.
"""

from collections import Counter
from collections.abc import Mapping

from sqlalchemy import select
from sqlalchemy.orm import Session, aliased

from rdukit.errors import QuotaExceeded
from rdukit_platform.db.models import EndpointRevisionRow, EndpointRow, TenantRow
from rdukit_platform.endpoints.plan import count_canaries
from rdukit_platform.nodes.registry import read_capacities


def tiles_wanted(replicas: int, tiles: int, canary_tiles: int | None = None, percent: int | None = None) -> int:
    """Return the tiles that an endpoint wants (pure): for its replicas, and for its canary's."""
    canaries = 0 if canary_tiles is None or percent is None else count_canaries(replicas, percent)
    return replicas * tiles + canaries * (canary_tiles or 0)


def tiles_for_endpoints(
    tenant_id: str, quotas: Mapping[str, int | None], wanted: Mapping[str, int], total: int
) -> int | None:
    """Return the tiles that a tenant's endpoints may want (pure): its quota, and the tiles of no quota.

    Args:
        quotas: quotas of all tenants.
        wanted: tiles that the endpoints of each tenant want.
        total: tiles of all nodes.
    Returns:
        None: no limit, because there are no quotas, or no node has reported its tiles.
    """
    if not total or all(quota is None for quota in quotas.values()):
        return None
    own = sum(quota or 0 for quota in quotas.values())
    beyond = sum(max(wanted.get(each, 0) - (quota or 0), 0) for each, quota in quotas.items() if each != tenant_id)
    return (quotas.get(tenant_id) or 0) + max(total - own - beyond, 0)


def check_tiles(
    session: Session, row: EndpointRow, replicas: int, tiles: int, canary_tiles: int | None = None,
    percent: int | None = None,
) -> None:  # fmt: skip
    """Refuse a change by which an endpoint wants more tiles than before, and more than its tenant may have.

    Args:
        row: the endpoint before the change; it need not be in the database.
        tiles, canary_tiles: tiles of each replica of the wanted revision, and of the canary.
        percent: the canary's percentage of the calls.
    Raises:
        QuotaExceeded: the message has the largest allowed number of replicas.
    """
    wanted: Counter[str] = Counter()
    before = 0
    for endpoint_id, tenant_id, number in _read_wanted(session):
        if endpoint_id == row.id:
            before = number
        else:
            wanted[tenant_id] += number
    after = tiles_wanted(replicas, tiles, canary_tiles, percent)
    if after <= before:
        return
    tenants = session.scalars(select(TenantRow)).all()
    limit = next(tenant.max_tiles for tenant in tenants if tenant.id == row.tenant_id)
    total = sum(each.tiles + each.broken_tiles + each.cordoned_tiles for each in read_capacities(session))
    unclaimed = tiles_for_endpoints(row.tenant_id, {tenant.id: tenant.quota for tenant in tenants}, wanted, total)
    used = wanted[row.tenant_id]
    canary = after - replicas * tiles
    for most, option, why in (
        (limit, "--max-tiles", "its tenant may have {} tiles"),
        (unclaimed, "--quota", "{} tiles are in its tenant's quota or in no quota, and endpoints cannot borrow more"),
    ):
        if most is not None and used + after > most:
            raise QuotaExceeded(
                f"endpoint {row.name!r} wants {replicas} replicas of {tiles} tiles"
                f"{f' and {canary} tiles for its canary' if canary else ''}; {why.format(most)}, and its other "
                f"endpoints want {used}; expected at most "
                f"{max((most - used - canary) // max(tiles, 1), 0)} replicas; an "
                "administrator may allow more: "
                f"rdukit tenant set TENANT {option} N",
                field="replicas", max_tiles=most, used=used, replicas=replicas, tiles=tiles,
            )  # fmt: skip


def _read_wanted(session: Session) -> list[tuple[str, str, int]]:
    """Return each endpoint's id, its tenant's id, and the tiles that it wants."""
    wanted, canary = aliased(EndpointRevisionRow), aliased(EndpointRevisionRow)
    query = (
        select(
            EndpointRow.id, EndpointRow.tenant_id, EndpointRow.replicas, wanted.tiles, canary.tiles,
            EndpointRow.canary_percent,
        )
        .join(wanted, (wanted.endpoint_id == EndpointRow.id) & (wanted.number == EndpointRow.revision))
        .outerjoin(canary, (canary.endpoint_id == EndpointRow.id) & (canary.number == EndpointRow.canary))
        .where(EndpointRow.held_name.is_not(None))
    )  # fmt: skip
    return [
        (name, tenant, tiles_wanted(replicas, tiles, canary_tiles, percent))
        for name, tenant, replicas, tiles, canary_tiles, percent in session.execute(query)
    ]
