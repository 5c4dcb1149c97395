"""Client of the platform, which programs and notebooks import; the command line uses it too."""

from rdukit_platform.client.artifacts import Artifact
from rdukit_platform.client.asynchronous import (
    AsyncArtifact,
    AsyncEndpoint,
    AsyncJob,
    AsyncPipeline,
    AsyncPlatform,
    AsyncSweep,
)
from rdukit_platform.client.jobs import Job
from rdukit_platform.client.pipelines import Pipeline, PipelineInfo
from rdukit_platform.client.platform import Platform
from rdukit_platform.client.serving import EndpointInfo, ExpertInfo, ServedEndpoint
from rdukit_platform.client.sweeps import Sweep, SweepInfo, TrialInfo
from rdukit_platform.client.tenants import TenantInfo
from rdukit_platform.client.values import ArtifactInfo, AttemptInfo, Event, FileInfo, JobInfo, MetricPoint
from rdukit_platform.client.webhooks import DeliveryInfo, WebhookInfo

__all__ = [
    "Artifact",
    "ArtifactInfo",
    "AsyncArtifact",
    "AsyncEndpoint",
    "AsyncJob",
    "AsyncPipeline",
    "AsyncPlatform",
    "AsyncSweep",
    "AttemptInfo",
    "DeliveryInfo",
    "EndpointInfo",
    "Event",
    "ExpertInfo",
    "FileInfo",
    "Job",
    "JobInfo",
    "MetricPoint",
    "Pipeline",
    "PipelineInfo",
    "Platform",
    "ServedEndpoint",
    "Sweep",
    "SweepInfo",
    "TenantInfo",
    "TrialInfo",
    "WebhookInfo",
]
