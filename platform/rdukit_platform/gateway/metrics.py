"""Metrics of the platform for Prometheus, in addition to the gateway's requests: jobs, endpoints, parts, queue,
webhooks, disk.
"""

import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy import exists, func, select
from sqlalchemy.orm import Session
from starlette.responses import Response

from rdukit_platform.api.context import Platform
from rdukit_platform.api.dependencies import MetricsReader, platform_of
from rdukit_platform.artifacts.stores.s3 import S3Store
from rdukit_platform.db.models import (
    DeliveryRow,
    EndpointReplicaRow,
    EndpointRow,
    EndpointUsageRow,
    JobRow,
    ServiceRow,
    TenantRow,
)
from rdukit_platform.endpoints.states import ReplicaState
from rdukit_platform.gateway.health import read_health
from rdukit_platform.jobs.states import JobState
from rdukit_platform.services import live_services
from rdukit_platform.tenants import scopes
from rdukit_platform.tenants.scopes import allows
from rdukit_platform.webhooks.states import DeliveryState


@dataclass(frozen=True, slots=True)
class PlatformMetric:
    """Gauge, or a counter if its name ends in ``_total``: its name, its help text, and the names of its labels."""

    name: str
    help: str
    labels: tuple[str, ...] = ()

    @property
    def is_counter(self) -> bool:
        """Return whether it is a counter."""
        return self.name.endswith("_total")


#: Values of a metric, by label values.
Values = Mapping[tuple[str, ...], float]

JOBS: Final = PlatformMetric("rdukit_jobs", "Jobs by state.", ("state",))
PART_UP: Final = PlatformMetric("rdukit_part_up", "Whether a service of the platform is up.", ("part",))
SERVICES: Final = PlatformMetric("rdukit_services", "Schedulers and workers that are up.", ("kind",))
BEAT_AGE: Final = PlatformMetric("rdukit_scheduler_beat_age_seconds", "Time since a scheduler's last heartbeat.")
QUEUE_AGE: Final = PlatformMetric("rdukit_queue_oldest_seconds", "Waiting time of the oldest queued job; 0: none.")
UNSERVED: Final = PlatformMetric("rdukit_endpoints_unserved", "Endpoints that want replicas but have none ready.")
WEBHOOK_AGE: Final = PlatformMetric(
    "rdukit_webhook_oldest_seconds", "Longest waiting time of a message to a webhook; 0: none."
)
DISK_FREE: Final = PlatformMetric("rdukit_disk_free_bytes", "Free space on the disk of the home folder.")
COPIES: Final = PlatformMetric("rdukit_store_copies_bytes", "Copies of the bucket's content in the home folder.")
DISK_SIZE: Final = PlatformMetric("rdukit_disk_size_bytes", "Size of the disk of the home folder.")

READY: Final = PlatformMetric("rdukit_endpoint_ready_replicas", "Replicas that accept calls.", ("tenant", "endpoint"))
_OF_MODELS: Final = ("tenant", "endpoint", "model")
#: Sums of ``EndpointUsageRow``, by its columns.
USE: Final[Mapping[str, PlatformMetric]] = {
    "requests": PlatformMetric("rdukit_endpoint_requests_total", "Calls of an endpoint.", _OF_MODELS),
    "failures": PlatformMetric("rdukit_endpoint_failures_total", "Calls answered with an error.", _OF_MODELS),
    "rows": PlatformMetric("rdukit_endpoint_rows_total", "Rows computed.", _OF_MODELS),
    "prompt_tokens": PlatformMetric("rdukit_endpoint_prompt_tokens_total", "Prompt tokens read.", _OF_MODELS),
    "completion_tokens": PlatformMetric(
        "rdukit_endpoint_completion_tokens_total", "Tokens generated.", _OF_MODELS
    ),
}  # fmt: skip

_OF_TENANTS: Final = ("tenant",)
#: Sums of ``CallerLoad``, by its fields: since this gateway started, of 200 tenants by name and of others together.
LOAD: Final[Mapping[str, PlatformMetric]] = {
    "requests": PlatformMetric("rdukit_gateway_tenant_requests_total", "Requests of a tenant's callers.", _OF_TENANTS),
    "bytes_in": PlatformMetric("rdukit_gateway_tenant_in_bytes_total", "Bytes of a tenant's bodies.", _OF_TENANTS),
    "bytes_out": PlatformMetric("rdukit_gateway_tenant_out_bytes_total", "Bytes of answers to a tenant.", _OF_TENANTS),
    "seconds": PlatformMetric(
        "rdukit_gateway_tenant_seconds_total", "Seconds until answers to a tenant began.", _OF_TENANTS
    ),
}  # fmt: skip

METRICS: Final = (
    JOBS, READY, *USE.values(), *LOAD.values(), PART_UP, SERVICES, BEAT_AGE, QUEUE_AGE, UNSERVED, WEBHOOK_AGE,
    DISK_FREE, DISK_SIZE, COPIES,
)  # fmt: skip


#: Condition that a replica takes calls.
_IS_READY: Final = (EndpointReplicaRow.endpoint_id == EndpointRow.id) & (
    EndpointReplicaRow.state == str(ReplicaState.READY)
)

router = APIRouter(tags=["health"])


@router.get("/metrics", include_in_schema=False)
def metrics(request: Request, caller: MetricsReader) -> Response:
    """Return the tenant's metrics that the token's scopes permit, as Prometheus text: jobs by state, and endpoints.

    With the scope ``metrics`` they cover all tenants, this gateway's requests, and the operators' metrics.
    """
    platform, sees_all = platform_of(request), allows(caller.scopes, scopes.METRICS)
    tenant_id = None if sees_all else caller.tenant_id
    found = list[tuple[PlatformMetric, Values]]()
    with platform.database.read() as session:
        if sees_all or allows(caller.scopes, scopes.JOBS_READ):
            found.append((JOBS, read_jobs(platform, session, tenant_id)))
        if sees_all or allows(caller.scopes, scopes.ENDPOINTS_READ):
            found += read_endpoints(session, tenant_id)
    if sees_all:
        found += read_platform(platform)
    of_gateway = generate_latest() if sees_all else b""
    return Response(of_gateway + format_metrics(found), media_type=CONTENT_TYPE_LATEST)


def read_jobs(platform: Platform, session: Session, tenant_id: str | None) -> Values:
    """Return the jobs by state: one tenant's, or all."""
    counts = platform.counts.read(session, tenant_id, platform.clock)
    return {(str(state),): float(counts.get(str(state), 0)) for state in JobState}


def read_endpoints(session: Session, tenant_id: str | None) -> Iterator[tuple[PlatformMetric, Values]]:
    """Yield the ready replicas of endpoints that are not deleted, and their use: one tenant's, or all.

    A bundle is counted by its experts and adapters; the model of others is empty.
    """
    whose = [EndpointRow.deleted_at.is_(None), *([EndpointRow.tenant_id == tenant_id] if tenant_id else [])]
    names = select(TenantRow.name, EndpointRow.name).join(EndpointRow, EndpointRow.tenant_id == TenantRow.id)
    ready = names.add_columns(func.count(EndpointReplicaRow.id)).outerjoin(EndpointReplicaRow, _IS_READY).where(*whose)
    counted = session.execute(ready.group_by(TenantRow.name, EndpointRow.name))
    yield READY, {(tenant, name): float(count) for tenant, name, count in counted}
    sums = [func.sum(getattr(EndpointUsageRow, column)) for column in USE]
    used = names.add_columns(EndpointUsageRow.model, *sums).join(
        EndpointUsageRow, EndpointUsageRow.endpoint_id == EndpointRow.id
    )
    groups = (TenantRow.name, EndpointRow.name, EndpointUsageRow.model)
    rows = session.execute(used.where(*whose).group_by(*groups)).all()
    for number, metric in enumerate(USE.values(), 3):
        yield metric, {(row[0], row[1], row[2]): float(row[number]) for row in rows}


def read_platform(platform: Platform) -> Iterator[tuple[PlatformMetric, Values]]:
    """Yield the metrics for operators only."""
    now = platform.clock.now()
    up: Values = {(part,): float(is_up) for part, is_up in [("gateway", True), *read_health(platform).parts.items()]}
    yield PART_UP, up
    with platform.database.read() as session:
        kinds = [service.kind for service in live_services(session, now)]
        services: Values = {(kind,): float(kinds.count(kind)) for kind in ("scheduler", "worker")}
        yield SERVICES, services
        beat_at = session.scalar(select(func.max(ServiceRow.beat_at)).where(ServiceRow.kind == "scheduler"))
        if beat_at is not None:
            yield BEAT_AGE, {(): max(now - beat_at, 0.0)}
        queued_at = session.scalar(select(func.min(JobRow.queued_at)).where(JobRow.state == str(JobState.QUEUED)))
        yield QUEUE_AGE, {(): 0.0 if queued_at is None else max(now - queued_at, 0.0)}
        is_ready = exists().where(_IS_READY)
        # An idle endpoint wakes on a call, so it lacks no replicas.
        wants = (EndpointRow.deleted_at.is_(None), EndpointRow.replicas > 0, EndpointRow.idle_s.is_(None))
        unserved = session.scalar(select(func.count()).select_from(EndpointRow).where(*wants, ~is_ready))
        yield UNSERVED, {(): float(unserved or 0)}
        is_pending = DeliveryRow.state == str(DeliveryState.PENDING)
        created_at = session.scalar(select(func.min(DeliveryRow.created_at)).where(is_pending))
        yield WEBHOOK_AGE, {(): 0.0 if created_at is None else max(now - created_at, 0.0)}
    loads = platform.load.by_tenant()
    for field, metric in LOAD.items():
        yield metric, {(tenant,): float(getattr(load, field)) for tenant, load in loads.items()}
    disk = shutil.disk_usage(platform.home.folder)
    yield DISK_FREE, {(): float(disk.free)}
    yield DISK_SIZE, {(): float(disk.total)}
    if isinstance(platform.store, S3Store):
        yield COPIES, {(): float(platform.store.cache.bytes())}


def format_metrics(found: Iterable[tuple[PlatformMetric, Values]]) -> bytes:
    """Format metrics for Prometheus (pure)."""

    class Found(Collector):
        def collect(self) -> Iterator[Metric]:
            for metric, values in found:
                family = (CounterMetricFamily if metric.is_counter else GaugeMetricFamily)(
                    metric.name, metric.help, labels=metric.labels
                )
                for labels, value in values.items():
                    family.add_metric(labels, value)
                yield family

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Found())
    return generate_latest(registry)
