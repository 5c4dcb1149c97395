"""The table that finds jobs by their labels."""

from sqlalchemy import ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from rdukit_platform.db.base import Base


class JobLabelRow(Base):
    """Label of a job, a copy of its row's, with the columns that order lists of jobs."""

    __tablename__ = "job_labels"
    __table_args__ = (Index("ix_job_labels_found", "tenant_id", "key", "value", "created_at", "job_id"),)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    key: Mapped[str] = mapped_column(String(64), primary_key=True)
    value: Mapped[str] = mapped_column(String(128))
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    created_at: Mapped[float]

    @property
    def id(self) -> str:
        """Return the job's id, for cursors of pages."""
        return self.job_id
