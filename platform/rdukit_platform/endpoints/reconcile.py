"""The scheduler's pass over endpoints: reads, asks ``plan_replicas``, writes."""

import logging

from rdukit_platform.db.engine import Database
from rdukit_platform.endpoints.plan import plan_replicas
from rdukit_platform.endpoints.replicas import apply_plan, read_snapshots

logger = logging.getLogger(__name__)


def reconcile(database: Database, now: float, *, may_expire: bool = True) -> bool:
    """Bring the replicas of all endpoints one step nearer to what is wanted. Returns whether anything was to do."""
    with database.read() as session:
        snapshots = read_snapshots(session, now)
    if not plan_replicas(snapshots, now, may_expire=may_expire):
        return False
    with database.write() as session:
        # Again, where nobody else writes: of two schedulers one would start as many as the other.
        plan = plan_replicas(read_snapshots(session, now), now, may_expire=may_expire)
        apply_plan(session, plan, now)
    for replica_id, reason in plan.ends:
        logger.info("replica ends replica=%s reason=%s", replica_id, reason)
    for replica_id in plan.drains:
        logger.info("replica drains replica=%s", replica_id)
    for endpoint_id, revision in plan.starts:
        logger.info("replica wanted endpoint=%s revision=%d", endpoint_id, revision)
    return True
