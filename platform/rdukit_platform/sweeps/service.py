"""Operations of a tenant on sweeps: submit, look, cancel. Every function runs in the caller's transaction."""

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from rdukit.errors import Conflict, InvalidTransition, NotFound
from rdukit_platform.catalog.check import check_metric, check_parameters, is_legal
from rdukit_platform.catalog.model import Boxes, BoxVerb, Selector
from rdukit_platform.catalog.own import with_own
from rdukit_platform.db.models import JobRow, SweepRow, TrialRow
from rdukit_platform.db.rows import new_id, read_page
from rdukit_platform.jobs.changes import lock_job
from rdukit_platform.jobs.service import artifact_kind, cancel_job, check_request
from rdukit_platform.jobs.states import FINAL, JobState
from rdukit_platform.sweeps.decide import check_space, probes
from rdukit_platform.sweeps.model import Algorithm, Goal, SweepRequest, SweepState, Trial
from rdukit_platform.sweeps.splits import with_split
from rdukit_platform.sweeps.suggest import check_optuna


def check_sweep(session: Session, boxes: Boxes, tenant_id: str, request: SweepRequest) -> SweepRequest:
    """Return the request with its box's exact version, if it is legal; nothing is written.

    Every value and both ends of each range are checked with the first values of the others. A combination that only
    the box refuses is a trial that fails.

    Raises:
        NotFound: the box, or an artifact of this tenant, does not exist.
        InvalidArgument: the space, a value in it, the job, or a metric is not valid; the message says what would be.
        Unavailable: its algorithm's library is not installed.
    """
    check_space(request)
    if request.algorithm is Algorithm.OPTUNA:
        check_optuna()
    job = request.job
    boxes = with_own(session, boxes, tenant_id, [job.box])
    kinds = {slot: artifact_kind(session, tenant_id, artifact) for slot, artifact in job.inputs.items()}
    points = probes(request.space)
    first = {**job.parameters, **points[0][1]}
    box = check_request(boxes, job.model_copy(update={"parameters": first}), kinds)
    verb = box.verb(job.verb)
    check_metric(box, verb, request.objective.metric, "objective")
    request = with_split(request, box, verb)
    job = request.job
    if request.early_stopping is not None:
        check_metric(box, verb, request.early_stopping.metric, "early_stopping", in_progress=True)
    known = {parameter.name: parameter for parameter in verb.parameters}
    defaults = {name: parameter.default for name, parameter in known.items()}
    for name, point in points:
        if not is_legal(known[name], point[name], {**defaults, **job.parameters, **point}):
            check_parameters(box, verb, {**job.parameters, **point})
    pinned = job.model_copy(update={"box": str(Selector(box.name, box.version))})
    update: dict[str, object] = {"job": pinned, "name": request.name or f"{job.box} {job.verb}"}
    for name, chosen in (("objective", request.objective), ("early_stopping", request.early_stopping)):
        if chosen is not None and chosen.goal is None:
            update[name] = chosen.model_copy(update={"goal": goal_of(verb, chosen.metric)})
    return request.model_copy(update=update)


def goal_of(verb: BoxVerb, metric: str) -> Goal:
    """Return the goal of a metric from the box's declaration; by default less is better (pure)."""
    is_more = any(each.name == metric and each.better == "higher" for each in verb.metrics)
    return Goal.MAXIMIZE if is_more else Goal.MINIMIZE


def submit_sweep(
    session: Session, tenant_id: str, request: SweepRequest, now: float, by: str | None = None
) -> SweepRow:
    """Record a sweep of ``by`` that ``check_sweep`` returned; the scheduler begins its trials.

    Raises:
        Conflict: the idempotency key belongs to another request.
    """
    content = request.model_dump(mode="json", exclude={"idempotency_key"})
    if request.idempotency_key is not None:
        is_same = (SweepRow.tenant_id == tenant_id, SweepRow.idempotency_key == request.idempotency_key)
        earlier = session.scalars(select(SweepRow).where(*is_same)).one_or_none()
        if earlier is not None and earlier.request == content:
            return earlier
        if earlier is not None:
            raise Conflict(
                f"idempotency key {request.idempotency_key!r} belongs to sweep {earlier.id}, which asked for something "
                "else; use a new key"
            )
    row = SweepRow(
        id=new_id("sweep"),
        tenant_id=tenant_id,
        name=request.name or "sweep",
        request=content,
        state=str(SweepState.RUNNING),
        version=0,
        idempotency_key=request.idempotency_key,
        submitted_by=by,
        created_at=now,
    )
    session.add(row)
    session.flush()
    return row


def get_sweep(session: Session, tenant_id: str, sweep_id: str, *, is_locked: bool = False) -> SweepRow:
    """Return one of the tenant's sweeps.

    Raises:
        NotFound: the tenant has no such sweep.
    """
    row = session.get(SweepRow, sweep_id)
    if row is None or row.tenant_id != tenant_id:
        raise NotFound(f"there is no sweep {sweep_id!r}; list yours with: rdukit sweep list")
    return lock_sweep(session, sweep_id) if is_locked else row


def lock_sweep(session: Session, sweep_id: str) -> SweepRow:
    """Return a sweep's row, locked until the transaction ends; its jobs are locked after it."""
    return session.scalars(
        select(SweepRow).where(SweepRow.id == sweep_id).with_for_update().execution_options(populate_existing=True)
    ).one()


def list_sweeps(
    session: Session, tenant_id: str, limit: int = 50, cursor: str | None = None
) -> tuple[list[SweepRow], str | None]:
    """Return the tenant's sweeps, newest first, and the cursor of the next page."""
    query = select(SweepRow).where(SweepRow.tenant_id == tenant_id)
    return read_page(session, query, SweepRow.created_at, SweepRow.id, limit, cursor)


def trials_of(session: Session, sweep_id: str) -> Sequence[tuple[TrialRow, JobRow]]:
    """Return a sweep's trials with their jobs, in their order."""
    query = select(TrialRow, JobRow).join(JobRow, JobRow.id == TrialRow.job_id).where(TrialRow.sweep_id == sweep_id)
    return [(trial, job) for trial, job in session.execute(query.order_by(TrialRow.number))]


def read_request(row: SweepRow) -> SweepRequest:
    """Return the request of a sweep."""
    return SweepRequest.model_validate(row.request)


def as_trial(row: TrialRow, job: JobRow, curve: Sequence[tuple[float, float]] = ()) -> Trial:
    """Return a row as a value; ``curve`` is that of a job that has not ended."""
    kept = curve if row.curve is None else [(step, value) for step, value in row.curve]
    return Trial(row.number, row.parameters, JobState(job.state), row.value, kept)


def cancel_sweep(session: Session, row: SweepRow, now: float) -> SweepRow:
    """Cancel a sweep, which the caller has locked, and its open trials. Cancelling twice is not an error.

    Raises:
        InvalidTransition: the sweep has ended in another state.
    """
    if row.state == SweepState.CANCELLED:
        return row
    if row.state != SweepState.RUNNING:
        raise InvalidTransition(f"sweep {row.id} has ended: {row.state} ({row.reason}); nothing is left to cancel")
    end_sweep(session, row, SweepState.CANCELLED, "cancelled by a user", now)
    return row


def end_sweep(session: Session, row: SweepRow, state: SweepState, reason: str, now: float) -> None:
    """Record a sweep's end, and cancel its open trials. The caller has locked it."""
    row.state, row.reason, row.ended_at, row.version = str(state), reason, now, row.version + 1
    for _, job in trials_of(session, row.id):
        if JobState(job.state) not in FINAL:
            job = lock_job(session, job.id)
            if JobState(job.state) not in FINAL:
                cancel_job(session, job, now)
    session.flush()
