"""Experts and endpoints of a platform, for programs: promote a checkpoint, serve it, call it."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from rdukit.errors import DeadlineExceeded, Unavailable
from rdukit_platform.client.http import ApiClient
from rdukit_platform.client.values import HasId, read_value

#: Seconds between two looks at an endpoint that is not as it is wanted.
LOOK_S: Final = 0.3
#: States in which an endpoint is as it is wanted.
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
            Conflict: it has not succeeded, or made no checkpoint.
        """
        body = {"job": job if isinstance(job, str) else job.id, "name": name, "description": description}
        return read_value(ExpertInfo, self._api.post("/v1/experts", {**body, "licence": licence}))

    def get(self, expert: str) -> ExpertInfo:
        """Return a version, ``NAME:VERSION``, or the newest of ``NAME`` that is not deprecated.

        Raises:
            NotFound: there is none.
        """
        return read_value(ExpertInfo, self._api.get(f"/v1/experts/{quote(expert)}"))

    def list(self) -> Iterator[ExpertInfo]:
        """Yield experts, newest first; pages are fetched as they are needed."""
        for each in self._api.pages("/v1/experts", "experts", limit=50):
            yield read_value(ExpertInfo, each)

    def deprecate(self, expert: str, reason: str) -> None:
        """Mark a version, or all of a ``NAME``, as one not to begin with."""
        self._api.post(f"/v1/experts/{quote(expert)}/deprecate", {"reason": reason})


@dataclass(frozen=True, slots=True)
class EndpointInfo:
    """An endpoint as it was when it was read."""

    name: str
    state: str
    revision: int
    box: str
    path: str
    model: str
    expert: str | None = None
    #: Why that expert is deprecated.
    deprecated: str | None = None
    bundle: str | None = None
    #: Of a bundle: its experts, adapters and router, each with ``name``, ``kind``, ``aliases``, ``usage``.
    models: list[dict[str, Any]] | None = None
    replicas: int = 0
    ready: int = 0
    canary: dict[str, Any] | None = None
    idle_s: float | None = None
    usage: dict[str, int] = field(default_factory=dict)
    revisions: tuple[dict[str, Any], ...] = ()
    instances: tuple[dict[str, Any], ...] = ()


def wait_until_settled(api: ApiClient, found: dict[str, Any], timeout_s: float | None = None) -> dict[str, Any]:
    """Wait until an endpoint, which was ``found`` so, is as it is wanted. Returns it as it was read then.

    Raises:
        Unavailable: its replicas fail; the message is what the first one said.
        DeadlineExceeded: it is not so within ``timeout_s``; it goes on.
    """
    name, ends_at = found["name"], None if timeout_s is None else time.monotonic() + timeout_s
    while found["state"] not in SETTLED:
        if found["state"] == "failing":
            reason = next((one["message"] for one in found["instances"] if one["message"]), "see rdukit endpoint show")
            raise Unavailable(f"endpoint {name!r} fails: {reason}", endpoint=name)
        if ends_at is not None and time.monotonic() >= ends_at:
            raise DeadlineExceeded(f"endpoint {name!r} is {found['state']} after {timeout_s:g} s; it goes on")
        api.sleep(LOOK_S)
        found = api.get(f"/v1/endpoints/{quote(name)}")
    return found


class ServedEndpoint:
    """An endpoint. ``info`` says how it was when it was last read: ``refresh`` and ``wait`` read it anew."""

    def __init__(self, api: ApiClient, value: Mapping[str, Any]) -> None:
        self._api, self.info = api, read_value(EndpointInfo, value)
        self.name: Final = self.info.name
        self._route: Final = f"/v1/endpoints/{quote(self.name)}"

    @property
    def url(self) -> str:
        """Return the base URL of the endpoint, for clients of OpenAI's API and of the Open Inference Protocol."""
        return f"{self._api.url}{self.info.path}"

    def refresh(self) -> "ServedEndpoint":
        """Read it anew. Returns itself."""
        return self._keep(self._api.get(self._route))

    def wait(self, timeout_s: float | None = None) -> "ServedEndpoint":
        """Wait until all replicas that are wanted are ready. Returns itself, read anew.

        Raises:
            Unavailable: its replicas fail; the message is what the first one said.
            DeadlineExceeded: they are not ready within ``timeout_s``; it goes on.
        """
        return self._keep(wait_until_settled(self._api, self._api.get(self._route), timeout_s))

    def infer(self, inputs: Sequence[Mapping[str, object]]) -> dict[str, Any]:
        """Ask the model by the Open Inference Protocol, in JSON.

        Args:
            inputs: tensors with ``name``, ``shape``, ``datatype`` and ``data``.
        Returns:
            The answer, with ``outputs`` alike.
        """
        return self._api.post(f"{self._route}/v2/models/{quote(self.name)}/infer", {"inputs": [*map(dict, inputs)]})

    def predict(self, rows: Sequence[Mapping[str, object]]) -> list[dict[str, Any]]:
        """Ask a model that was trained on a table about rows by column name.

        Args:
            rows: values by column, as in the training table; None where one is not known.
        Returns:
            For each row ``label``, its ``probability``, and ``probabilities`` of all labels by name.
        Raises:
            InvalidArgument: a row cannot be used; the message has row, column and what is expected.
        """
        asked = {"rows": [*map(dict, rows)]}
        answer = self._api.post(f"{self._route}/v2/models/{quote(self.name)}/rows", asked)
        predictions: list[dict[str, Any]] = answer["predictions"]
        return predictions

    def update(self, /, **changes: object) -> "ServedEndpoint":
        """Want something else: ``expert``, ``bundle``, ``box``, ``pef``, ``checkpoint``, ``tiles``, ``replicas``,
        ``idle_s``, ``canary`` (the percentage of calls that a new revision gets). No request fails. Returns itself."""
        return self._keep(self._api.post(f"{self._route}/update", changes))

    def promote(self) -> "ServedEndpoint":
        """Serve the canary to all calls. Returns itself."""
        return self._keep(self._api.post(f"{self._route}/promote", {}))

    def roll_back(self, revision: int | None = None) -> "ServedEndpoint":
        """Serve an earlier revision again, by default the one before; a canary ends. Returns itself."""
        return self._keep(self._api.post(f"{self._route}/rollback", {"revision": revision}))

    def delete(self) -> None:
        """End it: its replicas answer what they have and give back their tiles."""
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
            tiles: of each replica; by default what the PEF needs.
            idle_s: seconds without a call after which it has no replicas; 0: it keeps them.
        Raises:
            Conflict: the name is taken.
            InvalidArgument: these do not make a model; the message says what is missing.
        """
        wanted = expert.expert if isinstance(expert, ExpertInfo) else expert
        file = bundle if bundle is None or isinstance(bundle, str) else bundle.id
        body = {"name": name, "expert": wanted, "bundle": file, "box": box, "pef": pef, "checkpoint": checkpoint}
        more = {"tiles": tiles, "replicas": replicas, "idle_s": idle_s}
        return ServedEndpoint(self._api, self._api.post("/v1/endpoints", {**body, **more}))

    def get(self, name: str) -> ServedEndpoint:
        """Return one of the tenant's endpoints.

        Raises:
            NotFound: there is none of this name.
        """
        return ServedEndpoint(self._api, self._api.get(f"/v1/endpoints/{quote(name)}"))

    def list(self) -> Iterator[ServedEndpoint]:
        """Yield endpoints, newest first; pages are fetched as they are needed."""
        for each in self._api.pages("/v1/endpoints", "endpoints", limit=50):
            yield ServedEndpoint(self._api, each)
