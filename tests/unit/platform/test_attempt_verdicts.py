"""The outcome of an attempt by its phase and its error."""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rdukit.errors import (
    BackendUnavailable,
    Cancelled,
    DiskFull,
    InvalidArgument,
    LeaseLost,
    NoResources,
    NotFenced,
    NotFound,
    OutputRefused,
    PermissionDenied,
    QuotaExceeded,
    RdukitError,
    StoreUnavailable,
    Unavailable,
    error_from_body,
)
from rdukit_platform.jobs.attempts import AttemptOutcome
from rdukit_platform.worker.attempts.answers import ask
from rdukit_platform.worker.attempts.phases import OWN_BOX, POOLED
from rdukit_platform.worker.verdicts import AttemptFailure, AttemptPhase, find_meaning
from support import shows

pytestmark = shows("jobs", "job-boxes")

NONE = AttemptOutcome.NO_RESOURCES


@pytest.mark.parametrize(
    ("error", "outcomes"),
    [
        (BackendUnavailable("podman is away"), dict.fromkeys(AttemptPhase, NONE)),
        (StoreUnavailable("the bucket is away"), dict.fromkeys(AttemptPhase, NONE)),
        (NoResources("no tiles"), dict.fromkeys(AttemptPhase, NONE)),
        (DiskFull("the disk is full"), dict.fromkeys(AttemptPhase, NONE)),
        (OSError(28, "No space left on device"), dict.fromkeys(AttemptPhase, NONE)),
        (QuotaExceeded("too much"), dict.fromkeys(AttemptPhase, AttemptOutcome.BOX_FAILED)),
        (OutputRefused("a link"), dict.fromkeys(AttemptPhase, AttemptOutcome.BOX_FAILED)),
        (NotFenced("several tenants"), dict.fromkeys(AttemptPhase, AttemptOutcome.BOX_FAILED)),
        (NotFound("gone"), {AttemptPhase.INPUTS: AttemptOutcome.INPUT_LOST}),
        (PermissionDenied("revoked"), {AttemptPhase.INPUTS: AttemptOutcome.BOX_FAILED}),
        (InvalidArgument("an image"), {AttemptPhase.INPUTS: AttemptOutcome.BOX_FAILED}),
        # Of a box, only its end says what its silence means.
        (Unavailable("no answer"), {AttemptPhase.TILES: NONE}),
        (Cancelled("stopped"), {}),
        (sqlite3.OperationalError("broken"), {}),
        (KeyError("a fault of the worker"), {}),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_an_error_means_the_same_wherever_a_phase_raises_it(
    error: Exception, outcomes: dict[AttemptPhase, AttemptOutcome]
) -> None:
    found = {phase: meaning.outcome for phase in AttemptPhase if (meaning := find_meaning(phase, error)) is not None}
    assert found == outcomes


def test_a_failure_with_an_outcome_keeps_it_in_each_phase() -> None:
    failure = AttemptFailure(AttemptOutcome.FOLDER_BUSY, InvalidArgument("busy"))
    assert all(find_meaning(phase, failure) is failure for phase in AttemptPhase)


@pytest.mark.parametrize("phases", [OWN_BOX, POOLED], ids=["own box", "pool"])
def test_each_way_brings_inputs_and_isolates_before_the_verb_and_keeps_outputs_last(
    phases: list[tuple[AttemptPhase, object]],
) -> None:
    order = [phase for phase, _ in phases]
    assert order[-2:] == [AttemptPhase.VERB, AttemptPhase.OUTPUTS]
    assert {AttemptPhase.INPUTS, AttemptPhase.ISOLATION} <= set(order[:-2])


class NamingClient:
    """A client of a box that answers a request, or breaks off its events, with an error of a code of its choice."""

    def __init__(self, error: RdukitError, *, at_once: bool) -> None:
        self._named, self._at_once = error_from_body(error.body("request")), at_once

    @contextmanager
    def run(self, *asked: object, **more: object) -> Iterator[Iterator[dict[str, Any]]]:
        if self._at_once:
            raise self._named
        yield self._events()

    def _events(self) -> Iterator[dict[str, Any]]:
        yield {"kind": "state"}
        raise self._named


@pytest.mark.parametrize(
    "kind", [LeaseLost, NoResources, DiskFull, QuotaExceeded, StoreUnavailable, BackendUnavailable]
)  # fmt: skip
@pytest.mark.parametrize("at_once", [True, False])
def test_a_box_cannot_name_a_lack_or_loss_of_the_worker(kind: type[RdukitError], at_once: bool) -> None:
    error = kind("x")
    clock = SimpleNamespace(monotonic=lambda: 0.0, now=lambda: 0.0)
    attempt = SimpleNamespace(
        job=SimpleNamespace(verb="train", parameters={}, profile=False), inputs={}, output="", stop=threading.Event(),
        is_stopping=threading.Event(), part=SimpleNamespace(is_first=False), context=SimpleNamespace(clock=clock),
    )  # fmt: skip
    with pytest.raises((RdukitError, AttemptFailure)) as caught:
        ask(
            cast(Any, attempt), cast(Any, NamingClient(error, at_once=at_once)),
            cast(Any, SimpleNamespace(is_alive=lambda: True)),
        )  # fmt: skip
    if isinstance(caught.value, AttemptFailure):
        assert caught.value.outcome is AttemptOutcome.BOX_FAILED
    else:
        assert type(caught.value) is Unavailable, "its silence is judged by its end"
