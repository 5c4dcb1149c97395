"""Tables of pipelines, their schedules, and the schedules' runs; ``db.models`` has all tables."""

from sqlalchemy import Double, ForeignKey, Index, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from rdukit_platform.db.base import Base


class PipelineRow(Base):
    """Jobs that feed each other."""

    __tablename__ = "pipelines"
    __table_args__ = (UniqueConstraint("tenant_id", "idempotency_key"), Index(None, "tenant_id", "created_at"))
    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    name: Mapped[str] = mapped_column(String(128))
    idempotency_key: Mapped[str | None] = mapped_column(String(128))
    created_at: Mapped[float]


class ScheduleRow(Base):
    """Schedule of a pipeline: the request, and its times."""

    __tablename__ = "schedules"
    __table_args__ = (UniqueConstraint("tenant_id", "name"), Index(None, "tenant_id", "created_at"))
    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    name: Mapped[str] = mapped_column(String(64))
    cron: Mapped[str] = mapped_column(String(128))
    #: Name of a time zone, such as ``Europe/Berlin``.
    zone: Mapped[str] = mapped_column(String(64))
    missed: Mapped[str] = mapped_column(String(16))
    overlap: Mapped[str] = mapped_column(String(16))
    #: The submitted ``PipelineRequest``.
    request: Mapped[dict[str, object]]
    created_at: Mapped[float]
    paused_at: Mapped[float | None]
    #: Its creator, who also submits its jobs: id of a user, or of the tenant's token.
    submitted_by: Mapped[str | None] = mapped_column(String(32))
    #: Next due time; null: the schedule is paused, or never due again.
    next_at: Mapped[float | None] = mapped_column(Double, index=True)


class ScheduledRunRow(Base):
    """Run of a schedule at a due time. The key allows one run per due time, even with several schedulers."""

    __tablename__ = "scheduled_runs"
    __table_args__ = (Index(None, "state"),)
    schedule_id: Mapped[str] = mapped_column(ForeignKey("schedules.id"), primary_key=True)
    due_at: Mapped[float] = mapped_column(Double, primary_key=True)
    state: Mapped[str] = mapped_column(String(16))
    #: Reason why it was not started, or has failed.
    why: Mapped[str | None] = mapped_column(Text)
    pipeline_id: Mapped[str | None] = mapped_column(String(32))
    #: Time of the last decision about it.
    at: Mapped[float]
