"""Cloning a job: its original request with changes (pure)."""

from collections.abc import Mapping
from typing import Final, Protocol

from rdukit.errors import Conflict
from rdukit_platform.catalog.model import Selector
from rdukit_platform.jobs.fit import PEF
from rdukit_platform.jobs.schemas import CloneRequest, JobRequest

#: Fields of a request that a row keeps under the same name.
_KEPT: Final = frozenset(JobRequest.model_fields) - {"box", "parameters", "inputs", "idempotency_key"}
#: Fields that a clone request may override.
_CHANGED: Final = _KEPT & frozenset(CloneRequest.model_fields) - {"name", "deadline", "deadline_s"}


class Cloned(Protocol):
    """The job to clone, as in its row."""

    @property
    def id(self) -> str: ...
    @property
    def box(self) -> str: ...
    @property
    def box_version(self) -> int | None: ...
    @property
    def parameters(self) -> Mapping[str, object]: ...
    @property
    def inputs(self) -> Mapping[str, str]: ...


def clone_request(job: Cloned, changes: CloneRequest, made: Mapping[str, str] | None = None) -> JobRequest:
    """Return the request of ``job`` with ``changes``. It names the same box version and belongs to no pipeline.

    The number of tiles is chosen again if the PEF changes.

    Args:
        made: artifacts of earlier steps, by the inputs that still refer to those steps.

    Raises:
        Conflict: a step of its pipeline has not made an input yet, and the changes give no other.
    """
    inputs = {**job.inputs, **(made or {}), **changes.inputs}
    missing = {slot: text for slot, text in inputs.items() if text.startswith("@") and slot not in changes.inputs}
    if missing:
        slot, text = next(iter(missing.items()))
        raise Conflict(
            f"input {slot!r} of job {job.id} is {text}, which its step has not produced yet; name an artifact: --input "
            f"{slot}=ARTIFACT"
        )
    fields = {name: getattr(job, name) for name in _KEPT if hasattr(job, name)}
    if changes.inputs.get(PEF, inputs.get(PEF)) != job.inputs.get(PEF):
        fields["tiles"] = None
    parameters = {name: value for name, value in job.parameters.items() if name not in changes.defaults}
    return JobRequest.model_validate(
        {
            **fields,
            **changes.model_dump(include=set(_CHANGED), exclude_none=True),
            **changes.model_dump(include={"deadline", "deadline_s"}),
            "box": str(Selector(job.box, job.box_version)),
            "parameters": {**parameters, **changes.parameters},
            "inputs": inputs,
            "name": changes.name or fields["name"],
            "idempotency_key": changes.idempotency_key,
        }
    )
