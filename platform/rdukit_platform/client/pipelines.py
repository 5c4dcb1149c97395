"""Pipelines of a platform, for programs: submit, wait, inspect their steps."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from rdukit.errors import Cancelled, DeadlineExceeded, NotFound, RdukitError, error_from_body, suggest
from rdukit_platform.client.http import FINAL_STATES, ApiClient
from rdukit_platform.client.jobs import Job
from rdukit_platform.client.values import JobInfo

#: Seconds between polls of a running pipeline.
LOOK_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class PipelineInfo:
    """A pipeline as last read, with its jobs in the order of its steps."""

    id: str
    name: str
    state: str
    created_at: float
    jobs: tuple[JobInfo, ...]

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> "PipelineInfo":
        """Parse the API's description of a pipeline."""
        jobs = tuple(JobInfo.of(each) for each in value["jobs"])
        return cls(value["id"], value["name"], value["state"], value["created_at"], jobs)


class Pipeline:
    """A pipeline. Its properties show the state last read; ``refresh`` and ``wait`` read it again."""

    def __init__(self, api: ApiClient, info: PipelineInfo) -> None:
        self._api, self.info = api, info
        self.id: Final = info.id

    @property
    def state(self) -> str:
        """Return the pipeline's state, derived from its jobs, such as ``running``."""
        return self.info.state

    @property
    def jobs(self) -> Mapping[str, Job]:
        """Return the pipeline's jobs by step, such as ``train[0]``; a missing step raises ``NotFound``."""
        return Steps({job.step or job.id: Job(self._api, job) for job in self.info.jobs})

    def refresh(self) -> "Pipeline":
        """Read the pipeline anew. Returns itself."""
        self.info = PipelineInfo.of(self._api.get(f"/v1/pipelines/{self.id}"))
        return self

    def wait(self, timeout_s: float | None = None, *, check: bool = True) -> "Pipeline":
        """Wait until all jobs have ended. Returns itself, read anew.

        Args:
            check: raise if it does not succeed.
        Raises:
            RdukitError: a job failed; the first failed job's error code determines the class.
            Cancelled: it was cancelled.
            DeadlineExceeded: the pipeline has not ended within ``timeout_s``; it continues.
        """
        ends_at = None if timeout_s is None else time.monotonic() + timeout_s
        while self.refresh().state not in FINAL_STATES:
            if ends_at is not None and time.monotonic() >= ends_at:
                raise DeadlineExceeded(f"pipeline {self.id} did not end within {timeout_s:g} s and continues")
            self._api.sleep(LOOK_S)
        if check and self.state != "succeeded":
            raise self._failure()
        return self

    def cancel(self) -> "Pipeline":
        """Cancel all jobs that have not ended. Cancelling twice is not an error."""
        self.info = PipelineInfo.of(self._api.post(f"/v1/pipelines/{self.id}/cancel"))
        return self

    def _failure(self) -> RdukitError:
        job = next((job for job in self.info.jobs if job.state == "failed"), None)
        if job is None:
            return Cancelled(f"pipeline {self.id} is {self.state}", pipeline=self.id)
        error = job.error or {}
        said = f"pipeline {self.id} is {self.state}: step {job.step}, job {job.id} ({job.reason})"
        said += f": {error['message']}" if error.get("message") else ""
        detail = {"pipeline": self.id, "job": job.id, "step": job.step}
        return error_from_body({"error": {"code": error.get("code"), "message": said, "detail": detail}})

    def __repr__(self) -> str:
        return f"<Pipeline {self.id} {self.info.name!r}: {self.state}>"


J = TypeVar("J")


class Steps(dict[str, J], Generic[J]):
    """Jobs by step."""

    def __missing__(self, step: str) -> J:
        raise NotFound(f"the pipeline has no step {step!r}.{suggest(step, self)} Steps: {', '.join(self)}")


class Pipelines:
    """The tenant's pipelines: ``platform.pipelines``."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api

    def submit(
        self,
        name: str,
        steps: Sequence[Mapping[str, object]],
        *,
        cache: bool = True,
        idempotency_key: str | None = None,
    ) -> Pipeline:
        """Submit a pipeline: all its jobs, or none. After a broken connection it is sent again, and recorded once.

        Args:
            steps: with the keys of a pipeline file.
            cache: whether to reuse outputs that earlier jobs have made.
        Raises:
            InvalidArgument: a step is not valid; the message says what would be.
        """
        body: dict[str, object] = {"name": name, "steps": [dict(step) for step in steps], "cache": cache}
        if idempotency_key is not None:
            body["idempotency_key"] = idempotency_key
        return Pipeline(self._api, PipelineInfo.of(self._api.submit("/v1/pipelines", body)))

    def get(self, pipeline_id: str) -> Pipeline:
        """Return one of the tenant's pipelines.

        Raises:
            NotFound: there is no pipeline of this id.
        """
        return Pipeline(self._api, PipelineInfo.of(self._api.get(f"/v1/pipelines/{pipeline_id}")))

    def list(self) -> Iterator[Pipeline]:
        """Yield pipelines, newest first; pages are fetched on demand."""
        for each in self._api.pages("/v1/pipelines", "pipelines", limit=50):
            yield Pipeline(self._api, PipelineInfo.of(each))
