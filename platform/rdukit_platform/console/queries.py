"""Queries of the console's pages to the database and the node; one transaction a page."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Final

from markupsafe import Markup
from sqlalchemy import select
from sqlalchemy.orm import Session

from rdukit.units import elapsed_s, format_seconds
from rdukit_platform.api.artifacts import show_artifact
from rdukit_platform.api.experts import Expert, show_expert
from rdukit_platform.artifacts.picture import draw_lineage, graph_of
from rdukit_platform.artifacts.service import (
    Artifact,
    get_artifact,
    parents_and_children,
    read_lineage_jobs,
    walk_lineage,
)
from rdukit_platform.catalog.experts import CHECKPOINT, PEF, experts_of
from rdukit_platform.catalog.model import BoxDescription, Selector
from rdukit_platform.console.curve import Curve, draw_metrics
from rdukit_platform.console.views import (
    TONES,
    EventView,
    Figure,
    JobView,
    StepGroup,
    attempt_words,
    date_words,
    fault_of,
    group_steps,
    result_figures,
    tile_words,
    view_events,
    view_job,
)
from rdukit_platform.db.models import (
    ArtifactRow,
    EndpointReplicaRow,
    EndpointRow,
    JobEventRow,
    JobRow,
    NodeRow,
    PipelineRow,
)
from rdukit_platform.jobs.experts import is_promotable
from rdukit_platform.jobs.promotion import pipeline_jobs
from rdukit_platform.jobs.schemas import (
    Attempt,
    EventRecord,
    Job,
    Pipeline,
    show_attempt,
    show_event,
    show_job,
    show_pipeline,
)
from rdukit_platform.jobs.service import PROFILE, list_attempts, list_events
from rdukit_platform.jobs.states import JobState
from rdukit_platform.nodes.view import find_drain

#: Largest number of progress events of a curve, and of log lines on a page.
MAX_PROGRESS: Final = 20_000
MAX_LINES: Final = 400
#: Largest picture that a page shows.
MAX_PICTURE_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class AttemptLine:
    """An attempt in words."""

    attempt: Attempt
    tiles: str
    took: str
    words: str
    #: Id of the hardware fault that ended it, or empty.
    fault: str


@dataclass(frozen=True, slots=True)
class Parent:
    """An artifact that another was made from, by the slot it had."""

    id: str
    slot: str


@dataclass(frozen=True, slots=True)
class SlotLine:
    """Input or output of a job; ``artifact`` is ``None`` while it is missing, and ``words`` give the reason."""

    side: str
    slot: str
    artifact: Artifact | None
    words: str
    parents: tuple[Parent, ...]


@dataclass(frozen=True, slots=True)
class PipelineLine:
    """A pipeline and its jobs."""

    pipeline: Pipeline
    tone: str
    views: tuple[JobView, ...]
    groups: tuple[StepGroup, ...]


@dataclass(frozen=True, slots=True)
class JobListing:
    """Everything on a job's page but its log."""

    view: JobView
    timeline: Sequence[EventView]
    attempts: Sequence[AttemptLine]
    inputs: Sequence[SlotLine]
    outputs: Sequence[SlotLine]
    #: Outputs that the page shows.
    pictures: Sequence[Artifact]
    figures: Sequence[Figure]
    #: Pictures of its progress figures, by metric, the loss first.
    curves: Sequence[tuple[str, Curve]]
    #: Experts of its checkpoint, and whether it can be promoted.
    experts: Sequence[Expert]
    is_promotable: bool


def find_drain_words(session: Session, attempt: Attempt | None) -> str:
    """Describe when a drain ends an attempt, as last reported by its node; empty: no drain does."""
    if attempt is None or attempt.ended_at is not None or attempt.node is None:
        return ""
    report = session.scalar(select(NodeRow.report).where(NodeRow.name == attempt.node)) or {}
    return drain_words(report.get("cordons"), attempt.tiles or [])


def drain_words(cordons: object, tiles: Sequence[str]) -> str:
    """Describe when a drain among a node's cordons ends jobs on these tiles; empty: no drain does (pure)."""
    row = find_drain(cordons, tiles)
    if row is None:
        return ""
    why = f" ({row['reason']})" if row.get("reason") else ""
    at = date_words(int(row["deadline"]) / 1e9)
    return f"Its tiles are being drained{why}. If it still runs at {at}, its attempt is ended and the job queued again."


def is_picture(artifact: Artifact) -> bool:
    """Return whether pages show an artifact: a PNG by its name, not too large for a browser."""
    name = artifact.file_name or ""
    return not artifact.is_folder and name.lower().endswith(".png") and artifact.bytes <= MAX_PICTURE_BYTES


def count_tones(states: Mapping[str, int]) -> dict[str, int]:
    """Return numbers of jobs by the tone of their state (pure)."""
    counts = dict.fromkeys(TONES.values(), 0)
    for state, count in states.items():
        counts[TONES[JobState(state)]] += count
    return counts


def read_job_page(session: Session, row: JobRow, now: float) -> JobListing:
    """Return the page of a job that was read in this transaction."""
    attempts = [show_attempt(attempt) for attempt in list_attempts(session, row.id)]
    outputs = [_slot_line(session, row, "out", slot, value) for slot, value in row.outputs.items()]
    progress = [show_event(e) for e in list_events(session, row.id, limit=MAX_PROGRESS, kind="progress")]
    return JobListing(
        view=view_job(show_job(row), now),
        timeline=view_events(show_event(e) for e in list_events(session, row.id, kind="state")),
        attempts=[_attempt_line(attempt, now) for attempt in reversed(attempts)],
        inputs=[_slot_line(session, row, "in", slot, value) for slot, value in row.inputs.items()],
        outputs=outputs,
        pictures=[line.artifact for line in outputs if line.artifact is not None and is_picture(line.artifact)],
        figures=result_figures(row.result),
        curves=draw_metrics([event.data for event in progress]),
        experts=[show_expert(expert) for expert in experts_of(session, row.tenant_id, job_id=row.id)],
        is_promotable=is_promotable(
            row.verb, JobState(row.state), {**row.inputs, **row.outputs} if row.verb == "evaluate" else row.outputs
        ),
    )


@dataclass(frozen=True, slots=True)
class ArtifactListing:
    """An artifact with its sources and its results."""

    artifact: Artifact
    parents: Sequence[Artifact]
    children: Sequence[Artifact]
    #: Experts with this checkpoint.
    experts: Sequence[Expert]


def read_artifact_page(session: Session, tenant_id: str, artifact_id: str) -> ArtifactListing:
    """Return the page of an artifact.

    Raises:
        NotFound: the tenant has no such artifact.
    """
    row = get_artifact(session, tenant_id, artifact_id)
    up, down = parents_and_children(session, row)
    return ArtifactListing(
        show_artifact(row),
        _show_all(session, tenant_id, [link.parent for link in up]),
        _show_all(session, tenant_id, [link.child for link in down]),
        [show_expert(expert) for expert in experts_of(session, tenant_id, checkpoint_id=row.id)],
    )


def draw_artifact_lineage(session: Session, tenant_id: str, artifact_id: str) -> Markup:
    """Draw an artifact's origins and descendants, with links to their pages; empty: there are none."""
    rows, links = walk_lineage(session, tenant_id, artifact_id)
    jobs = read_lineage_jobs(session, tenant_id, rows, links, with_words=True)
    shown = [{"child": x.child, "parent": x.parent, "slot": x.slot, "job_id": x.job_id} for x in links]
    nodes, edges = graph_of(
        [show_artifact(row).model_dump() for row in rows], shown, [job.model_dump() for job in jobs]
    )
    return Markup(draw_lineage(nodes, edges, artifact_id)) if edges else Markup()


def last_log_events(session: Session, job_id: str) -> list[EventRecord]:
    """Return the newest log lines, oldest first."""
    query = select(JobEventRow).where(JobEventRow.job_id == job_id, JobEventRow.kind == "log")
    rows = session.scalars(query.order_by(JobEventRow.id.desc()).limit(MAX_LINES)).all()
    return [show_event(row) for row in reversed(rows)]


def read_pipeline_lines(session: Session, rows: Iterable[PipelineRow], now: float) -> list[PipelineLine]:
    """Read pipelines with their jobs."""
    lines = []
    for row in rows:
        shown = show_pipeline(row, pipeline_jobs(session, row.id))
        views = tuple(view_job(job, now) for job in shown.jobs)
        lines.append(PipelineLine(shown, TONES[JobState(shown.state)], views, group_steps(views)))
    return lines


def holder_pages(session: Session, tenant_id: str, ids: Iterable[str]) -> dict[str, str]:
    """Return the pages of the ``ids`` that name the tenant's jobs, or replicas of its endpoints."""
    found = list(ids)
    jobs = select(JobRow.id).where(JobRow.tenant_id == tenant_id, JobRow.id.in_(found))
    replicas = (
        select(EndpointReplicaRow.id, EndpointRow.name)
        .join(EndpointRow, EndpointRow.id == EndpointReplicaRow.endpoint_id)
        .where(EndpointRow.tenant_id == tenant_id, EndpointReplicaRow.id.in_(found))
    )
    pages = {id: f"/console/jobs/{id}" for id in session.scalars(jobs)}
    return pages | {id: f"/console/endpoints/{name}" for id, name in session.execute(replicas)}


def submit_commands(box: BoxDescription) -> dict[str, str]:
    """Write for each verb the shell command that submits it with its defaults."""
    commands = {}
    name = Selector(box.name, box.version)
    for verb in box.verbs:
        words = [f"rdukit job submit {name} {verb.name}"]
        words += [f"--input {slot.name}=ARTIFACT" for slot in verb.inputs if slot.is_required]
        words += [f"--set {p.name}={_shell_value(p.default)}" for p in verb.parameters[:2] if p.default is not None]
        commands[verb.name] = " ".join(words)
    return commands


def use_commands(box: BoxDescription, expert: Expert) -> list[str]:
    """Return, for each verb of the base box that takes a checkpoint, the shell command with the expert's."""
    commands = []
    known = {CHECKPOINT: expert.checkpoint, PEF: expert.pef}
    for verb in box.verbs:
        slots = [slot.name for slot in verb.inputs if slot.is_required or known.get(slot.name)]
        if CHECKPOINT in slots:
            given = " ".join(f"--input {slot}={known.get(slot) or 'ARTIFACT'}" for slot in slots)
            commands.append(f"rdukit job submit {expert.box} {verb.name} {given}")
    return commands


def profile_of(job: Job) -> str:
    """Return the artifact of a job's profile, if it asked for one and has it; empty: it has none (pure)."""
    return job.outputs.get(PROFILE, "") if job.profile else ""


def clone_command(job: Job) -> str:
    """Write the shell command that clones a job with one of its parameters to be changed."""
    named = [quote(f"{name}={_shell_value(value)}") for name, value in list(job.parameters.items())[:1]]
    return " ".join(["rdukit job clone", job.id, *(f"--set {word}" for word in named)])


def _show_all(session: Session, tenant_id: str, ids: Iterable[str]) -> list[Artifact]:
    rows = [session.get(ArtifactRow, one) for one in dict.fromkeys(ids)]
    return [show_artifact(row) for row in rows if row is not None and row.tenant_id == tenant_id]


def _shell_value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _attempt_line(attempt: Attempt, now: float) -> AttemptLine:
    began = attempt.started_at
    took = "–" if began is None else format_seconds(round(elapsed_s(began, attempt.ended_at or now), 1))
    return AttemptLine(attempt, tile_words(attempt.tiles or []), took, attempt_words(attempt), fault_of(attempt))


def _slot_line(session: Session, job: JobRow, side: str, slot: str, value: str) -> SlotLine:
    artifact = session.get(ArtifactRow, value)
    if artifact is None or artifact.tenant_id != job.tenant_id or artifact.deleted_at is not None:
        words = f"from step {value[1:].replace('.', ', ')}" if value.startswith("@") else f"{value} is gone"
        return SlotLine(side, slot, None, words, ())
    links, _ = parents_and_children(session, artifact)
    return SlotLine(side, slot, show_artifact(artifact), "", tuple(Parent(link.parent, link.slot) for link in links))
