"""What the platform tells Prometheus beside the gateway's requests: jobs, parts, queue, replicas, webhooks, disk."""

import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from sqlalchemy import exists, func, select
from sqlalchemy.orm import Session
from starlette.responses import Response

from rdukit_platform.api.context import Platform
from rdukit_platform.api.dependencies import Anyone, check_scope, platform_of
from rdukit_platform.artifacts.stores.s3 import S3Store
from rdukit_platform.db.models import DeliveryRow, EndpointReplicaRow, EndpointRow, JobRow, ServiceRow
from rdukit_platform.endpoints.states import ReplicaState
from rdukit_platform.gateway.health import read_health
from rdukit_platform.jobs.states import JobState
from rdukit_platform.services import live_services
from rdukit_platform.tenants import scopes
from rdukit_platform.tenants.scopes import allows
from rdukit_platform.webhooks.states import DeliveryState


@dataclass(frozen=True, slots=True)
class PlatformMetric:
    """Gauge: its name, what it says, and the name of its label, if it has one."""

    name: str
    help: str
    label: str = ""


JOBS: Final = PlatformMetric("rdukit_jobs", "Jobs by state.", "state")
PART_UP: Final = PlatformMetric("rdukit_part_up", "Whether a part of the platform is up.", "part")
SERVICES: Final = PlatformMetric("rdukit_services", "Schedulers and workers that are up.", "kind")
BEAT_AGE: Final = PlatformMetric("rdukit_scheduler_beat_age_seconds", "Since a scheduler last said that it is up.")
QUEUE_AGE: Final = PlatformMetric("rdukit_queue_oldest_seconds", "How long the oldest job in the queue waits; 0: none.")
UNSERVED: Final = PlatformMetric("rdukit_endpoints_unserved", "Endpoints that want replicas and have none ready.")
WEBHOOK_AGE: Final = PlatformMetric(
    "rdukit_webhook_oldest_seconds", "How long the message to a webhook has waited that waits longest; 0: none."
)
DISK_FREE: Final = PlatformMetric("rdukit_disk_free_bytes", "Free on the disk of the home folder.")
COPIES: Final = PlatformMetric("rdukit_store_copies_bytes", "Copies of the bucket's content in the home folder.")
DISK_SIZE: Final = PlatformMetric("rdukit_disk_size_bytes", "Size of the disk of the home folder.")

METRICS: Final = (JOBS, PART_UP, SERVICES, BEAT_AGE, QUEUE_AGE, UNSERVED, WEBHOOK_AGE, DISK_FREE, DISK_SIZE, COPIES)


router = APIRouter(tags=["health"])


@router.get("/metrics", include_in_schema=False)
def metrics(request: Request, caller: Anyone) -> Response:
    """Prometheus text: the tenant's jobs by state; with the scope ``metrics`` all jobs, this gateway's requests, and
    what the platform's operators watch."""
    platform, sees_all = platform_of(request), allows(caller.scopes, scopes.METRICS)
    if not sees_all:
        check_scope(caller, scopes.JOBS_READ)
    with platform.database.read() as session:
        jobs = read_jobs(platform, session, None if sees_all else caller.tenant_id)
    text = format_metrics([(JOBS, jobs), *(read_platform(platform) if sees_all else ())])
    of_gateway = generate_latest() if sees_all else b""
    return Response(of_gateway + text.encode(), media_type=CONTENT_TYPE_LATEST)


def read_jobs(platform: Platform, session: Session, tenant_id: str | None) -> dict[str, float]:
    """Return the jobs by state: one tenant's, or all."""
    counts = platform.counts.read(session, tenant_id, platform.clock)
    return {str(state): float(counts.get(str(state), 0)) for state in JobState}


def read_platform(platform: Platform) -> Iterator[tuple[PlatformMetric, Mapping[str, float]]]:
    """Yield what only the whole platform's operators see: values by label, or of the label ``""``."""
    now = platform.clock.now()
    yield PART_UP, {"gateway": 1.0} | {part: float(is_up) for part, is_up in read_health(platform).parts.items()}
    with platform.database.read() as session:
        kinds = [service.kind for service in live_services(session, now)]
        yield SERVICES, {kind: float(kinds.count(kind)) for kind in ("scheduler", "worker")}
        beat_at = session.scalar(select(func.max(ServiceRow.beat_at)).where(ServiceRow.kind == "scheduler"))
        if beat_at is not None:
            yield BEAT_AGE, {"": max(now - beat_at, 0.0)}
        queued_at = session.scalar(select(func.min(JobRow.queued_at)).where(JobRow.state == str(JobState.QUEUED)))
        yield QUEUE_AGE, {"": 0.0 if queued_at is None else max(now - queued_at, 0.0)}
        is_ready = exists().where(
            EndpointReplicaRow.endpoint_id == EndpointRow.id, EndpointReplicaRow.state == str(ReplicaState.READY)
        )
        # One that idles wakes by a call: that it has none now is what was asked for.
        wants = (EndpointRow.deleted_at.is_(None), EndpointRow.replicas > 0, EndpointRow.idle_s.is_(None))
        unserved = session.scalar(select(func.count()).select_from(EndpointRow).where(*wants, ~is_ready))
        yield UNSERVED, {"": float(unserved or 0)}
        is_pending = DeliveryRow.state == str(DeliveryState.PENDING)
        created_at = session.scalar(select(func.min(DeliveryRow.created_at)).where(is_pending))
        yield WEBHOOK_AGE, {"": 0.0 if created_at is None else max(now - created_at, 0.0)}
    disk = shutil.disk_usage(platform.home.folder)
    yield DISK_FREE, {"": float(disk.free)}
    yield DISK_SIZE, {"": float(disk.total)}
    if isinstance(platform.store, S3Store):
        yield COPIES, {"": float(platform.store.cache.bytes())}


def format_metrics(found: Iterable[tuple[PlatformMetric, Mapping[str, float]]]) -> str:
    """Write gauges as Prometheus reads them (pure)."""
    lines = list[str]()
    for metric, values in found:
        lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} gauge"]
        for label, value in values.items():
            where = f'{{{metric.label}="{label}"}}' if metric.label else ""
            lines.append(f"{metric.name}{where} {value:.15g}")
    return "\n".join([*lines, ""])
