"""The tables. Times are seconds since the epoch, UTC; ids are text made by ``ids.new_id``.

Only portable column types: the same migrations run on SQLite and PostgreSQL.
"""

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Double,
    ForeignKey,
    Index,
    Integer,
    String,
    Text,
    UniqueConstraint,
    false,
)
from sqlalchemy.orm import Mapped, mapped_column

from rdukit_platform.db.attempts import AttemptPartRow as AttemptPartRow
from rdukit_platform.db.attempts import AttemptRow as AttemptRow
from rdukit_platform.db.audit import AuditChainRow as AuditChainRow
from rdukit_platform.db.audit import AuditRow as AuditRow
from rdukit_platform.db.base import BYTES
from rdukit_platform.db.base import Base as Base
from rdukit_platform.db.identity import DeviceLoginRow as DeviceLoginRow
from rdukit_platform.db.identity import EndedSessionRow as EndedSessionRow
from rdukit_platform.db.identity import MembershipRow as MembershipRow
from rdukit_platform.db.identity import OidcLoginRow as OidcLoginRow
from rdukit_platform.db.identity import OrganisationAdminRow as OrganisationAdminRow
from rdukit_platform.db.identity import OrganisationRow as OrganisationRow
from rdukit_platform.db.identity import UserRow as UserRow
from rdukit_platform.db.labels import JobLabelRow as JobLabelRow
from rdukit_platform.db.nodes import NodeOrderRow as NodeOrderRow
from rdukit_platform.db.nodes import NodeRow as NodeRow
from rdukit_platform.db.pipelines import PipelineRow as PipelineRow
from rdukit_platform.db.pipelines import ScheduledRunRow as ScheduledRunRow
from rdukit_platform.db.pipelines import ScheduleRow as ScheduleRow
from rdukit_platform.db.webhooks import DeliveryRow as DeliveryRow
from rdukit_platform.db.webhooks import WebhookRow as WebhookRow


class TenantRow(Base):
    """A customer of the platform; everything else belongs to one."""

    __tablename__ = "tenants"
    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    name: Mapped[str] = mapped_column(String(64), unique=True)
    created_at: Mapped[float]
    #: Part of the node that is its own beside others', as ``scheduler.shares`` weighs it.
    weight: Mapped[float] = mapped_column(Double, default=1.0, server_default="1.0")
    #: Bytes of artifacts that it may keep, 0: any number; none: as the setting artifacts.tenant_bytes says.
    artifact_bytes: Mapped[int | None] = mapped_column(BYTES)
    #: Tiles that are its own when its jobs want them; none: all that it has is borrowed.
    quota: Mapped[int | None]
    #: Tiles that its jobs may have at once; none: any number.
    max_tiles: Mapped[int | None]
    #: Jobs that it may have active at once; none: as the setting scheduler.tenant_jobs says.
    max_jobs: Mapped[int | None]
    #: The organisation whose administrators manage its members.
    organisation_id: Mapped[str | None] = mapped_column(String(32), index=True)


class TokenRow(Base):
    """An API token: only its SHA-256 is kept."""

    __tablename__ = "tokens"
    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), index=True)
    sha256: Mapped[str] = mapped_column(String(64), unique=True)
    name: Mapped[str] = mapped_column(String(64))
    scopes: Mapped[list[str]]
    #: The role whose scopes they were when it was made; none: they were named.
    role: Mapped[str | None] = mapped_column(String(32))
    created_at: Mapped[float]
    revoked_at: Mapped[float | None]
    expires_at: Mapped[float | None]
    #: Written about once a minute while it is used.
    last_used_at: Mapped[float | None]
    #: The token that made it, or host, or break-glass.
    made_by: Mapped[str | None] = mapped_column(String(32), index=True)
    #: The token that it was rotated into; it ends by ``expires_at``.
    replaced_by: Mapped[str | None] = mapped_column(String(32))
    #: When an administrator blocked it; none: nobody did, or it was let in again.
    blocked_at: Mapped[float | None]
    #: The user whose own it is: it allows no more than that user may now, and ends with the membership.
    user_id: Mapped[str | None] = mapped_column(String(32), index=True)
    #: Whether it is a session of the console, whose text nobody has; it allows what its user may.
    is_session: Mapped[bool] = mapped_column(Boolean, default=False, server_default=false())


class BoxRow(Base):
    """Version of a box that a tenant installed. It never changes, and its number is never given again."""

    __tablename__ = "boxes"
    __table_args__ = (UniqueConstraint("tenant_id", "name", "version"), Index(None, "tenant_id", "created_at"))
    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    name: Mapped[str] = mapped_column(String(64))
    version: Mapped[int]
    #: What it says of itself, as jobs are checked by it.
    description: Mapped[dict[str, object]]
    #: The folder in the store; none where the box is an image.
    artifact_id: Mapped[str | None] = mapped_column(ForeignKey("artifacts.id"))
    #: Of an image: the reference by which it was installed. It runs by its digest.
    image: Mapped[str | None] = mapped_column(String(512))
    #: SHA-256 of the folder's manifest, or ``sha256:…`` of the image.
    digest: Mapped[str] = mapped_column(String(80))
    created_at: Mapped[float]
    uninstalled_at: Mapped[float | None]


class JobRow(Base):
    """Job: a verb of a box, to be run to one final state."""

    __tablename__ = "jobs"
    __table_args__ = (
        UniqueConstraint("tenant_id", "idempotency_key"),
        Index(None, "tenant_id", "created_at"),
        #: Its jobs of one state, also of one that is rare.
        Index(None, "tenant_id", "state", "created_at"),
        Index(None, "state", "created_at"),
        #: The front of each tenant's queue.
        Index(None, "state", "tenant_id", "priority", "queued_at"),
        Index(None, "state", "start_by"),
        Index(None, "tenant_id", "cache_key"),
    )
    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    pipeline_id: Mapped[str | None] = mapped_column(ForeignKey("pipelines.id"), index=True)
    step: Mapped[str | None] = mapped_column(String(64))
    name: Mapped[str] = mapped_column(String(128))
    box: Mapped[str] = mapped_column(String(64))
    #: Of a box that the tenant installed: exactly which.
    box_version: Mapped[int | None]
    verb: Mapped[str] = mapped_column(String(32))
    parameters: Mapped[dict[str, object]]
    #: Slot to artifact id, or to "@step.slot" until that step has ended.
    inputs: Mapped[dict[str, str]]
    #: Of a step: slot to the reference that its input was.
    references: Mapped[dict[str, str]] = mapped_column(JSON, default=dict, server_default="{}")
    #: Digests of what it does, without and with its inputs' content; none: it is not to be taken from another job.
    cache_base: Mapped[str | None] = mapped_column(String(64))
    cache_key: Mapped[str | None] = mapped_column(String(64))
    #: The job whose outputs it has, because that had made the same.
    cached_from: Mapped[str | None] = mapped_column(String(32))
    #: Slot to artifact id; set when the job succeeds.
    outputs: Mapped[dict[str, str]]
    #: Of each member.
    tiles: Mapped[int]
    #: Processes that compute together, each with tiles of its own.
    members: Mapped[int] = mapped_column(Integer, default=1, server_default="1")
    max_attempts: Mapped[int]
    #: The highest goes first.
    priority: Mapped[int] = mapped_column(Integer, default=0, server_default="0")
    #: Seconds that an attempt may take; none: as long as it likes.
    run_limit_s: Mapped[float | None]
    #: When it has to be done.
    deadline_at: Mapped[float | None]
    #: The same less its run limit: who has not started by then cannot be done in time.
    start_by: Mapped[float | None]
    #: As ``RetryPolicy``; none: the usual.
    retry: Mapped[dict[str, object] | None]
    #: Whether a job of higher priority may take its tiles.
    preemptible: Mapped[bool] = mapped_column(Boolean, default=False, server_default=false())
    labels: Mapped[dict[str, str]] = mapped_column(JSON, default=dict, server_default="{}")
    #: Labels that its node has to have.
    constraint: Mapped[dict[str, str]] = mapped_column(JSON, default=dict, server_default="{}")
    #: The trace that it belongs to, and in it the span of who submitted it, as W3C's ``traceparent``.
    traceparent: Mapped[str | None] = mapped_column(String(64))
    state: Mapped[str] = mapped_column(String(16))
    reason: Mapped[str | None] = mapped_column(String(32))
    error: Mapped[dict[str, object] | None]
    result: Mapped[dict[str, object] | None]
    progress: Mapped[dict[str, object] | None]
    #: Why the scheduler has not admitted it yet, in words.
    waits_for: Mapped[str | None] = mapped_column(Text)
    #: The same as one of ``WaitCode``, and when it starts at the latest, as far as run limits tell.
    wait_code: Mapped[str | None] = mapped_column(String(32))
    estimated_start: Mapped[float | None]
    #: Grows with each change of state; an update names the version it saw.
    version: Mapped[int] = mapped_column(Integer, default=0)
    #: Number of the latest attempt; 0 before the first.
    attempt: Mapped[int] = mapped_column(Integer, default=0)
    #: Attempts that count against max_attempts.
    failures: Mapped[int] = mapped_column(Integer, default=0)
    #: Attempts lost to the platform or its host; they count against the setting job.max_losses.
    losses: Mapped[int] = mapped_column(Integer, default=0, server_default="0")
    #: How often its tiles were taken for another job.
    preemptions: Mapped[int] = mapped_column(Integer, default=0, server_default="0")
    #: Not admitted before this time.
    not_before: Mapped[float | None]
    idempotency_key: Mapped[str | None] = mapped_column(String(128))
    #: Id of the user, or of the tenant's token; none: nobody, as for a schedule.
    submitted_by: Mapped[str | None] = mapped_column(String(32))
    created_at: Mapped[float]
    queued_at: Mapped[float | None]
    started_at: Mapped[float | None]
    ended_at: Mapped[float | None]


class JobEventRow(Base):
    """Event of a job; written in the transaction that made it happen."""

    __tablename__ = "job_events"
    __table_args__ = (Index(None, "job_id", "id"), {"sqlite_autoincrement": True})
    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    attempt: Mapped[int]
    #: state, progress or log
    kind: Mapped[str] = mapped_column(String(16))
    at: Mapped[float]
    data: Mapped[dict[str, object]]


class ArtifactRow(Base):
    """A tenant's name for content in the store."""

    __tablename__ = "artifacts"
    __table_args__ = (Index(None, "tenant_id", "created_at"),)
    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    name: Mapped[str] = mapped_column(String(256))
    kind: Mapped[str] = mapped_column(String(32))
    #: SHA-256 of the file, or of the folder's manifest.
    digest: Mapped[str] = mapped_column(String(64), index=True)
    bytes: Mapped[int] = mapped_column(BYTES)
    is_folder: Mapped[bool] = mapped_column(Boolean)
    #: Of a file: its name, by whose ending programs know the format.
    file_name: Mapped[str | None] = mapped_column(String(128))
    job_id: Mapped[str | None] = mapped_column(ForeignKey("jobs.id"), index=True)
    slot: Mapped[str | None] = mapped_column(String(64))
    created_at: Mapped[float]
    #: Since when it is neither deleted nor expires.
    pinned_at: Mapped[float | None]
    #: The row stays for the lineage of others; the content does not.
    deleted_at: Mapped[float | None]


class LineageRow(Base):
    """``child`` was made from ``parent``, which the job had in ``slot``; without a job, ``child`` names it there."""

    __tablename__ = "lineage"
    child: Mapped[str] = mapped_column(ForeignKey("artifacts.id"), primary_key=True)
    parent: Mapped[str] = mapped_column(ForeignKey("artifacts.id"), primary_key=True, index=True)
    slot: Mapped[str] = mapped_column(String(64), primary_key=True)
    job_id: Mapped[str | None] = mapped_column(ForeignKey("jobs.id"))


class ExpertRow(Base):
    """Version of an expert: a box and a checkpoint that one of its jobs trained. It never changes but to be deprecated.

    The database deletes no artifact and no job that an expert refers to.
    """

    __tablename__ = "experts"
    __table_args__ = (UniqueConstraint("tenant_id", "name", "version"), Index(None, "tenant_id", "created_at"))
    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    name: Mapped[str] = mapped_column(String(64))
    version: Mapped[int]
    box: Mapped[str] = mapped_column(String(64))
    #: Of a box that the tenant installed: exactly which.
    box_version: Mapped[int | None]
    checkpoint_id: Mapped[str] = mapped_column(ForeignKey("artifacts.id"), index=True)
    #: The PEF that trained it, if the job had one.
    pef_id: Mapped[str | None] = mapped_column(ForeignKey("artifacts.id"))
    description: Mapped[str] = mapped_column(Text)
    licence: Mapped[str] = mapped_column(String(200))
    #: Figures of the job's result.
    metrics: Mapped[dict[str, object]]
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), index=True)
    created_at: Mapped[float]
    deprecated_at: Mapped[float | None]
    deprecated_reason: Mapped[str | None] = mapped_column(Text)


class SweepRow(Base):
    """Sweep: jobs of one kind with several values of their parameters, each a trial."""

    __tablename__ = "sweeps"
    __table_args__ = (UniqueConstraint("tenant_id", "idempotency_key"), Index(None, "tenant_id", "created_at"))
    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    name: Mapped[str] = mapped_column(String(128))
    #: What was asked for, as ``SweepRequest``; the box is an exact version, the tiles are chosen.
    request: Mapped[dict[str, object]]
    state: Mapped[str] = mapped_column(String(16), index=True)
    #: Why it has ended, in words.
    reason: Mapped[str | None] = mapped_column(Text)
    #: Grows with each change; who decided by an older one begins nothing.
    version: Mapped[int] = mapped_column(Integer, default=0)
    idempotency_key: Mapped[str | None] = mapped_column(String(128))
    #: As of a job; its trials have the same.
    submitted_by: Mapped[str | None] = mapped_column(String(32))
    created_at: Mapped[float]
    ended_at: Mapped[float | None]


class TrialRow(Base):
    """Trial of a sweep: a job, and what is known of it once it has ended."""

    __tablename__ = "trials"
    __table_args__ = (UniqueConstraint("job_id"),)
    sweep_id: Mapped[str] = mapped_column(ForeignKey("sweeps.id"), primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    parameters: Mapped[dict[str, object]]
    #: What the objective is, if the job has succeeded and told it.
    value: Mapped[float | None]
    #: (step, value) of the metric that early stopping looks at; set when the job has ended.
    curve: Mapped[list[list[float]] | None]


class EndpointRow(Base):
    """A model that a tenant has running under a name. What is wanted is here; what there is, are its replicas."""

    __tablename__ = "endpoints"
    __table_args__ = (UniqueConstraint("tenant_id", "held_name"), Index(None, "tenant_id", "created_at"))
    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    name: Mapped[str] = mapped_column(String(64))
    #: The name as long as it is this one's; none once it is deleted, so that another may have it.
    held_name: Mapped[str | None] = mapped_column(String(64))
    #: Number of the revision that is wanted.
    revision: Mapped[int]
    #: How many replicas of it are wanted.
    replicas: Mapped[int]
    #: Number of a revision that gets ``canary_percent`` of the calls; none: all go to the wanted one.
    canary: Mapped[int | None]
    canary_percent: Mapped[int | None]
    #: Seconds without a call after which it does without replicas until the next one; none: it keeps them.
    idle_s: Mapped[float | None]
    #: Where ``idle_s`` is: the latest call, as gateways tell about twice a second.
    called_at: Mapped[float | None]
    created_at: Mapped[float]
    updated_at: Mapped[float]
    deleted_at: Mapped[float | None]


class EndpointRevisionRow(Base):
    """Revision of an endpoint: what its replicas serve. It never changes.

    The database deletes no artifact that a revision refers to.
    """

    __tablename__ = "endpoint_revisions"
    __table_args__ = (UniqueConstraint("endpoint_id", "number"),)
    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    endpoint_id: Mapped[str] = mapped_column(ForeignKey("endpoints.id"))
    number: Mapped[int]
    box: Mapped[str] = mapped_column(String(64))
    #: Of a box that the tenant installed: exactly which.
    box_version: Mapped[int | None]
    pef_id: Mapped[str] = mapped_column(ForeignKey("artifacts.id"), index=True)
    #: None: the PEF has no parameters.
    checkpoint_id: Mapped[str | None] = mapped_column(ForeignKey("artifacts.id"), index=True)
    #: What it was made from, if that was an expert.
    expert_id: Mapped[str | None] = mapped_column(ForeignKey("experts.id"))
    #: Of a bundle of experts: its file, and ``[{"name", "kind", "aliases", "adapter_of"}]``; ``pef_id`` is its first.
    bundle_id: Mapped[str | None] = mapped_column(ForeignKey("artifacts.id"), index=True)
    models: Mapped[list[dict[str, object]] | None]
    tiles: Mapped[int]
    created_at: Mapped[float]


class EndpointReplicaRow(Base):
    """Replica of an endpoint: one box, from its start to its end. Its token fences: without it no worker changes it."""

    __tablename__ = "endpoint_replicas"
    __table_args__ = (Index(None, "endpoint_id", "created_at"), Index(None, "state"))
    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    endpoint_id: Mapped[str] = mapped_column(ForeignKey("endpoints.id"))
    #: Number of the revision.
    revision: Mapped[int]
    state: Mapped[str] = mapped_column(String(16))
    reason: Mapped[str | None] = mapped_column(String(32))
    #: What it waits for, or how it ended, in words.
    message: Mapped[str | None] = mapped_column(Text)
    token: Mapped[str] = mapped_column(String(64))
    node: Mapped[str | None] = mapped_column(String(64))
    worker: Mapped[str | None] = mapped_column(String(128))
    lease_expires_at: Mapped[float | None]
    tiles: Mapped[list[str] | None]
    #: ``{"backend", "id", "limits"}``
    box: Mapped[dict[str, object] | None]
    #: Of its REST wire, as the worker's host reaches it; and the user whose socket it is.
    address: Mapped[str | None] = mapped_column(Text)
    address_uid: Mapped[int | None] = mapped_column(BigInteger)
    created_at: Mapped[float]
    claimed_at: Mapped[float | None]
    ready_at: Mapped[float | None]
    draining_at: Mapped[float | None]
    #: While it drains: until then at least a gateway has requests at it.
    busy_until: Mapped[float | None]
    ended_at: Mapped[float | None]


class EndpointUsageRow(Base):
    """Calls of a revision of an endpoint, of a bundle those of one of its models, in a day."""

    __tablename__ = "endpoint_usage"
    endpoint_id: Mapped[str] = mapped_column(ForeignKey("endpoints.id"), primary_key=True)
    #: Days since the epoch, UTC.
    day: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    #: Number of the revision that answered; 0: none did, or it was before revisions were counted.
    revision: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False, server_default="0")
    #: Of a bundle: the expert or adapter that answered; empty: none did, or there is one model only.
    model: Mapped[str] = mapped_column(String(128), primary_key=True, server_default="")
    requests: Mapped[int] = mapped_column(BigInteger)
    #: Of the requests: those answered with an error.
    failures: Mapped[int] = mapped_column(BigInteger)
    rows: Mapped[int] = mapped_column(BigInteger)
    prompt_tokens: Mapped[int] = mapped_column(BigInteger)
    completion_tokens: Mapped[int] = mapped_column(BigInteger)


class ServiceRow(Base):
    """A scheduler or worker that is up; gone is who has not beaten lately."""

    __tablename__ = "services"
    id: Mapped[str] = mapped_column(String(128), primary_key=True)
    kind: Mapped[str] = mapped_column(String(16))
    slots: Mapped[int]
    #: Of a worker: what is round the boxes of its jobs, and if that is nothing, why.
    walls: Mapped[str] = mapped_column(Text, default="")
    #: Of a worker: its node.
    node: Mapped[str] = mapped_column(String(64), default="", server_default="")
    started_at: Mapped[float]
    beat_at: Mapped[float]


class SchedulerLeaseRow(Base):
    """The one row that says which scheduler decides. It is kept when nobody does, so that tokens only grow."""

    __tablename__ = "scheduler_lease"
    name: Mapped[str] = mapped_column(String(32), primary_key=True)
    #: Its service; empty: it was given back.
    holder: Mapped[str] = mapped_column(String(128))
    #: Where its process is: boot and space of process ids.
    place: Mapped[str] = mapped_column(String(128))
    #: One more with each holder.
    token: Mapped[int] = mapped_column(BYTES)
    #: One more with each sign of life; others count by their own clocks how long there was none.
    beats: Mapped[int] = mapped_column(BYTES)
    beat_at: Mapped[float]
