"""Decision which queued jobs start now, and why the others wait. Pure: a snapshot in, a decision out.

Jobs go by priority, then by the shares of their tenants (``shares``), then by age. The first one that does not fit
gets a reservation where the run limits of the active jobs tell when its tiles get free; later jobs pass it that end
before, or need none of its tiles. Where that cannot be told it lets smaller ones past it, until it has waited
``starve_s``; from then on nothing that would take its tiles starts before it. Where there are several tenants, no one
of them gets the last free slot beside jobs of its own: the next one's first job finds it.

For n jobs it takes O(n log n).
"""

from collections.abc import Mapping

from rdukit_platform.jobs.states import WaitCode
from rdukit_platform.nodes import why_never
from rdukit_platform.scheduler.model import Decision, QueuedJob, QueueSnapshot, Wait
from rdukit_platform.scheduler.reserve import Ending, Reservation, Room, estimate_starts, reserve
from rdukit_platform.scheduler.shares import Shares, in_turn

#: What jobs with these codes wait for ends when others end, so that a time can be told.
_ENDS_WITH_OTHERS = frozenset({WaitCode.RESOURCES, WaitCode.PRIORITY})


def decide(snapshot: QueueSnapshot) -> Decision:
    """Return the admissions for this snapshot."""
    now = snapshot.now
    shares = Shares(snapshot)
    room = _free_room(snapshot)
    endings = [Ending(max(job.ends_at, now), job.tiles) for job in snapshot.active if job.ends_at is not None]
    to_come = room.tiles + sum(ending.tiles for ending in endings)
    never = _why_never_each(snapshot)
    admitted: list[str] = []
    waiting: list[QueuedJob] = []
    waits: dict[str, Wait] = {}
    #: For the first job that lacks tiles and either knows when it gets them (``to_come`` suffices) or has starved.
    reserved: Reservation | None = None
    for job in in_turn(snapshot.queued, shares):
        wait = _find_wait(snapshot, job, shares.jobs[job.tenant_id], room, reserved, never)
        if wait is None:
            admitted.append(job.job_id)
            shares.add(job)
            room.take(job.tiles)
            if job.run_limit_s is None:
                to_come -= job.tiles
            else:
                endings.append(Ending(now + job.run_limit_s, job.tiles))
            if reserved is not None:
                reserved.note(job, now)
            continue
        waits[job.job_id] = wait
        if wait.code in _ENDS_WITH_OTHERS:
            waiting.append(job)
            has_starved = now - job.since >= snapshot.starve_s
            if reserved is None and job.tiles > room.tiles and (has_starved or job.tiles <= to_come):
                reserved = reserve(job, room.tiles, endings)
    for job_id, at in estimate_starts(waiting, room, endings, now).items():
        waits[job_id] = Wait(waits[job_id].code, waits[job_id].why, at)
    return Decision(tuple(admitted), waits)


def _why_never_each(snapshot: QueueSnapshot) -> Mapping[int, str | None]:
    node = snapshot.node
    return {tiles: why_never(tiles, node) if node and tiles else None for tiles in {j.tiles for j in snapshot.queued}}


def _free_room(snapshot: QueueSnapshot) -> Room:
    slots = snapshot.slots - len(snapshot.active)
    if snapshot.node is None:
        return Room(0, 0, slots)
    pending = [job for job in snapshot.active if job.tiles and not job.holds_tiles]
    promised = sum(job.tiles for job in pending)
    return Room(snapshot.node.free_tiles - promised, snapshot.node.free_applications - len(pending), slots)


def _find_wait(
    snapshot: QueueSnapshot, job: QueuedJob, tenant_active: int, room: Room, reserved: Reservation | None,
    never: Mapping[int, str | None],
) -> Wait | None:  # fmt: skip
    if job.not_before is not None and job.not_before > snapshot.now:
        pause_s = job.not_before - snapshot.now
        return Wait(WaitCode.BEGIN_TIME, f"its next attempt is due in {pause_s:.1f} s", job.not_before)
    if snapshot.tenant_jobs and tenant_active >= snapshot.tenant_jobs:
        why = f"its tenant has {tenant_active} of {snapshot.tenant_jobs} jobs running"
        return Wait(WaitCode.TENANT_LIMIT, why)
    if snapshot.slots == 0:
        return Wait(WaitCode.WORKERS_AWAY, "no worker is up")
    if job.tiles and snapshot.node is None:
        return Wait(WaitCode.NODE_AWAY, "no node daemon answers")
    if (too_large := never[job.tiles]) is not None:
        return Wait(WaitCode.TOO_LARGE, too_large)
    if room.slots <= 0:
        return Wait(WaitCode.RESOURCES, f"all {snapshot.slots} worker slots are taken")
    if room.slots == 1 and tenant_active and snapshot.has_other_tenants:
        return Wait(WaitCode.TENANT_LIMIT, "the last free worker slot is kept for other tenants")
    return _find_wait_for_tiles(snapshot, job, room, reserved) if job.tiles else None


def _find_wait_for_tiles(
    snapshot: QueueSnapshot, job: QueuedJob, room: Room, reserved: Reservation | None
) -> Wait | None:
    assert snapshot.node is not None
    if job.tiles > room.tiles:
        why = f"it needs {job.tiles} tiles, {max(room.tiles, 0)} of {snapshot.node.tiles} are free"
        if snapshot.node.cordoned_tiles:
            why += f", {snapshot.node.cordoned_tiles} are cordoned or in maintenance"
        return Wait(WaitCode.RESOURCES, why)
    if room.places <= 0:
        return Wait(WaitCode.RESOURCES, "the node runs as many applications as it may")
    if reserved is None or reserved.lets_past(job, snapshot.now):
        return None
    return Wait(WaitCode.PRIORITY, _comes_first(job, reserved))


def _comes_first(job: QueuedJob, reserved: Reservation) -> str:
    first, is_own = reserved.job, reserved.job.tenant_id == job.tenant_id
    if reserved.at == float("inf"):
        return (
            f"job {first.job_id} has waited longer for {first.tiles} tiles" if is_own
            else "a job of another tenant has waited longer for tiles"
        )  # fmt: skip
    before = f"job {first.job_id} comes" if is_own else "a job of another tenant comes"
    how = "has no run limit" if job.run_limit_s is None else "would end too late"
    return f"{before} first for {f'{first.tiles} tiles' if is_own else 'tiles'}, and this one {how}"
