"""Jobs of a platform, for programs: submit, wait, read logs and metrics, fetch outputs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, TypeVar, cast

from rdukit.errors import Cancelled, NotFound, RdukitError, error_from_body, suggest
from rdukit_platform.client.artifacts import Artifact
from rdukit_platform.client.http import FINAL_STATES, ApiClient
from rdukit_platform.client.values import Event, HasId, JobInfo, MetricPoint, ids_of, read_value

A = TypeVar("A")


class Outputs(dict[str, A], Generic[A]):
    """Artifacts by slot."""

    #: Owner of the outputs, for the message about a missing slot.
    of = "the job"

    def __missing__(self, slot: str) -> A:
        raise NotFound(f"{self.of} has no output {slot!r}.{suggest(slot, self)} Outputs: {', '.join(self) or 'none'}")


class Job:
    """A job. Its properties show the state last read; ``refresh`` and ``wait`` read it again."""

    def __init__(self, api: ApiClient, info: JobInfo) -> None:
        self._api, self._info = api, info

    @property
    def info(self) -> JobInfo:
        """Return the API's description of the job."""
        return self._info

    @property
    def id(self) -> str:
        """The job's id."""
        return self._info.id

    @property
    def state(self) -> str:
        """The job's state, such as ``running``."""
        return self._info.state

    @property
    def has_ended(self) -> bool:
        """Return whether the job's state is final."""
        return self._info.state in FINAL_STATES

    @property
    def result(self) -> Mapping[str, Any]:
        """Figures that the verb ended with; empty before."""
        return self._info.result or {}

    @property
    def outputs(self) -> Mapping[str, Artifact]:
        """Artifacts that the job made, by slot; empty until it has succeeded.

        A missing slot raises ``NotFound``, which names the present ones.
        """
        found = Outputs({slot: Artifact(self._api, each) for slot, each in self._info.outputs.items()})
        found.of = f"job {self.id}, which is {self.state},"
        return found

    def refresh(self) -> "Job":
        """Read the job anew. Returns itself."""
        self._info = JobInfo.of(self._api.get(f"/v1/jobs/{self.id}"))
        return self

    def wait(
        self, timeout_s: float | None = None, *, check: bool = True, on_event: Callable[[Event], object] | None = None
    ) -> "Job":
        """Wait until the job has ended. Returns itself, read anew.

        Args:
            check: raise if it does not succeed.
            on_event: called with each event from the job's beginning on, such as ``print``.
        Raises:
            RdukitError: it failed; the error's code determines the class.
            Cancelled: it was cancelled.
            DeadlineExceeded: the job has not ended within ``timeout_s``; it continues.
        """
        for event in self._api.follow(self.id, timeout_s):
            if on_event is not None:
                on_event(read_value(Event, event))
        self.refresh()
        if check and self.state != "succeeded":
            raise self._failure()
        return self

    def _failure(self) -> RdukitError:
        info = self._info
        error = info.error or {}
        said = f"job {info.id} is {info.state} ({info.reason})"
        said += f": {error['message']}" if error.get("message") else f". {info.advice}" if info.advice else ""
        if info.state == "cancelled":
            return Cancelled(said, job=info.id, reason=info.reason)
        detail = {**(error.get("detail") or {}), "job": info.id, "reason": info.reason}
        return error_from_body({"error": {"code": error.get("code"), "message": said, "detail": detail}})

    def events(self, *, follow: bool = False) -> Iterator[Event]:
        """Yield what happened to the job, oldest first; with ``follow`` until it has ended."""
        if follow:
            yield from (read_value(Event, each) for each in self._api.follow(self.id))
            return
        after = 0
        while page := self._api.get(f"/v1/jobs/{self.id}/events", after=after)["events"]:
            yield from (read_value(Event, each) for each in page)
            after = page[-1]["sequence"]

    def logs(self, *, follow: bool = False) -> Iterator[str]:
        """Yield the lines of the job's log; with ``follow`` until it has ended, even if the gateway restarts."""
        if follow:
            yield from (str(event.data.get("line", "")) for event in self.events(follow=True) if event.kind == "log")
        else:
            yield from self._api.lines(f"/v1/jobs/{self.id}/logs")

    def metrics(self) -> Iterator[MetricPoint]:
        """Yield the figures of each progress event, oldest first: full curves."""
        return (read_value(MetricPoint, each) for each in self._api.metrics(self.id))

    def cancel(self) -> "Job":
        """Cancel the job at once, in any open state. Cancelling twice is not an error."""
        return self._change("cancel")

    def pause(self) -> "Job":
        """Pause the job until it is resumed; a running training writes a checkpoint first."""
        return self._change("pause")

    def resume(self) -> "Job":
        """Resume a paused job."""
        return self._change("resume")

    def clone(
        self,
        *,
        parameters: Mapping[str, object] | None = None,
        inputs: Mapping[str, HasId | str] | None = None,
        name: str | None = None,
        tiles: int | None = None,
        members: int | None = None,
        constraint: Mapping[str, str] | None = None,
        max_attempts: int | None = None,
        priority: int | None = None,
        preemptible: bool | None = None,
        run_limit_s: float | None = None,
        deadline: datetime | float | None = None,
        retry: Mapping[str, object] | None = None,
        labels: Mapping[str, str] | None = None,
        profile: bool | None = None,
        idempotency_key: str | None = None,
    ) -> "Job":
        """Submit a job like this one, of the same version of its box, with changes. Returns the new job.

        Args:
            deadline: as for ``Jobs.submit``; without it the new job has none.
            labels: the new job's labels, instead of this job's.
            profile: whether to record where the new job's time goes; without it as this job.
        """
        body = {
            "parameters": dict(parameters or {}), "inputs": ids_of(inputs), "name": name, "tiles": tiles,
            "members": members, "max_attempts": max_attempts, "priority": priority, "preemptible": preemptible,
            "run_limit_s": run_limit_s, **deadline_body(deadline), "retry": None if retry is None else dict(retry),
            "labels": None if labels is None else dict(labels), "idempotency_key": idempotency_key,
            "constraint": None if constraint is None else dict(constraint), "profile": profile,
        }  # fmt: skip
        body = {key: value for key, value in body.items() if value is not None}
        return Job(self._api, JobInfo.of(self._api.submit(f"/v1/jobs/{self.id}/clone", body)))

    def _change(self, act: str) -> "Job":
        self._info = JobInfo.of(self._api.post(f"/v1/jobs/{self.id}/{act}"))
        return self

    def __repr__(self) -> str:
        return f"<Job {self.id} {self._info.verb} of {self._info.box}: {self.state}>"


def deadline_body(deadline: datetime | float | None) -> dict[str, object]:
    """Return the keys of a request for a deadline: a time with its zone, or seconds from now (pure)."""
    return {"deadline": deadline.isoformat()} if isinstance(deadline, datetime) else {"deadline_s": deadline}


class Jobs:
    """The tenant's jobs: ``platform.jobs``."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api

    def submit(
        self,
        box: str,
        verb: str,
        *,
        parameters: Mapping[str, object] | None = None,
        inputs: Mapping[str, HasId | str] | None = None,
        name: str | None = None,
        tiles: int | None = None,
        members: int | None = None,
        constraint: Mapping[str, str] | None = None,
        max_attempts: int | None = None,
        priority: int | None = None,
        preemptible: bool | None = None,
        run_limit_s: float | None = None,
        deadline: datetime | float | None = None,
        retry: Mapping[str, object] | None = None,
        labels: Mapping[str, str] | None = None,
        profile: bool | None = None,
        idempotency_key: str | None = None,
    ) -> Job:
        """Submit a job. After a broken connection it is sent again, and recorded once.

        Args:
            inputs: artifacts, such as another job's outputs, or their ids, by slot.
            members: processes of a training that compute together on one node, each with ``tiles`` tiles.
            constraint: labels that its node must have.
            deadline: a time with its zone, or seconds from now.
            retry: ``on``, ``backoff_s`` and ``max_backoff_s``, as REST has them.
            profile: record where its time goes, as the output ``profile``; for train, evaluate and infer.
            idempotency_key: the same key gives the same job; without it each call submits a new one.
        Raises:
            NotFound: there is no such box or artifact.
            InvalidArgument: verb, parameters or inputs are not valid; the message says what would be.
        """
        body = {
            "box": box, "verb": verb, "parameters": dict(parameters or {}), "inputs": ids_of(inputs), "name": name,
            "tiles": tiles, "members": members, "max_attempts": max_attempts, "priority": priority,
            "preemptible": preemptible, "run_limit_s": run_limit_s,
            **deadline_body(deadline),
            "retry": None if retry is None else dict(retry), "labels": None if labels is None else dict(labels),
            "constraint": None if constraint is None else dict(constraint), "profile": profile,
            "idempotency_key": idempotency_key,
        }  # fmt: skip
        body = {key: value for key, value in body.items() if value is not None}
        return Job(self._api, JobInfo.of(self._api.submit("/v1/jobs", body)))

    def submit_batch(self, jobs: Sequence[Mapping[str, object]], *, idempotency_key: str | None = None) -> list[str]:
        """Submit up to 1,000 jobs at once, all or none; returns their ids. A broken connection is retried.

        Args:
            jobs: each as in REST: ``box``, ``verb``, ``parameters``, …; ``inputs`` may be artifacts, as for ``submit``.
            idempotency_key: the same key gives the same jobs; without it each call submits new ones.
        Raises:
            NotFound, InvalidArgument: as ``submit``; ``detail["job"]`` is the index of the refused job, from 0.
        """
        bodies = [{**job, "inputs": ids_of(cast(Any, job.get("inputs")))} for job in jobs]
        body: dict[str, object] = {"jobs": bodies}
        if idempotency_key is not None:
            body["idempotency_key"] = idempotency_key
        ids: list[str] = self._api.submit("/v1/jobs/batch", body)["ids"]
        return ids

    def get(self, job_id: str) -> Job:
        """Return one of the tenant's jobs.

        Raises:
            NotFound: there is no job of this id.
        """
        return Job(self._api, JobInfo.of(self._api.get(f"/v1/jobs/{job_id}")))

    def list(
        self, *, state: str | None = None, labels: Mapping[str, str] | None = None, search: str | None = None,
        box: str | None = None,
    ) -> Iterator[Job]:  # fmt: skip
        """Yield jobs with all of ``labels``, newest first; pages are fetched on demand.

        Args:
            box: their box, ``NAME``, or ``NAME:VERSION`` of one that the tenant installed.
            search: words that must all occur in name, box, verb, reason, labels or submitter, or begin the id.
        """
        wanted: Sequence[str] | None = [f"{key}={value}" for key, value in (labels or {}).items()] or None
        for each in self._api.pages("/v1/jobs", "jobs", state=state, label=wanted, q=search, box=box, limit=200):
            yield Job(self._api, JobInfo.of(each))
