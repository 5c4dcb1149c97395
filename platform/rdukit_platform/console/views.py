"""Views of the console's templates, from the API's values (pure): words, percentages, tones of colour."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from rdukit.units import elapsed_s, format_date, format_seconds
from rdukit_platform.catalog.figures import figure_text, figures_of, headline, is_projected
from rdukit_platform.db.references import group_of, sources_of
from rdukit_platform.jobs.schemas import Attempt, EventRecord, Job
from rdukit_platform.jobs.states import FINAL, JobReason, JobState

#: Colour of each state: a class of the style sheet.
TONES: Final = {
    JobState.SUBMITTED: "wait",
    JobState.QUEUED: "wait",
    JobState.STARTING: "busy",
    JobState.RUNNING: "busy",
    JobState.RETRYING: "warn",
    JobState.PAUSED: "off",
    JobState.SUCCEEDED: "good",
    JobState.FAILED: "bad",
    JobState.CANCELLED: "off",
}

#: Final reasons in words; the error's own message follows, if there is one.
REASONS: Final = {
    JobReason.COMPLETED: "Completed",
    JobReason.CACHED: "Reused from an identical job",
    JobReason.BOX_FAILED: "The ModelBox rejected the request",
    JobReason.ATTEMPTS_EXHAUSTED: "All attempts failed",
    JobReason.INPUT_LOST: "An input artifact no longer exists",
    JobReason.RUN_LIMIT_EXCEEDED: "It exceeded its run limit",
    JobReason.DEADLINE_EXCEEDED: "It missed its deadline",
    JobReason.NOT_RETRIED: "Its retry policy allows no further attempt",
    JobReason.CANCELLED_BY_USER: "Cancelled by a user",
    JobReason.STOPPED_EARLY: "Stopped early by its sweep",
    JobReason.UPSTREAM_ENDED: "An earlier step of its pipeline gave no output",
}

WAITING: Final = {
    JobState.SUBMITTED: "Waiting for its inputs",
    JobState.QUEUED: "Waiting for the scheduler",
    JobState.STARTING: "Starting its ModelBox",
    JobState.RETRYING: "Waiting before the next attempt",
    JobState.PAUSED: "Paused by a user",
}


@dataclass(frozen=True, slots=True)
class JobView:
    """A job and the words around it."""

    job: Job
    tone: str
    is_final: bool
    #: 0 to 100; None: unknown.
    percent: int | None
    progress: str
    why: str
    took: str
    attempt: str
    #: Steps before this step.
    after: str


@dataclass(frozen=True, slots=True)
class StepGroup:
    """A step of a pipeline: its only job, or the jobs of its fan-out."""

    name: str
    views: tuple[JobView, ...]
    #: Numbers of a fan-out's jobs by state; otherwise empty.
    words: str


@dataclass(frozen=True, slots=True)
class EventView:
    """Line of the timeline."""

    at: float
    title: str
    tone: str
    detail: str


@dataclass(frozen=True, slots=True)
class Figure:
    """A number of the result; ``is_projected`` marks figures of the emulated chip."""

    name: str
    value: str
    is_projected: bool


def figures_to_show(metrics: Mapping[str, Any], names: Iterable[str]) -> list[Figure]:
    """Return some figures in words."""
    return [Figure(name.replace("_", " "), figure_text(name, metrics[name]), is_projected(name)) for name in names]


def first_figures(metrics: Mapping[str, Any]) -> list[Figure]:
    """Return the figures that say how good a model is."""
    return figures_to_show(metrics, headline(metrics))


def view_job(job: Job, now: float) -> JobView:
    """Return a job as a line of the overview, and as the head of its page."""
    state = JobState(job.state)
    return JobView(
        job=job,
        tone=TONES[state],
        is_final=state in FINAL,
        percent=_percent(job, state),
        progress=progress_words(job.progress or {}, state),
        why=why_words(job),
        took=_took(job, now),
        attempt=f"{job.attempt} of {job.max_attempts}" if job.attempt else "–",
        after=", ".join(sources_of(job.references)),
    )


def group_steps(views: Iterable[JobView]) -> tuple[StepGroup, ...]:
    """Return a pipeline's jobs by step, in their order; the jobs of a fan-out stand together."""
    found: dict[str, list[JobView]] = {}
    for view in views:
        found.setdefault(group_of(view.job.step or view.job.name), []).append(view)
    return tuple(StepGroup(name, tuple(members), _fan_words(name, members)) for name, members in found.items())


def _fan_words(name: str, members: Sequence[JobView]) -> str:
    if [view.job.step or view.job.name for view in members] == [name]:
        return ""
    states = Counter(view.job.state for view in members)
    jobs = f"{len(members)} {'job' if len(members) == 1 else 'jobs'}"
    return f"{jobs}: {', '.join(f'{count} {state}' for state, count in states.items())}"


def why_words(job: Job) -> str:
    """Describe the reason of the job's state: its wait, or its end."""
    state = JobState(job.state)
    if job.reason is not None:
        words = REASONS.get(JobReason(job.reason), job.reason)
        message = str((job.error or {}).get("message") or "")
        return f"{words}: {message}" if message else words
    return job.waits_for or WAITING.get(state, "")


def progress_words(progress: Mapping[str, Any], state: JobState) -> str:
    """Describe the progress of a job in a state, from its last report."""
    if state is JobState.SUCCEEDED or not progress:
        return ""
    words = [str(progress["stage"])] if progress.get("stage") else []
    if progress.get("total"):
        words.append(f"{_whole(progress.get('step'))} of {_whole(progress.get('total'))}")
    if loss := progress.get("loss"):
        words.append(f"loss {loss:.4g}" if isinstance(loss, int | float) else f"loss {loss}")
    if state is JobState.RUNNING and isinstance(eta := progress.get("eta_s"), int | float) and eta > 0:
        words.append(f"{format_seconds(round(eta, 1))} to go")
    return " · ".join(words)


def view_events(events: Iterable[EventRecord]) -> list[EventView]:
    """Return the timeline: changes of state, oldest first."""
    return [_view_event(event) for event in events if event.kind == "state"]


def log_lines(events: Iterable[EventRecord], limit: int = 400) -> list[tuple[float, int, str]]:
    """Time, attempt and text of the last log lines, oldest first."""
    lines = [(event.at, event.attempt, str(event.data.get("line", ""))) for event in events if event.kind == "log"]
    return lines[-limit:]


def result_figures(result: Mapping[str, Any] | None) -> list[Figure]:
    """Return the numbers of a result in words. Emulated figures come last and are marked."""
    plain = figures_of(result)
    return sorted(figures_to_show(plain, plain), key=lambda figure: figure.is_projected)


def attempt_words(attempt: Attempt) -> str:
    """Describe the end of an attempt, or that it continues."""
    if attempt.ended_at is None:
        return "goes on" if attempt.claimed_at else "waits for a worker"
    message, code = (str((attempt.error or {}).get(name) or "") for name in ("message", "code"))
    return f"{attempt.outcome}: {message}{f' [{code}]' if code else ''}" if message else str(attempt.outcome)


def fault_of(attempt: Attempt) -> str:
    """Return the id of the hardware fault that ended an attempt; empty: no fault did."""
    detail = (attempt.error or {}).get("detail")
    return str(detail.get("fault_uuid") or "") if isinstance(detail, Mapping) else ""


def age_words(at: float | None, now: float) -> str:
    """Format an age: ``3 min ago``."""
    if at is None:
        return "–"
    seconds = max(0.0, now - at)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit} ago"
    return "just now" if seconds < 5 else f"{int(seconds)} s ago"


def clock_words(at: float | None) -> str:
    """Format the time of day in UTC."""
    return "–" if at is None else datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S")


def date_words(at: float | None) -> str:
    """Format date and time in UTC, for machines and tooltips."""
    return "" if at is None else f"{format_date(at)} UTC"


def _view_event(event: EventRecord) -> EventView:
    data = event.data
    after = str(data.get("to") or "")
    parts: list[str] = []
    if reason := data.get("reason"):
        parts.append(REASONS.get(JobReason(str(reason)), str(reason)) if str(reason) in set(JobReason) else str(reason))
    elif outcome := data.get("outcome"):
        parts.append(str(outcome))
    error = data.get("error")
    if isinstance(error, dict) and error.get("message"):
        parts.append(str(error["message"]))
    if node := data.get("node"):
        parts.append(f"node {node}")
    if worker := data.get("worker"):
        parts.append(f"worker {worker}")
    tiles = data.get("tiles")
    if isinstance(tiles, list) and tiles:
        parts.append(tile_words([str(tile) for tile in tiles]))
    title = after if event.attempt == 0 else f"{after}, attempt {event.attempt}"
    tone = TONES.get(JobState(after), "off") if after in set(JobState) else "off"
    return EventView(event.at, title, tone, " · ".join(parts))


def tile_words(paths: Sequence[str]) -> str:
    """Format the paths of a lease: ``XRDU_0/RDU_1 tiles 0–2``."""
    by_rdu: dict[str, list[str]] = {}
    for path in paths:
        rdu, _, tile = path.removeprefix("/NODE/").rpartition("/")
        by_rdu.setdefault(rdu, []).append(tile.rsplit("_", 1)[-1])
    words = []
    for rdu, numbers in by_rdu.items():
        span = numbers[0] if len(numbers) == 1 else f"{numbers[0]}–{numbers[-1]}"
        words.append(f"{rdu} {'tile' if len(numbers) == 1 else 'tiles'} {span}")
    return ", ".join(words)


def _percent(job: Job, state: JobState) -> int | None:
    if state is JobState.SUCCEEDED:
        return 100
    step, total = (job.progress or {}).get("step"), (job.progress or {}).get("total")
    if not isinstance(step, int | float) or not isinstance(total, int | float) or not total:
        return None
    return max(0, min(100, int(100 * step / total)))


def _whole(value: object) -> str:
    return f"{value:.0f}" if isinstance(value, int | float) else "0"


def _took(job: Job, now: float) -> str:
    if job.started_at is None:
        return "–"
    return format_seconds(round(elapsed_s(job.started_at, job.ended_at or now), 1))
