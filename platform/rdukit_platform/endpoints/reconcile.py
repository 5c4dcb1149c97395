"""The scheduler's pass over endpoints: reads, asks ``plan_replicas``, writes."""

import logging
from collections.abc import Callable, Mapping

from rdukit_platform.db.engine import Database
from rdukit_platform.endpoints.plan import plan_replicas
from rdukit_platform.endpoints.replicas import apply_plan, read_snapshots

logger = logging.getLogger(__name__)


def reconcile(
    database: Database, now: float, find_silent: Callable[[Mapping[str, float]], Mapping[str, float]]
) -> bool:
    """Bring the replicas of all endpoints one step nearer to what is wanted. Returns whether anything was to do.

    Args:
        find_silent: returns of the leases of replicas those whose workers do not beat.
    """
    with database.read() as session:
        snapshots = read_snapshots(session, now)
    replicas = [replica for snapshot in snapshots for replica in snapshot.replicas]
    silent = find_silent({each.id: each.lease_expires_at for each in replicas if each.lease_expires_at is not None})
    if not plan_replicas(snapshots, now, silent):
        return False
    with database.write() as session:
        # Again, where nobody else writes: of two schedulers one would start as many as the other.
        plan = plan_replicas(read_snapshots(session, now), now, silent)
        apply_plan(session, plan, now)
    for replica_id, reason in plan.ends:
        logger.info("replica ends replica=%s reason=%s", replica_id, reason)
    for replica_id in plan.drains:
        logger.info("replica drains replica=%s", replica_id)
    for endpoint_id, revision in plan.starts:
        logger.info("replica wanted endpoint=%s revision=%d", endpoint_id, revision)
    return True
