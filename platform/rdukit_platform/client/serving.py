"""Experts and endpoints of a platform, for programs: promote a checkpoint, serve it, call it."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from rdukit.errors import DeadlineExceeded, Unavailable
from rdukit_platform.client.http import ApiClient
from rdukit_platform.client.values import HasId, read_value

#: Seconds between polls of an endpoint that has not reached its wanted state.
LOOK_S: Final = 0.3
#: States in which an endpoint has reached its wanted state.
SETTLED: Final = frozenset({"ready", "stopped", "idle"})


@dataclass(frozen=True, slots=True)
class ExpertInfo:
    """A version of an expert: a base box with the checkpoint that a job trained. ``pef`` and ``checkpoint`` are ids."""

    expert: str
    name: str
    version: int
    box: str
    checkpoint: str
    job: str
    pef: str | None = None
    description: str = ""
    licence: str = ""
    metrics: dict[str, Any] = field(default_factory=dict)
    created_at: float = 0.0
    deprecated_at: float | None = None


class Experts:
    """The tenant's experts: ``platform.experts``."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api

    def promote(self, job: HasId | str, name: str, *, description: str = "", licence: str | None = None) -> ExpertInfo:
        """Make the checkpoint of a job that has succeeded the next version of an expert.

        Raises:
            NotFound: there is no such job.
            Conflict: the job has not succeeded, or has no checkpoint.
        """
        body = {"job": job if isinstance(job, str) else job.id, "name": name, "description": description}
        return read_value(ExpertInfo, self._api.post("/v1/experts", {**body, "licence": licence}))

    def get(self, expert: str) -> ExpertInfo:
        """Return a version, ``NAME:VERSION``, or the newest of ``NAME`` that is not deprecated.

        Raises:
            NotFound: there is no such version.
        """
        return read_value(ExpertInfo, self._api.get(f"/v1/experts/{quote(expert)}"))

    def list(self) -> Iterator[ExpertInfo]:
        """Yield experts, newest first; pages are fetched on demand."""
        for each in self._api.pages("/v1/experts", "experts", limit=50):
            yield read_value(ExpertInfo, each)

    def deprecate(self, expert: str, reason: str) -> None:
        """Deprecate a version of an expert, or all versions of a ``NAME``."""
        self._api.post(f"/v1/experts/{quote(expert)}/deprecate", {"reason": reason})


@dataclass(frozen=True, slots=True)
class EndpointInfo:
    """An endpoint as last read."""

    name: str
    state: str
    revision: int
    box: str
    path: str
    model: str
    expert: str | None = None
    #: Reason why its expert is deprecated.
    deprecated: str | None = None
    bundle: str | None = None
    #: Experts, adapters and router of a bundle, each with ``name``, ``kind``, ``aliases``, ``usage``.
    models: list[dict[str, Any]] | None = None
    replicas: int = 0
    ready: int = 0
    canary: dict[str, Any] | None = None
    idle_s: float | None = None
    usage: dict[str, int] = field(default_factory=dict)
    revisions: tuple[dict[str, Any], ...] = ()
    instances: tuple[dict[str, Any], ...] = ()


def wait_until_settled(api: ApiClient, found: dict[str, Any], timeout_s: float | None = None) -> dict[str, Any]:
    """Wait until an endpoint has reached its wanted state; ``found`` is its last description. Returns the newest one.

    Raises:
        Unavailable: its replicas fail; the message is the first one's.
        DeadlineExceeded: it takes longer than ``timeout_s``; the endpoint continues.
    """
    name, ends_at = found["name"], None if timeout_s is None else time.monotonic() + timeout_s
    while found["state"] not in SETTLED:
        if found["state"] == "failing":
            reason = next((one["message"] for one in found["instances"] if one["message"]), "see rdukit endpoint show")
            raise Unavailable(f"endpoint {name!r} fails: {reason}", endpoint=name)
        if ends_at is not None and time.monotonic() >= ends_at:
            raise DeadlineExceeded(f"endpoint {name!r} is {found['state']} after {timeout_s:g} s and continues")
        api.sleep(LOOK_S)
        found = api.get(f"/v1/endpoints/{quote(name)}")
    return found


class ServedEndpoint:
    """An endpoint. ``info`` is its description as last read; ``refresh`` and ``wait`` read it again."""

    def __init__(self, api: ApiClient, value: Mapping[str, Any]) -> None:
        self._api, self.info = api, read_value(EndpointInfo, value)
        self.name: Final = self.info.name
        self._route: Final = f"/v1/endpoints/{quote(self.name)}"

    @property
    def url(self) -> str:
        """Return the base URL of the endpoint, for clients of OpenAI's API and of the Open Inference Protocol."""
        return f"{self._api.url}{self.info.path}"

    def refresh(self) -> "ServedEndpoint":
        """Read the endpoint again. Returns itself."""
        return self._keep(self._api.get(self._route))

    def wait(self, timeout_s: float | None = None) -> "ServedEndpoint":
        """Wait until all wanted replicas are ready. Returns itself, read again.

        Raises:
            Unavailable: its replicas fail; the message is the first one's.
            DeadlineExceeded: the replicas are not ready within ``timeout_s``; the endpoint continues.
        """
        return self._keep(wait_until_settled(self._api, self._api.get(self._route), timeout_s))

    def infer(self, inputs: Sequence[Mapping[str, object]]) -> dict[str, Any]:
        """Call the model by the Open Inference Protocol, in JSON.

        Args:
            inputs: tensors with ``name``, ``shape``, ``datatype`` and ``data``.
        Returns:
            The answer; its ``outputs`` are tensors of the same form.
        """
        return self._api.post(f"{self._route}/v2/models/{quote(self.name)}/infer", {"inputs": [*map(dict, inputs)]})

    def predict(self, rows: Sequence[Mapping[str, object]]) -> list[dict[str, Any]]:
        """Ask a model that was trained on a table about rows by column name.

        Args:
            rows: values by column, as in the training table; None for an unknown value.
        Returns:
            For each row ``label``, its ``probability``, and ``probabilities`` of all labels by name. A model that
            predicts a number gives ``value``, in the label's unit.
        Raises:
            InvalidArgument: a row cannot be used; the message has row, column and the expected values.
        """
        asked = {"rows": [*map(dict, rows)]}
        answer = self._api.post(f"{self._route}/v2/models/{quote(self.name)}/rows", asked)
        predictions: list[dict[str, Any]] = answer["predictions"]
        return predictions

    def update(self, /, **changes: object) -> "ServedEndpoint":
        """Change the wanted state: ``expert``, ``bundle``, ``box``, ``pef``, ``checkpoint``, ``tiles``, ``replicas``,
        ``idle_s``, ``canary`` (the percentage of calls that a new revision gets). No request fails. Returns itself."""
        return self._keep(self._api.post(f"{self._route}/update", changes))

    def promote(self) -> "ServedEndpoint":
        """Make the canary the wanted revision, which gets all calls. Returns itself."""
        return self._keep(self._api.post(f"{self._route}/promote", {}))

    def roll_back(self, revision: int | None = None) -> "ServedEndpoint":
        """Serve an earlier revision again, by default the previous one; a canary ends. Returns itself."""
        return self._keep(self._api.post(f"{self._route}/rollback", {"revision": revision}))

    def delete(self) -> None:
        """Delete the endpoint: its replicas finish their requests and release their tiles."""
        self._api.delete(self._route)

    def _keep(self, value: Mapping[str, Any]) -> "ServedEndpoint":
        self.info = read_value(EndpointInfo, value)
        return self

    def __repr__(self) -> str:
        return f"<ServedEndpoint {self.name!r}: {self.info.state}>"


class Endpoints:
    """The tenant's endpoints: ``platform.endpoints``."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api

    def create(
        self,
        name: str,
        *,
        expert: ExpertInfo | str | None = None,
        bundle: HasId | str | None = None,
        box: str | None = None,
        pef: str | None = None,
        checkpoint: str | None = None,
        tiles: int | None = None,
        replicas: int = 1,
        idle_s: float = 0.0,
    ) -> ServedEndpoint:
        """Serve an expert, a bundle of experts, or a box with artifacts, under a name.

        Args:
            bundle: an artifact of the kind ``bundle``: a bundle.yaml whose files are ``artifact://ID``.
            pef, checkpoint: ids of artifacts; by default the expert's.
            tiles: tiles of each replica; by default as many as the PEF needs.
            idle_s: seconds without a call after which its replicas end; 0: never.
        Raises:
            Conflict: the name is taken.
            InvalidArgument: the arguments do not determine a model; the message says what is missing.
        """
        wanted = expert.expert if isinstance(expert, ExpertInfo) else expert
        file = bundle if bundle is None or isinstance(bundle, str) else bundle.id
        body = {"name": name, "expert": wanted, "bundle": file, "box": box, "pef": pef, "checkpoint": checkpoint}
        more = {"tiles": tiles, "replicas": replicas, "idle_s": idle_s}
        return ServedEndpoint(self._api, self._api.post("/v1/endpoints", {**body, **more}))

    def get(self, name: str) -> ServedEndpoint:
        """Return one of the tenant's endpoints.

        Raises:
            NotFound: there is no endpoint of this name.
        """
        return ServedEndpoint(self._api, self._api.get(f"/v1/endpoints/{quote(name)}"))

    def list(self) -> Iterator[ServedEndpoint]:
        """Yield endpoints, newest first; pages are fetched on demand."""
        for each in self._api.pages("/v1/endpoints", "endpoints", limit=50):
            yield ServedEndpoint(self._api, each)
