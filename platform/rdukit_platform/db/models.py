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
    #: Weight of its share, as in ``scheduler.shares``.
    weight: Mapped[float] = mapped_column(Double, default=1.0, server_default="1.0")
    #: Limit of bytes of artifacts; 0: no limit; null: the setting artifacts.tenant_bytes.
    artifact_bytes: Mapped[int | None] = mapped_column(BYTES)
    #: Guaranteed tiles; null: all its tiles are borrowed.
    quota: Mapped[int | None]
    #: Limit of tiles for its jobs and endpoints; null: no limit.
    max_tiles: Mapped[int | None]
    #: Limit of active jobs; null: the setting scheduler.tenant_jobs.
    max_jobs: Mapped[int | None]
    #: The organisation whose administrators manage its members.
    organisation_id: Mapped[str | None] = mapped_column(String(32), index=True)


class TokenRow(Base):
    """An API token: only its SHA-256 is stored."""

    __tablename__ = "tokens"
    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), index=True)
    sha256: Mapped[str] = mapped_column(String(64), unique=True)
    name: Mapped[str] = mapped_column(String(64))
    scopes: Mapped[list[str]]
    #: Role that gave it its scopes; null: the scopes were named.
    role: Mapped[str | None] = mapped_column(String(32))
    created_at: Mapped[float]
    revoked_at: Mapped[float | None]
    expires_at: Mapped[float | None]
    #: Updated about once a minute while it is used.
    last_used_at: Mapped[float | None]
    #: The token that made it, or host, or break-glass.
    made_by: Mapped[str | None] = mapped_column(String(32), index=True)
    #: The token that replaces it after a rotation; this one ends at ``expires_at``.
    replaced_by: Mapped[str | None] = mapped_column(String(32))
    #: Time at which an administrator blocked it; null: it is not blocked.
    blocked_at: Mapped[float | None]
    #: User that owns it: it is limited to the user's present rights, and ends with the membership.
    user_id: Mapped[str | None] = mapped_column(String(32), index=True)
    #: Whether it is a console session, without a known text; it has its user's rights.
    is_session: Mapped[bool] = mapped_column(Boolean, default=False, server_default=false())


class BoxRow(Base):
    """Version of a box that a tenant installed. It is immutable, and its number is never reused."""

    __tablename__ = "boxes"
    __table_args__ = (UniqueConstraint("tenant_id", "name", "version"), Index(None, "tenant_id", "created_at"))
    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    name: Mapped[str] = mapped_column(String(64))
    version: Mapped[int]
    #: Its own description, against which jobs are checked.
    description: Mapped[dict[str, object]]
    #: The folder in the store; null if the box is an image.
    artifact_id: Mapped[str | None] = mapped_column(ForeignKey("artifacts.id"))
    #: Reference by which an image was installed; it runs by its digest.
    image: Mapped[str | None] = mapped_column(String(512))
    #: SHA-256 of the folder's manifest, or ``sha256:…`` of the image.
    digest: Mapped[str] = mapped_column(String(80))
    created_at: Mapped[float]
    uninstalled_at: Mapped[float | None]


class JobRow(Base):
    """Job: a verb of a box, which runs to one final state."""

    __tablename__ = "jobs"
    __table_args__ = (
        UniqueConstraint("tenant_id", "idempotency_key"),
        Index(None, "tenant_id", "created_at"),
        #: A tenant's jobs in one state, also a rare one.
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
    #: Exact version of a box that the tenant installed.
    box_version: Mapped[int | None]
    verb: Mapped[str] = mapped_column(String(32))
    parameters: Mapped[dict[str, object]]
    #: Slot to artifact id, or to "@step.slot" until that step has ended.
    inputs: Mapped[dict[str, str]]
    #: Slot to the original reference of a step's input.
    references: Mapped[dict[str, str]] = mapped_column(JSON, default=dict, server_default="{}")
    #: Cache keys, without and with its inputs' content; null: no reuse of another job's outputs.
    cache_base: Mapped[str | None] = mapped_column(String(64))
    cache_key: Mapped[str | None] = mapped_column(String(64))
    #: The job whose outputs it reuses.
    cached_from: Mapped[str | None] = mapped_column(String(32))
    #: Slot to artifact id; set when the job succeeds.
    outputs: Mapped[dict[str, str]]
    #: Tiles per member.
    tiles: Mapped[int]
    #: Processes that compute together, each with tiles of its own.
    members: Mapped[int] = mapped_column(Integer, default=1, server_default="1")
    max_attempts: Mapped[int]
    #: The highest goes first.
    priority: Mapped[int] = mapped_column(Integer, default=0, server_default="0")
    #: Run limit of an attempt in seconds; null: no limit.
    run_limit_s: Mapped[float | None]
    #: Its deadline.
    deadline_at: Mapped[float | None]
    #: Deadline minus run limit: a job not started by then cannot meet its deadline.
    start_by: Mapped[float | None]
    #: As ``RetryPolicy``; null: the default.
    retry: Mapped[dict[str, object] | None]
    #: Whether a job of higher priority may take its tiles.
    preemptible: Mapped[bool] = mapped_column(Boolean, default=False, server_default=false())
    labels: Mapped[dict[str, str]] = mapped_column(JSON, default=dict, server_default="{}")
    #: Labels that its node must have.
    constraint: Mapped[dict[str, str]] = mapped_column(JSON, default=dict, server_default="{}")
    #: Its attempts record where their time goes.
    profile: Mapped[bool] = mapped_column(Boolean, default=False, server_default=false())
    #: Its trace, and the submitter's span in it, as a W3C ``traceparent``.
    traceparent: Mapped[str | None] = mapped_column(String(64))
    state: Mapped[str] = mapped_column(String(16))
    reason: Mapped[str | None] = mapped_column(String(32))
    error: Mapped[dict[str, object] | None]
    result: Mapped[dict[str, object] | None]
    progress: Mapped[dict[str, object] | None]
    #: Wait reason, as a sentence.
    waits_for: Mapped[str | None] = mapped_column(Text)
    #: Wait reason as a ``WaitCode``, and its latest start, if run limits determine it.
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
    #: Number of times it was preempted.
    preemptions: Mapped[int] = mapped_column(Integer, default=0, server_default="0")
    #: Not admitted before this time.
    not_before: Mapped[float | None]
    idempotency_key: Mapped[str | None] = mapped_column(String(128))
    #: Id of the submitting user, or of the tenant's token; null: unknown.
    submitted_by: Mapped[str | None] = mapped_column(String(32))
    created_at: Mapped[float]
    queued_at: Mapped[float | None]
    started_at: Mapped[float | None]
    ended_at: Mapped[float | None]


class JobEventRow(Base):
    """Event of a job; written in the transaction of the change."""

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
    #: Original name of a file; its ending gives the format.
    file_name: Mapped[str | None] = mapped_column(String(128))
    job_id: Mapped[str | None] = mapped_column(ForeignKey("jobs.id"), index=True)
    slot: Mapped[str | None] = mapped_column(String(64))
    created_at: Mapped[float]
    #: Time at which it was pinned.
    pinned_at: Mapped[float | None]
    #: The row stays for the lineage of others; the content does not.
    deleted_at: Mapped[float | None]


class LineageRow(Base):
    """``child`` was made from ``parent``, the job's input in ``slot``; without a job, ``child`` names it there."""

    __tablename__ = "lineage"
    child: Mapped[str] = mapped_column(ForeignKey("artifacts.id"), primary_key=True)
    parent: Mapped[str] = mapped_column(ForeignKey("artifacts.id"), primary_key=True, index=True)
    slot: Mapped[str] = mapped_column(String(64), primary_key=True)
    job_id: Mapped[str | None] = mapped_column(ForeignKey("jobs.id"))


class ExpertRow(Base):
    """Version of an expert: a box and a checkpoint that one of its jobs trained. It is immutable, except for its
    deprecation.

    The database deletes no artifact and no job that an expert refers to.
    """

    __tablename__ = "experts"
    __table_args__ = (UniqueConstraint("tenant_id", "name", "version"), Index(None, "tenant_id", "created_at"))
    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    name: Mapped[str] = mapped_column(String(64))
    version: Mapped[int]
    box: Mapped[str] = mapped_column(String(64))
    #: Exact version of a box that the tenant installed.
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
    #: The request, as ``SweepRequest``, with an exact box version and chosen tiles.
    request: Mapped[dict[str, object]]
    state: Mapped[str] = mapped_column(String(16), index=True)
    #: Reason of its end, as a sentence.
    reason: Mapped[str | None] = mapped_column(Text)
    #: Grows with each change; decisions by an older version are dropped.
    version: Mapped[int] = mapped_column(Integer, default=0)
    idempotency_key: Mapped[str | None] = mapped_column(String(128))
    #: As for a job; its trials have the same.
    submitted_by: Mapped[str | None] = mapped_column(String(32))
    created_at: Mapped[float]
    ended_at: Mapped[float | None]


class TrialRow(Base):
    """Trial of a sweep: a job, and its results once it has ended."""

    __tablename__ = "trials"
    __table_args__ = (UniqueConstraint("job_id"),)
    sweep_id: Mapped[str] = mapped_column(ForeignKey("sweeps.id"), primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    parameters: Mapped[dict[str, object]]
    #: Value of the objective, if the job has succeeded with one.
    value: Mapped[float | None]
    #: Points (step, value) of the metric for early stopping; set when the job has ended.
    curve: Mapped[list[list[float]] | None]


class EndpointRow(Base):
    """A model that a tenant serves under a name. This row is the wanted state; replicas are the actual state."""

    __tablename__ = "endpoints"
    __table_args__ = (UniqueConstraint("tenant_id", "held_name"), Index(None, "tenant_id", "created_at"))
    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    name: Mapped[str] = mapped_column(String(64))
    #: The name while the endpoint exists; null after its deletion, so that the name is free.
    held_name: Mapped[str | None] = mapped_column(String(64))
    #: Number of the wanted revision.
    revision: Mapped[int]
    #: Wanted number of replicas.
    replicas: Mapped[int]
    #: Number of the revision that gets ``canary_percent`` of the calls; null: there is no canary.
    canary: Mapped[int | None]
    canary_percent: Mapped[int | None]
    #: Seconds without a call after which its replicas end; null: it keeps them.
    idle_s: Mapped[float | None]
    #: Time of the latest call, if ``idle_s`` is set; gateways update it about twice a second.
    called_at: Mapped[float | None]
    created_at: Mapped[float]
    updated_at: Mapped[float]
    deleted_at: Mapped[float | None]


class EndpointRevisionRow(Base):
    """Revision of an endpoint: the model that its replicas serve. It is immutable.

    The database deletes no artifact that a revision refers to.
    """

    __tablename__ = "endpoint_revisions"
    __table_args__ = (UniqueConstraint("endpoint_id", "number"),)
    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    endpoint_id: Mapped[str] = mapped_column(ForeignKey("endpoints.id"))
    number: Mapped[int]
    box: Mapped[str] = mapped_column(String(64))
    #: Exact version of a box that the tenant installed.
    box_version: Mapped[int | None]
    pef_id: Mapped[str] = mapped_column(ForeignKey("artifacts.id"), index=True)
    #: Null: the PEF has no parameters.
    checkpoint_id: Mapped[str | None] = mapped_column(ForeignKey("artifacts.id"), index=True)
    #: The expert that it serves, if it was made from one.
    expert_id: Mapped[str | None] = mapped_column(ForeignKey("experts.id"))
    #: For a bundle of experts: its artifact, and ``[{"name", "kind", "aliases", "adapter_of"}]``; ``pef_id`` is its
    #: first.
    bundle_id: Mapped[str | None] = mapped_column(ForeignKey("artifacts.id"), index=True)
    models: Mapped[list[dict[str, object]] | None]
    tiles: Mapped[int]
    created_at: Mapped[float]


class EndpointReplicaRow(Base):
    """Replica of an endpoint: one box, from its start to its end. Its token is the fencing token for its worker's
    changes.
    """

    __tablename__ = "endpoint_replicas"
    __table_args__ = (Index(None, "endpoint_id", "created_at"), Index(None, "state"))
    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    endpoint_id: Mapped[str] = mapped_column(ForeignKey("endpoints.id"))
    #: Number of the revision.
    revision: Mapped[int]
    state: Mapped[str] = mapped_column(String(16))
    reason: Mapped[str | None] = mapped_column(String(32))
    #: Wait reason, or reason of its end, as a sentence.
    message: Mapped[str | None] = mapped_column(Text)
    token: Mapped[str] = mapped_column(String(64))
    node: Mapped[str | None] = mapped_column(String(64))
    worker: Mapped[str | None] = mapped_column(String(128))
    lease_expires_at: Mapped[float | None]
    tiles: Mapped[list[str] | None]
    #: ``{"backend", "id", "limits"}``
    box: Mapped[dict[str, object] | None]
    #: Address of its REST wire on the worker's host, and the uid that owns its socket.
    address: Mapped[str | None] = mapped_column(Text)
    address_uid: Mapped[int | None] = mapped_column(BigInteger)
    created_at: Mapped[float]
    claimed_at: Mapped[float | None]
    ready_at: Mapped[float | None]
    draining_at: Mapped[float | None]
    #: While it drains: time until which a gateway has open requests at it.
    busy_until: Mapped[float | None]
    ended_at: Mapped[float | None]


class EndpointUsageRow(Base):
    """Calls of a revision of an endpoint, or of a model of its bundle, on a day."""

    __tablename__ = "endpoint_usage"
    endpoint_id: Mapped[str] = mapped_column(ForeignKey("endpoints.id"), primary_key=True)
    #: Days since the epoch, UTC.
    day: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    #: Number of the revision that answered; 0: none, or counted before there were revisions.
    revision: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False, server_default="0")
    #: Expert or adapter of a bundle that answered; empty: no expert, or no bundle.
    model: Mapped[str] = mapped_column(String(128), primary_key=True, server_default="")
    requests: Mapped[int] = mapped_column(BigInteger)
    #: Requests answered with an error.
    failures: Mapped[int] = mapped_column(BigInteger)
    rows: Mapped[int] = mapped_column(BigInteger)
    prompt_tokens: Mapped[int] = mapped_column(BigInteger)
    completion_tokens: Mapped[int] = mapped_column(BigInteger)


class ServiceRow(Base):
    """A scheduler or worker; without recent heartbeats it counts as gone."""

    __tablename__ = "services"
    id: Mapped[str] = mapped_column(String(128), primary_key=True)
    kind: Mapped[str] = mapped_column(String(16))
    slots: Mapped[int]
    #: Isolation of a worker's job boxes; without isolation also the reason.
    walls: Mapped[str] = mapped_column(Text, default="")
    #: Node of a worker.
    node: Mapped[str] = mapped_column(String(64), default="", server_default="")
    started_at: Mapped[float]
    beat_at: Mapped[float]


class SchedulerLeaseRow(Base):
    """The only row, which names the deciding scheduler. The row is kept even without a deciding scheduler, so that
    tokens only grow.
    """

    __tablename__ = "scheduler_lease"
    name: Mapped[str] = mapped_column(String(32), primary_key=True)
    #: The holder's service; empty: the lease is free.
    holder: Mapped[str] = mapped_column(String(128))
    #: Place of its process: boot id and pid namespace.
    place: Mapped[str] = mapped_column(String(128))
    #: Increased with each holder.
    token: Mapped[int] = mapped_column(BYTES)
    #: Increased with each renewal; others measure the time between renewals by their own clocks.
    beats: Mapped[int] = mapped_column(BYTES)
    beat_at: Mapped[float]
