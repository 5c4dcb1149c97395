"""Sweeps of a platform, for programs: submit, wait, inspect the trials and the best one."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rdukit.errors import Cancelled, DeadlineExceeded, RdukitError
from rdukit_platform.client.http import ApiClient
from rdukit_platform.client.values import HasId, ids_of, read_value

#: Seconds between polls of a running sweep.
LOOK_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class TrialInfo:
    """A trial: a job with parameters of its own. ``value`` is its objective, ``why`` the reason of a failure."""

    number: int
    job: str
    state: str
    reason: str | None = None
    why: str | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    value: float | None = None
    progress: dict[str, Any] | None = None
    started_at: float | None = None
    ended_at: float | None = None


@dataclass(frozen=True, slots=True)
class SweepInfo:
    """A sweep as last read; ``counts`` are its trials by state. ``trials`` is ``None`` in lists."""

    id: str
    name: str
    state: str
    reason: str | None = None
    algorithm: str = ""
    objective: dict[str, Any] = field(default_factory=dict)
    early_stopping: dict[str, Any] | None = None
    space: dict[str, Any] = field(default_factory=dict)
    job: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    max_trials: int = 0
    max_parallel: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    best: TrialInfo | None = None
    created_at: float = 0.0
    ended_at: float | None = None
    trials: tuple[TrialInfo, ...] | None = None

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> "SweepInfo":
        """Parse the API's description of a sweep."""
        best, trials = value.get("best"), value.get("trials")
        return read_value(
            cls, value, best=None if best is None else read_value(TrialInfo, best),
            trials=None if trials is None else tuple(read_value(TrialInfo, each) for each in trials),
        )  # fmt: skip


class Sweep:
    """A sweep. Its properties show the state last read; ``refresh`` and ``wait`` read it again."""

    def __init__(self, api: ApiClient, info: SweepInfo) -> None:
        self._api, self.info = api, info
        self.id: Final = info.id

    @property
    def state(self) -> str:
        """The sweep's state, such as ``running``."""
        return self.info.state

    def refresh(self) -> "Sweep":
        """Read the sweep anew. Returns itself."""
        self.info = SweepInfo.of(self._api.get(f"/v1/sweeps/{self.id}"))
        return self

    def wait(self, timeout_s: float | None = None, *, check: bool = True) -> "Sweep":
        """Wait until the sweep has ended. Returns itself, read anew.

        Args:
            check: raise if it does not succeed.
        Raises:
            RdukitError: it failed; the message has the reason.
            Cancelled: it was cancelled.
            DeadlineExceeded: the sweep has not ended within ``timeout_s``; it continues.
        """
        ends_at = None if timeout_s is None else time.monotonic() + timeout_s
        while self.refresh().state == "running":
            if ends_at is not None and time.monotonic() >= ends_at:
                raise DeadlineExceeded(f"sweep {self.id} did not end within {timeout_s:g} s and continues")
            self._api.sleep(LOOK_S)
        if check and self.state != "succeeded":
            said = f"sweep {self.id} is {self.state}: {self.info.reason}"
            raise Cancelled(said, sweep=self.id) if self.state == "cancelled" else RdukitError(said, sweep=self.id)
        return self

    def cancel(self) -> "Sweep":
        """Cancel the sweep at once, and its open trials. Cancelling twice is not an error. Returns itself."""
        self.info = SweepInfo.of(self._api.post(f"/v1/sweeps/{self.id}/cancel"))
        return self

    def __repr__(self) -> str:
        return f"<Sweep {self.id} {self.info.name!r}: {self.state}>"


class Sweeps:
    """The tenant's sweeps: ``platform.sweeps``."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api

    def submit(
        self,
        box: str,
        verb: str = "train",
        *,
        space: Mapping[str, object],
        minimize: str | None = None,
        maximize: str | None = None,
        algorithm: str = "grid",
        parameters: Mapping[str, object] | None = None,
        inputs: Mapping[str, HasId | str] | None = None,
        early_stopping: Mapping[str, object] | None = None,
        max_trials: int | None = None,
        max_parallel: int | None = None,
        seed: int | None = None,
        split: str | None = None,
        name: str | None = None,
        job: Mapping[str, object] | None = None,
        idempotency_key: str | None = None,
    ) -> Sweep:
        """Submit a sweep. After a broken connection it is sent again, and recorded once.

        Args:
            space: a list of values for each parameter, or ``low``, ``high`` and optionally ``log`` and ``integer``.
            minimize, maximize: the metric to optimise; one of them. Default: minimize ``loss``.
            split: dev or test, to compare on. Default: dev, if the box reports the metric on it.
            algorithm: grid, random or optuna.
            early_stopping: ``metric``, ``goal``, ``min_trials`` and ``min_steps``, as in REST.
            job: further keys of all trials' jobs, such as ``tiles`` and ``priority``.
        Raises:
            NotFound: there is no such box or artifact.
            IllegalValue: the space, a value in it, or a metric is not valid; the message says what would be.
        """
        spaces = {key: each if isinstance(each, Mapping) else {"values": each} for key, each in space.items()}
        common = {"box": box, "verb": verb, "parameters": dict(parameters or {}), "inputs": ids_of(inputs)}
        objective = {"metric": maximize or minimize or "loss", "goal": "maximize" if maximize else "minimize"}
        body: dict[str, object] = {
            "job": {**common, **(job or {})}, "space": spaces, "algorithm": algorithm,
            "objective": objective if split is None else {**objective, "split": split},
        }  # fmt: skip
        more = {
            "early_stopping": None if early_stopping is None else dict(early_stopping), "max_trials": max_trials,
            "max_parallel": max_parallel, "seed": seed, "name": name, "idempotency_key": idempotency_key,
        }  # fmt: skip
        body |= {key: value for key, value in more.items() if value is not None}
        return Sweep(self._api, SweepInfo.of(self._api.submit("/v1/sweeps", body)))

    def get(self, sweep_id: str) -> Sweep:
        """Return one of the tenant's sweeps.

        Raises:
            NotFound: there is no sweep of this id.
        """
        return Sweep(self._api, SweepInfo.of(self._api.get(f"/v1/sweeps/{sweep_id}")))

    def list(self) -> Iterator[Sweep]:
        """Yield sweeps, newest first and without their trials; pages are fetched on demand."""
        for each in self._api.pages("/v1/sweeps", "sweeps", limit=50):
            yield Sweep(self._api, SweepInfo.of(each))
