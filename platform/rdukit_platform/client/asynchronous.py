"""The client for asynchronous programs: the same client with methods that are awaited.

Each class wraps the blocking one as ``sync`` and lifts its methods. Values known without a request are properties.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Generic, Protocol, Self, TypeVar

import httpx

from rdukit.http.tls import verify_of
from rdukit_platform.client.artifacts import Artifact, Artifacts
from rdukit_platform.client.bridge import BridgedTransport, as_is, lift, lift_iterator, run, sleep
from rdukit_platform.client.contexts import find_place
from rdukit_platform.client.jobs import Job, Jobs, Outputs
from rdukit_platform.client.pipelines import Pipeline, PipelineInfo, Pipelines, Steps
from rdukit_platform.client.platform import Platform
from rdukit_platform.client.serving import EndpointInfo, Endpoints, Experts, ServedEndpoint
from rdukit_platform.client.sweeps import Sweep, SweepInfo, Sweeps
from rdukit_platform.client.tenants import Tenants
from rdukit_platform.client.values import ArtifactInfo, JobInfo
from rdukit_platform.client.webhooks import Webhooks
from rdukit_platform.settings import current_home

T = TypeVar("T")
Info_co = TypeVar("Info_co", covariant=True)


class ReadRecord(Protocol[Info_co]):
    """A job, pipeline or sweep of the blocking client, as last read."""

    @property
    def info(self) -> Info_co: ...
    @property
    def id(self) -> str: ...
    @property
    def state(self) -> str: ...


R = TypeVar("R", bound=ReadRecord[Any])


class Lifted(Generic[T]):
    """Base of wrappers of the blocking client's objects."""

    def __init__(self, sync: T) -> None:
        self._sync: Final = sync

    @property
    def sync(self) -> T:
        """Return the wrapped object of the blocking client; read its properties only, never call its methods."""
        return self._sync

    def __repr__(self) -> str:
        return repr(self._sync).replace("<", "<Async", 1)


class LiftedRecord(Lifted[R], Generic[R, Info_co]):
    """Base of wrappers with an id and a state, as last read."""

    @property
    def info(self) -> Info_co:
        """Answer of the API."""
        info: Info_co = self.sync.info
        return info

    @property
    def id(self) -> str:
        """The id of the job, pipeline or sweep."""
        return self.sync.id

    @property
    def state(self) -> str:
        """The state, such as ``running``; of a pipeline, that of its jobs together."""
        return self.sync.state


class AsyncArtifact(Lifted[Artifact]):
    """An artifact by its id."""

    @property
    def id(self) -> str:
        """The artifact's id."""
        return self.sync.id

    async def read(self) -> ArtifactInfo:
        """Return the description of the artifact."""
        return await run(lambda: self.sync.info)

    download = lift(Artifact.download, Path)
    pin = lift(Artifact.pin, as_is)
    unpin = lift(Artifact.unpin, as_is)
    delete = lift(Artifact.delete, as_is)


class AsyncArtifacts(Lifted[Artifacts]):
    """The tenant's artifacts."""

    add = lift(Artifacts.add, AsyncArtifact)
    get = lift(Artifacts.get, AsyncArtifact)
    list = lift_iterator(Artifacts.list, AsyncArtifact)


def _job(job: Job) -> "AsyncJob":
    return AsyncJob(job)


class AsyncJob(LiftedRecord[Job, JobInfo]):
    """A job. Its properties show the state last read; ``refresh`` and ``wait`` read it again."""

    @property
    def has_ended(self) -> bool:
        """Flag: the state is final."""
        return self.sync.has_ended

    @property
    def result(self) -> Mapping[str, Any]:
        """Figures that the verb ended with; empty before."""
        return self.sync.result

    @property
    def outputs(self) -> Mapping[str, AsyncArtifact]:
        """Artifacts that the job made, by slot; empty until it has succeeded."""
        found = self.sync.outputs
        lifted: Outputs[AsyncArtifact] = Outputs({slot: AsyncArtifact(each) for slot, each in found.items()})
        lifted.of = found.of if isinstance(found, Outputs) else lifted.of
        return lifted

    refresh = lift(Job.refresh, _job)
    wait = lift(Job.wait, _job)
    events = lift_iterator(Job.events, as_is)
    logs = lift_iterator(Job.logs, as_is)
    metrics = lift_iterator(Job.metrics, as_is)
    cancel = lift(Job.cancel, _job)
    pause = lift(Job.pause, _job)
    resume = lift(Job.resume, _job)
    clone = lift(Job.clone, _job)


class AsyncJobs(Lifted[Jobs]):
    """The tenant's jobs."""

    submit = lift(Jobs.submit, AsyncJob)
    submit_batch = lift(Jobs.submit_batch, as_is)
    get = lift(Jobs.get, AsyncJob)
    list = lift_iterator(Jobs.list, AsyncJob)


def _pipeline(pipeline: Pipeline) -> "AsyncPipeline":
    return AsyncPipeline(pipeline)


class AsyncPipeline(LiftedRecord[Pipeline, PipelineInfo]):
    """A pipeline. Its properties show the state last read."""

    @property
    def jobs(self) -> Mapping[str, AsyncJob]:
        """Jobs by step, such as ``train[0]``."""
        return Steps({step: AsyncJob(job) for step, job in self.sync.jobs.items()})

    refresh = lift(Pipeline.refresh, _pipeline)
    wait = lift(Pipeline.wait, _pipeline)
    cancel = lift(Pipeline.cancel, _pipeline)


class AsyncPipelines(Lifted[Pipelines]):
    """The tenant's pipelines."""

    submit = lift(Pipelines.submit, AsyncPipeline)
    get = lift(Pipelines.get, AsyncPipeline)
    list = lift_iterator(Pipelines.list, AsyncPipeline)


def _sweep(sweep: Sweep) -> "AsyncSweep":
    return AsyncSweep(sweep)


class AsyncSweep(LiftedRecord[Sweep, SweepInfo]):
    """A sweep. Its properties show the state last read."""

    refresh = lift(Sweep.refresh, _sweep)
    wait = lift(Sweep.wait, _sweep)
    cancel = lift(Sweep.cancel, _sweep)


class AsyncSweeps(Lifted[Sweeps]):
    """The tenant's sweeps."""

    submit = lift(Sweeps.submit, AsyncSweep)
    get = lift(Sweeps.get, AsyncSweep)
    list = lift_iterator(Sweeps.list, AsyncSweep)


class AsyncExperts(Lifted[Experts]):
    """The tenant's experts."""

    promote = lift(Experts.promote, as_is)
    get = lift(Experts.get, as_is)
    list = lift_iterator(Experts.list, as_is)
    deprecate = lift(Experts.deprecate, as_is)


def _endpoint(endpoint: ServedEndpoint) -> "AsyncEndpoint":
    return AsyncEndpoint(endpoint)


class AsyncEndpoint(Lifted[ServedEndpoint]):
    """An endpoint. ``info`` is its description as last read."""

    @property
    def info(self) -> EndpointInfo:
        """Answer of the API about the endpoint."""
        return self.sync.info

    @property
    def name(self) -> str:
        """The endpoint's name."""
        return self.sync.name

    @property
    def url(self) -> str:
        """Address that its routes begin with."""
        return self.sync.url

    refresh = lift(ServedEndpoint.refresh, _endpoint)
    wait = lift(ServedEndpoint.wait, _endpoint)
    infer = lift(ServedEndpoint.infer, as_is)
    predict = lift(ServedEndpoint.predict, as_is)
    update = lift(ServedEndpoint.update, _endpoint)
    promote = lift(ServedEndpoint.promote, _endpoint)
    roll_back = lift(ServedEndpoint.roll_back, _endpoint)
    delete = lift(ServedEndpoint.delete, as_is)


class AsyncEndpoints(Lifted[Endpoints]):
    """The tenant's endpoints."""

    create = lift(Endpoints.create, AsyncEndpoint)
    get = lift(Endpoints.get, AsyncEndpoint)
    list = lift_iterator(Endpoints.list, AsyncEndpoint)


class AsyncWebhooks(Lifted[Webhooks]):
    """The tenant's webhooks."""

    add = lift(Webhooks.add, as_is)
    get = lift(Webhooks.get, as_is)
    list = lift_iterator(Webhooks.list, as_is)
    test = lift(Webhooks.test, as_is)
    rotate = lift(Webhooks.rotate, as_is)
    disable = lift(Webhooks.disable, as_is)
    enable = lift(Webhooks.enable, as_is)
    remove = lift(Webhooks.remove, as_is)
    deliveries = lift_iterator(Webhooks.deliveries, as_is)
    redeliver = lift(Webhooks.redeliver, as_is)


class AsyncTenants(Lifted[Tenants]):
    """Tenants, as far as their members see them."""

    own = lift(Tenants.own, as_is)
    get = lift(Tenants.get, as_is)


class AsyncPlatform(Lifted[Platform]):
    """A platform, by its gateway, for one event loop: ``async with AsyncPlatform() as platform``.

    Takes what ``Platform`` takes. Requests use asynchronous connections; reading and writing files blocks.
    """

    def __init__(self, url: str | None = None, token: str | None = None, *, context: str | None = None) -> None:
        """Create the client without a connection. Raises as ``Platform``."""
        # Hundreds of tasks may wait, each with a stream of its own.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        inner = httpx.AsyncHTTPTransport(
            verify=verify_of(url or find_place(current_home(), url, token, context).url), limits=limits, trust_env=False
        )
        super().__init__(Platform(url, token, context=context, transport=BridgedTransport(inner), sleep=sleep))
        self.jobs = AsyncJobs(self.sync.jobs)
        self.pipelines = AsyncPipelines(self.sync.pipelines)
        self.sweeps = AsyncSweeps(self.sync.sweeps)
        self.artifacts = AsyncArtifacts(self.sync.artifacts)
        self.experts = AsyncExperts(self.sync.experts)
        self.endpoints = AsyncEndpoints(self.sync.endpoints)
        self.webhooks = AsyncWebhooks(self.sync.webhooks)
        self.tenants = AsyncTenants(self.sync.tenants)

    @property
    def url(self) -> str:
        """Address of the gateway."""
        return self.sync.url

    async def close(self) -> None:
        """Close the connections."""
        await run(self.sync.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *details: object) -> None:
        await self.close()
