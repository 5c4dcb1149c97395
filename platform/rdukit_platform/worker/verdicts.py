"""Outcomes of failed attempts: the meaning of an error by the phase that raised it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from rdukit.errors import (
    BackendUnavailable,
    InvalidArgument,
    LeaseWithdrawn,
    NoResources,
    NotFenced,
    NotFound,
    OutputRefused,
    PermissionDenied,
    QuotaExceeded,
    RdukitError,
    StoreUnavailable,
    Unavailable,
)
from rdukit_platform.backends.contract import RunningBox
from rdukit_platform.jobs.attempts import AttemptOutcome
from rdukit_platform.worker import box_ends
from rdukit_platform.worker.patience import find_lack


class AttemptPhase(StrEnum):
    """Phases of a claimed attempt."""

    #: Its folder, the remains of earlier attempts, its inputs, the tenant's own box.
    INPUTS = "inputs"
    #: The leases of its members.
    TILES = "tiles"
    #: The bridge to the parts on other nodes.
    LINK = "link"
    #: The box behind its walls: a new one, or one of the pool.
    ISOLATION = "isolation"
    #: The box's work, from the request to its result.
    VERB = "verb"
    #: The phase stores the box's outputs, and the job succeeds.
    OUTPUTS = "outputs"


class AttemptFailure(Exception):
    """Raised inside an attempt to end it with an outcome."""

    def __init__(self, outcome: AttemptOutcome, error: RdukitError) -> None:
        super().__init__(error.message)
        self.outcome = outcome
        self.error: dict[str, object] = {"code": error.code, "message": error.message, "detail": dict(error.detail)}


@dataclass(frozen=True, slots=True)
class Meaning:
    """Outcome of some errors in some phases; no phases: in any."""

    errors: tuple[type[RdukitError], ...]
    outcome: AttemptOutcome
    phases: frozenset[AttemptPhase] = frozenset()


#: The first row that fits decides. Errors of no row are the worker's own.
MEANINGS: Final = (
    # Not counted as a failure: another attempt follows when the resources are there.
    Meaning((BackendUnavailable, StoreUnavailable, NoResources), AttemptOutcome.NO_RESOURCES),
    Meaning((Unavailable,), AttemptOutcome.NO_RESOURCES, frozenset({AttemptPhase.TILES})),
    Meaning((NotFound,), AttemptOutcome.INPUT_LOST, frozenset({AttemptPhase.INPUTS})),
    Meaning((PermissionDenied, InvalidArgument), AttemptOutcome.BOX_FAILED, frozenset({AttemptPhase.INPUTS})),
    Meaning((NotFenced, OutputRefused, QuotaExceeded), AttemptOutcome.BOX_FAILED),
)
#: Phases that wait for a box; its end says more than an error of its connection.
WITH_BOX: Final = frozenset({AttemptPhase.ISOLATION, AttemptPhase.VERB})


def find_meaning(phase: AttemptPhase, error: Exception) -> AttemptFailure | None:
    """Return the failure that an error in ``phase`` means (pure); ``None``: the error is the worker's own."""
    if isinstance(error, AttemptFailure):
        return error
    lack = find_lack(error)
    if lack is not None:
        return AttemptFailure(AttemptOutcome.NO_RESOURCES, lack)
    for row in MEANINGS:
        if isinstance(error, row.errors) and (not row.phases or phase in row.phases):
            return AttemptFailure(row.outcome, error)
    return None


def failure_of(
    operation: Mapping[str, Any], box: RunningBox | None, folder: Path, was_withdrawn: Callable[[], bool]
) -> AttemptFailure:
    """Derive the attempt's failure from a failed operation; ``folder`` holds everything that its box writes.

    Args:
        was_withdrawn: whether the attempt's tiles were taken.
    """
    error = operation.get("error") or {}
    code, detail = str(error.get("code") or "internal"), dict(error.get("detail") or {})
    outcome = box_ends.outcome_of_error(code, detail, folder)
    if code == LeaseWithdrawn.code and was_withdrawn():
        outcome = AttemptOutcome.WITHDRAWN
    if (taken := box_ends.find_taken(box)) is not None:
        return AttemptFailure(taken[0], Unavailable(taken[1]))
    state = operation.get("state")
    failed = AttemptFailure(outcome, RdukitError(str(error.get("message") or f"the operation is {state}")))
    failed.error |= {"code": code, "detail": detail}
    return failed
