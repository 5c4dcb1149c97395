"""Pages of a tenant's jobs by state, box, labels and words, in bounded time, and counts of jobs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased

from rdukit.errors import InvalidArgument
from rdukit.interfaces import Clock
from rdukit_platform.catalog.model import read_selector
from rdukit_platform.db.models import JobLabelRow, JobRow
from rdukit_platform.db.rows import after_cursor, check_limit, cursor_at, read_page
from rdukit_platform.jobs.search import LOOKED_THROUGH, MAX_PREFIXED, begins_with, has_words, read_search
from rdukit_platform.jobs.states import JobState

#: A label of fewer jobs is rare: the other conditions are then tested on those jobs alone.
RARE: Final = 2000
#: A count that took longer than ``SOON_S`` is reused for ``KEPT`` times as long, which bounds the time spent.
SOON_S: Final = 0.01
KEPT: Final = 50
#: Largest number of characters of a box's name.
MAX_BOX: Final = 128


@dataclass(frozen=True, slots=True)
class FoundJobs:
    """A page of a search."""

    jobs: list[JobRow]
    next_cursor: str | None
    #: Submission time of the last job examined, if some jobs were not examined.
    searched_to: float | None = None


@dataclass(frozen=True, slots=True)
class _Counted:
    counts: Mapping[str, int]
    due_at: float


class JobCounts:
    """Numbers of jobs by state, of one tenant or of all. Slow counts are reused for a while."""

    def __init__(self) -> None:
        self._known: dict[str | None, _Counted] = {}

    def read(self, session: Session, tenant_id: str | None, clock: Clock) -> Mapping[str, int]:
        """Return the number of jobs in each state that has any. Without a tenant, of all tenants."""
        began, known = clock.monotonic(), self._known.get(tenant_id)
        if known is not None:
            if began < known.due_at:
                return known.counts
            # Other callers get the former counts while this one counts.
            self._known[tenant_id] = _Counted(known.counts, began + 1.0)
        query = select(JobRow.state, func.count()).group_by(JobRow.state)
        if tenant_id is not None:
            query = query.where(JobRow.tenant_id == tenant_id)
        counts = {str(state): int(count) for state, count in session.execute(query)}
        took_s = clock.monotonic() - began
        if took_s > SOON_S:
            self._known[tenant_id] = _Counted(counts, began + KEPT * took_s)
        else:
            self._known.pop(tenant_id, None)
        return counts


def list_jobs(
    session: Session,
    tenant_id: str,
    state: str | None = None,
    limit: int = 50,
    cursor: str | None = None,
    labels: Mapping[str, str] | None = None,
) -> tuple[list[JobRow], str | None]:
    """Return the tenant's jobs that have all ``labels``, newest first, and the cursor of the next page.

    Raises:
        InvalidArgument: unknown state, limit or cursor.
    """
    _check_state(state)
    asked = list((labels or {}).items())
    if asked:
        is_plain = state is None and len(asked) == 1
        counts = {label: 0 if is_plain else _count(session, tenant_id, label) for label in asked}
        rarest = min(asked, key=counts.__getitem__)
        if state is None or counts[rarest] < RARE:
            others = [label for label in asked if label != rarest]
            return _list_labelled(session, tenant_id, state, limit, cursor, rarest, others)
    query = select(JobRow).where(JobRow.tenant_id == tenant_id, *(_has(JobRow.id, label) for label in asked))
    if state is not None:
        query = query.where(JobRow.state == state)
    return read_page(session, query, JobRow.created_at, JobRow.id, limit, cursor)


def find_jobs(
    session: Session,
    tenant_id: str,
    text: str,
    state: str | None = None,
    limit: int = 50,
    cursor: str | None = None,
    labels: Mapping[str, str] | None = None,
    box: str | None = None,
) -> FoundJobs:
    """Return the jobs of ``list_jobs`` that contain all words of ``text``.

    ``jobs.search`` names the fields that are searched.

    Args:
        box: name of the jobs' box, or ``NAME:VERSION`` of one that the tenant installed; None: any.
    Raises:
        InvalidArgument: unknown state, limit or cursor, a search that is too long, or no name of a box.
    """
    search, labels = read_search(text), dict(labels or {})
    for key, value in (search.labels or {}).items():
        if key not in labels and _count(session, tenant_id, (key, value)):
            labels[key] = value
    words = [word for word in search.words if word not in {f"{k}={v}".lower() for k, v in labels.items()}]
    if not words and box is None:
        rows, following = list_jobs(session, tenant_id, state, limit, cursor, labels)
        return FoundJobs(rows, following)
    _check_state(state)
    matches = has_words(session, tenant_id, words) + ([] if box is None else _of_box(box))
    if search.id_prefix:
        ids = session.scalars(select(JobRow.id).where(begins_with(search.id_prefix)).limit(MAX_PREFIXED)).all()
        # Expressions keep the planner from starting with the tenant's or the state's jobs instead of these few.
        few = [JobRow.id.in_(ids), func.coalesce(JobRow.tenant_id, "") == tenant_id, *_in_state(state)]
        query = select(JobRow).where(*few, *(_has(JobRow.id, label) for label in labels.items()), *matches)
        return FoundJobs(*read_page(session, query, JobRow.created_at, JobRow.id, limit, cursor))
    if not labels:
        begins = [JobRow.tenant_id == tenant_id] + ([JobRow.state == state] if state is not None else [])
        return _look_through(session, JobRow, JobRow.id, begins, matches, limit, cursor)
    matches += _in_state(state)
    rarest = min(labels.items(), key=lambda label: _count(session, tenant_id, label))
    job = select(JobRow.id).where(JobRow.id == JobLabelRow.job_id, *matches).exists()
    others = [_has(JobLabelRow.job_id, label) for label in labels.items() if label != rarest]
    begins = [*_is(JobLabelRow, tenant_id, rarest)]
    return _look_through(session, JobLabelRow, JobLabelRow.job_id, begins, [job, *others], limit, cursor)


def _look_through(
    session: Session, table: type[JobRow] | type[JobLabelRow], row_id: InstrumentedAttribute[str],
    begins: list[ColumnElement[bool]], matches: list[ColumnElement[bool]], limit: int, cursor: str | None,
) -> FoundJobs:  # fmt: skip
    """Examine a bounded number of rows that ``begins`` finds along an index; keep those that satisfy ``matches``."""
    check_limit(limit)
    at = table.created_at
    if cursor is not None:
        begins = [*begins, after_cursor(cursor, at, row_id)]
    # The query selects no ids, so the index alone gives the end of this part, including jobs of exactly that time.
    times = select(at).where(*begins).order_by(at.desc())
    last = session.scalars(times.offset(LOOKED_THROUGH - 1).limit(1)).first()
    within = [] if last is None else [at >= last]
    query = select(at, row_id).where(*begins, *within, *matches).order_by(at.desc(), row_id.desc()).limit(limit + 1)
    found = session.execute(query).all()
    page = found[:limit]
    jobs = {row.id: row for row in session.scalars(select(JobRow).where(JobRow.id.in_([one[1] for one in page])))}
    rows = [jobs[one[1]] for one in page]
    if len(found) > limit:
        return FoundJobs(rows, cursor_at(*page[-1]))
    return FoundJobs(rows, None) if last is None else FoundJobs(rows, cursor_at(last, ""), float(last))


def _in_state(state: str | None) -> list[ColumnElement[bool]]:
    """Return the condition on the state as an expression, so that the planner does not begin with it."""
    return [] if state is None else [func.coalesce(JobRow.state, "") == state]


def _of_box(box: str) -> list[ColumnElement[bool]]:
    """Return the conditions on a job's box and, if ``box`` has one, on its version."""
    selector = read_selector(box)
    if not selector.name.isprintable() or not 0 < len(selector.name) <= MAX_BOX:
        raise InvalidArgument(
            f"box {box[:MAX_BOX]!r} is not a name; expected NAME or NAME:VERSION, as rdukit box list shows it"
        )
    version = [] if selector.version is None else [JobRow.box_version == selector.version]
    return [JobRow.box == selector.name, *version]


def _check_state(state: str | None) -> None:
    if state is not None and state not in set(JobState):
        raise InvalidArgument(f"unknown job state {state!r}; expected {', '.join(JobState)}")


def _list_labelled(
    session: Session, tenant_id: str, state: str | None, limit: int, cursor: str | None, label: tuple[str, str],
    others: list[tuple[str, str]],
) -> tuple[list[JobRow], str | None]:  # fmt: skip
    # Only one table is in FROM, so the planner must begin with it.
    query = select(JobLabelRow).where(*_is(JobLabelRow, tenant_id, label))
    query = query.where(*(_has(JobLabelRow.job_id, other) for other in others))
    if state is not None:
        query = query.where(select(JobRow.id).where(JobRow.id == JobLabelRow.job_id, JobRow.state == state).exists())
    page, following = read_page(session, query, JobLabelRow.created_at, JobLabelRow.job_id, limit, cursor)
    rows = session.scalars(select(JobRow).where(JobRow.id.in_([found.job_id for found in page])))
    jobs = {row.id: row for row in rows}
    return [jobs[found.job_id] for found in page], following


def _count(session: Session, tenant_id: str, label: tuple[str, str]) -> int:
    """Count the jobs with a label, up to ``RARE``."""
    found = select(JobLabelRow.job_id).where(*_is(JobLabelRow, tenant_id, label)).limit(RARE).subquery()
    return session.scalars(select(func.count()).select_from(found)).one()


def _is(row: type[JobLabelRow], tenant_id: str, label: tuple[str, str]) -> tuple[ColumnElement[bool], ...]:
    return row.tenant_id == tenant_id, row.key == label[0], row.value == label[1]


def _has(job_id: InstrumentedAttribute[str], label: tuple[str, str]) -> ColumnElement[bool]:
    row = aliased(JobLabelRow)
    return select(row.job_id).where(row.job_id == job_id, row.key == label[0], row.value == label[1]).exists()
