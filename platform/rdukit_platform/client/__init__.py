"""Client of the platform, which programs and notebooks import; the command line uses it too.

A module is imported when one of its names is first used: a command does not wait for the asynchronous client.
"""

from typing import TYPE_CHECKING, Final

from rdukit.system.lazy_names import lazy_face

if TYPE_CHECKING:
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
else:
    #: Module → its names in the face.
    FACE: Final = {
        "rdukit_platform.client.artifacts": "Artifact",
        "rdukit_platform.client.asynchronous": (
            "AsyncArtifact AsyncEndpoint AsyncJob AsyncPipeline AsyncPlatform AsyncSweep"
        ),
        "rdukit_platform.client.jobs": "Job",
        "rdukit_platform.client.pipelines": "Pipeline PipelineInfo",
        "rdukit_platform.client.platform": "Platform",
        "rdukit_platform.client.serving": "EndpointInfo ExpertInfo ServedEndpoint",
        "rdukit_platform.client.sweeps": "Sweep SweepInfo TrialInfo",
        "rdukit_platform.client.tenants": "TenantInfo",
        "rdukit_platform.client.values": "ArtifactInfo AttemptInfo Event FileInfo JobInfo MetricPoint",
        "rdukit_platform.client.webhooks": "DeliveryInfo WebhookInfo",
    }

    __getattr__, __dir__ = lazy_face(__name__, FACE)


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
