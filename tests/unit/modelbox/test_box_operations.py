"""The table of operations and their event logs."""

import asyncio

import pytest

from rdukit.errors import Conflict, InvalidTransition, NotFound
from rdukit.testing import FakeClock
from rdukit_modelbox import operations as module
from rdukit_modelbox.box import Verb
from rdukit_modelbox.context import Progress
from rdukit_modelbox.operations import Failure, OperationTable
from rdukit_modelbox.states import FINAL_STATES, TRANSITIONS, Event, OperationState, next_state


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(100.0)


@pytest.fixture
def table(clock: FakeClock):  # type: ignore[no-untyped-def]
    table = OperationTable(clock)
    yield table
    table.validate()


def test_every_pair_outside_the_table_is_refused() -> None:
    for state in OperationState:
        for event in Event:
            if (state, event) in TRANSITIONS:
                assert not state.is_final
                continue
            with pytest.raises(InvalidTransition, match="legal"):
                next_state(state, event, "operation x")
    assert all(not any(s is state for s, _ in TRANSITIONS) for state in FINAL_STATES)


def test_an_operation_that_succeeds_has_result_outputs_and_an_end(table: OperationTable, clock: FakeClock) -> None:
    table.add("a", Verb.TRAIN)
    table.apply("a", Event.START)
    clock.advance(5)
    done = table.apply("a", Event.SUCCEED, result={"loss": 1.0}, outputs={"checkpoint": "/x"})
    assert done.to_json() == {
        "id": "a", "verb": "train", "state": "succeeded", "created_at": 100.0, "ended_at": 105.0,
        "result": {"loss": 1.0}, "outputs": {"checkpoint": "/x"},
    }  # fmt: skip
    events = [event.to_json() for event in table.log_of("a").after(0)]
    assert [event["kind"] for event in events] == ["state", "state", "state", "result"]
    assert [event["sequence"] for event in events] == [1, 2, 3, 4]


def test_a_failure_carries_its_code_and_message(table: OperationTable) -> None:
    table.add("a", Verb.INFER)
    table.apply("a", Event.START)
    failed = table.apply("a", Event.FAIL, failure=Failure("child-died", "was killed by SIGKILL"))
    assert failed.to_json()["error"] == {"code": "child-died", "message": "was killed by SIGKILL", "detail": {}}


def test_nothing_happens_after_the_end(table: OperationTable) -> None:
    table.add("a", Verb.TRAIN)
    table.apply("a", Event.CANCEL)
    with pytest.raises(InvalidTransition):
        table.apply("a", Event.START)
    with pytest.raises(Conflict):
        table.log_of("a").add("log", log="late")


def test_one_key_stands_for_one_request(table: OperationTable) -> None:
    assert table.find_by_key("k", "request") is None
    table.add("a", Verb.TRAIN, "k", "request")
    found = table.find_by_key("k", "request")
    assert found is not None
    assert found.id == "a"
    with pytest.raises(Conflict, match="another request"):
        table.find_by_key("k", "other")


def test_an_unknown_operation_is_not_found(table: OperationTable) -> None:
    with pytest.raises(NotFound):
        table.log_of("x")


def test_old_progress_is_dropped_but_states_stay(table: OperationTable) -> None:
    table.add("a", Verb.TRAIN)
    table.apply("a", Event.START)
    for step in range(module.KEPT_EVENTS + 10):
        table.log_of("a").add("progress", progress=Progress("train", step, 9999))
    events = table.log_of("a").after(0)
    assert len(events) == module.KEPT_EVENTS + 2
    assert [event.sequence for event in events[:3]] == [1, 2, 13]


def test_the_oldest_finished_operations_are_forgotten_with_their_keys(table: OperationTable) -> None:
    for number in range(module.KEPT_OPERATIONS + 5):
        table.add(f"op{number}", Verb.COMPILE, f"key{number}")
        table.apply(f"op{number}", Event.CANCEL)
    assert len(table.all()) == module.KEPT_OPERATIONS
    assert table.find_by_key("key0", "") is None


async def test_a_follower_sees_everything_once_and_stops_after_the_result(table: OperationTable) -> None:
    table.add("a", Verb.TRAIN)
    log = table.log_of("a")

    async def follow(after: int) -> list[int]:
        return [event.sequence async for event in log.follow(after)]

    early, late = asyncio.create_task(follow(0)), asyncio.create_task(follow(2))
    await asyncio.sleep(0)
    table.apply("a", Event.START)
    for step in range(3):
        log.add("progress", progress=Progress("train", step, 3))
        await asyncio.sleep(0)
    table.apply("a", Event.SUCCEED, result={}, outputs={})
    assert await early == [1, 2, 3, 4, 5, 6, 7]
    assert await late == [3, 4, 5, 6, 7]
    assert await follow(0) == [1, 2, 3, 4, 5, 6, 7]
    assert await follow(7) == []
