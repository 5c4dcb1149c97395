"""The table of a job's life, and what the end of an attempt means."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdukit.errors import InvalidTransition
from rdukit_platform.jobs.attempts import FREE, LOST, MAX_BACKOFF_S, AttemptOutcome, RetryRule, judge, read_rule
from rdukit_platform.jobs.states import (
    ACTIVE,
    ADVICE,
    ENDINGS,
    FINAL,
    FINAL_STATES,
    TRANSITIONS,
    JobEvent,
    JobReason,
    JobState,
    advise,
    next_state,
)
from support import shows

pytestmark = shows("jobs")


def test_every_state_can_be_reached_and_every_other_left() -> None:
    reached = {JobState.SUBMITTED, *TRANSITIONS.values()}
    assert reached == set(JobState)
    assert {state for state, _ in TRANSITIONS} == set(JobState) - FINAL


def test_every_job_that_has_not_ended_can_be_cancelled() -> None:
    for state in set(JobState) - FINAL:
        assert next_state("job-1", state, JobEvent.CANCEL, JobReason.CANCELLED_BY_USER) is JobState.CANCELLED


def test_each_reason_belongs_to_one_event_that_leads_to_its_final_state() -> None:
    for event, reasons in ENDINGS.items():
        ends = {after for (_, e), after in TRANSITIONS.items() if e is event}
        assert {FINAL_STATES[reason] for reason in reasons} == ends
    assert set().union(*ENDINGS.values()) == set(JobReason) == set(FINAL_STATES)


@pytest.mark.parametrize("state", sorted(FINAL))
@pytest.mark.parametrize("event", list(JobEvent))
def test_nothing_follows_a_final_state(state: JobState, event: JobEvent) -> None:
    with pytest.raises(InvalidTransition, match="it has ended"):
        next_state("job-1", state, event, JobReason.COMPLETED)


def test_an_illegal_event_names_the_legal_ones() -> None:
    with pytest.raises(InvalidTransition, match=r"expected admit, cancel, expire, pause"):
        next_state("job-1", JobState.QUEUED, JobEvent.START)


def test_an_ending_needs_a_reason_and_nothing_else_may_have_one() -> None:
    with pytest.raises(InvalidTransition):
        next_state("job-1", JobState.RUNNING, JobEvent.SUCCEED)
    with pytest.raises(InvalidTransition):
        next_state("job-1", JobState.RUNNING, JobEvent.FAIL, JobReason.COMPLETED)
    with pytest.raises(InvalidTransition):
        next_state("job-1", JobState.QUEUED, JobEvent.ADMIT, JobReason.COMPLETED)


@given(
    outcome=st.sampled_from(AttemptOutcome),
    code=st.sampled_from([None, "internal", "unavailable", "illegal-value", "pef-mismatch"]),
    state=st.sampled_from(sorted(ACTIVE)),
    failures=st.integers(0, 4),
    max_attempts=st.integers(1, 5),
    losses=st.integers(0, 4),
    is_pausing=st.booleans(),
    on=st.sampled_from([None, frozenset({"box-lost"}), frozenset({"expired", "pef-mismatch"})]),
)
def test_every_verdict_is_legal_where_it_is_given(
    outcome: AttemptOutcome, code: str | None, state: JobState, failures: int, max_attempts: int, losses: int,
    is_pausing: bool, on: frozenset[str] | None,
) -> None:  # fmt: skip
    if outcome is AttemptOutcome.SUCCEEDED:
        state = JobState.RUNNING
    verdict = judge(
        outcome,
        code,
        is_running=state is JobState.RUNNING,
        failures=failures,
        max_attempts=max_attempts,
        losses=losses,
        max_losses=4,
        rule=RetryRule(1.0, on=on),
        is_pausing=is_pausing,
    )
    after = next_state("job-1", state, verdict.event, verdict.reason)
    assert (after in FINAL) == (verdict.reason is not None)
    assert 0 <= verdict.pause_s <= MAX_BACKOFF_S
    if outcome in FREE:
        assert (verdict.failures, verdict.losses) == (failures, losses)
        assert after not in FINAL
    if outcome in LOST:
        assert (verdict.failures, verdict.losses) == (failures, losses + 1)
        assert (after in FINAL) == (losses + 1 >= 4 or (on is not None and not {outcome, code} & on))
    assert not is_pausing or after in FINAL | {JobState.PAUSED}


LIMITS: dict[str, Any] = {"is_running": True, "max_attempts": 4, "max_losses": 6, "rule": RetryRule(1.0)}


def test_a_box_that_fails_is_tried_again_with_growing_pauses_up_to_the_cap() -> None:
    pauses, failures = [], 0
    while True:
        verdict = judge(AttemptOutcome.BOX_LOST, None, failures=failures, losses=5, **LIMITS)
        if verdict.reason is not None:
            break
        pauses.append(verdict.pause_s)
        failures = verdict.failures
    assert pauses == [1.0, 2.0, 4.0]
    assert verdict.reason is JobReason.ATTEMPTS_EXHAUSTED


@pytest.mark.parametrize("outcome", sorted(LOST))
def test_what_the_host_does_is_not_counted_as_the_job_s_failure_and_yet_has_an_end(outcome: AttemptOutcome) -> None:
    pauses, losses = [], 0
    while True:
        verdict = judge(outcome, None, failures=3, losses=losses, **LIMITS)
        if verdict.reason is not None:
            break
        pauses.append(verdict.pause_s)
        losses = verdict.losses
    assert pauses == [1.0, 2.0, 4.0, 8.0, 10.0]
    assert (verdict.reason, verdict.failures) == (JobReason.ATTEMPTS_EXHAUSTED, 3)


def test_a_request_that_the_box_refuses_is_not_tried_again() -> None:
    verdict = judge(AttemptOutcome.BOX_FAILED, "illegal-value", failures=0, losses=0, **LIMITS)
    assert (verdict.event, verdict.reason) == (JobEvent.FAIL, JobReason.BOX_FAILED)


def test_every_reason_says_what_to_do_and_the_manual_has_it() -> None:
    assert set(ADVICE) == set(JobReason)
    page = (Path(__file__).parents[3] / "docs/jobs.md").read_text()
    for reason in JobReason:
        words = advise(reason, "JOB")
        assert words
        assert "{" not in words
        assert f"| `{reason}` | {FINAL_STATES[reason]} | " in page
        assert words.removesuffix(".").replace("|", "\\|") in page
    assert advise("of-another-version", "JOB") == ""
    assert advise(JobReason.NOT_RETRIED, "JOB", "box-lost").endswith(
        "rdukit job clone JOB --retry-on box-lost; repeat --retry-on for further causes."
    )


def test_a_retry_policy_names_what_is_tried_again() -> None:
    rule = read_rule({"on": ["box-lost", "disk-full"], "backoff_s": 3.0, "max_backoff_s": 4.0}, 1.0)
    limits = {**LIMITS, "rule": rule}
    full = judge(AttemptOutcome.BOX_FAILED, "disk-full", failures=0, losses=0, **limits)
    again = judge(AttemptOutcome.BOX_LOST, None, failures=1, losses=0, **limits)
    assert (full.event, full.pause_s, again.event, again.pause_s) == (JobEvent.RETRY, 3.0, JobEvent.RETRY, 4.0)
    lost = judge(AttemptOutcome.EXPIRED, "unavailable", failures=0, losses=0, **limits)
    passing = judge(AttemptOutcome.BOX_FAILED, "internal", failures=0, losses=0, **limits)
    assert lost.reason is passing.reason is JobReason.NOT_RETRIED
    refused = judge(AttemptOutcome.BOX_FAILED, "illegal-value", failures=0, losses=0, **limits)
    assert refused.reason is JobReason.BOX_FAILED
    node = judge(
        AttemptOutcome.NODE_FAILED, "lease-lost", failures=0, losses=0, **{**limits, "rule": read_rule(None, 1.0)}
    )
    assert (node.event, node.failures, node.losses) == (JobEvent.RETRY, 0, 1), "no attempt is used up"
    free = judge(AttemptOutcome.INTERRUPTED, "unavailable", failures=0, losses=0, **limits)
    assert free.event is JobEvent.RETRY
    assert read_rule(None, 1.5) == RetryRule(1.5)
