"""The table of operations and their event logs."""

import asyncio

import pytest

from rdukit.errors import InvalidArgument, InvalidTransition, NotFound
from rdukit_modelbox.contract.box import Verb
from rdukit_modelbox.operations import OperationFailure
from rdukit_modelbox.operations import table as module
from rdukit_modelbox.operations.table import KEPT_EVENTS, OperationTable
from rdukit_modelbox.operations.values import FINAL_STATES, TRANSITIONS, OperationState, StateEvent, next_state
from rdukit_modelbox.verbs.context import Progress
from support import FakeClock, shows

pytestmark = shows("operations")


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
        for event in StateEvent:
            if (state, event) in TRANSITIONS:
                assert not state.is_final
                continue
            with pytest.raises(InvalidTransition, match="expected"):
                next_state(state, event, "operation x")
    assert all(not any(s is state for s, _ in TRANSITIONS) for state in FINAL_STATES)


def test_an_operation_that_succeeds_has_result_outputs_and_an_end(table: OperationTable, clock: FakeClock) -> None:
    table.add("a", Verb.TRAIN)
    table.apply("a", StateEvent.START)
    clock.advance(5)
    done = table.apply("a", StateEvent.SUCCEED, result={"loss": 1.0}, outputs={"checkpoint": "/x"})
    assert done.to_json() == {
        "id": "a", "verb": "train", "state": "succeeded", "created_at": 100.0, "started_at": 100.0,
        "ended_at": 105.0,
        "result": {"loss": 1.0}, "outputs": {"checkpoint": "/x"},
    }  # fmt: skip
    events = [event.to_json() for event in table.events_after("a")]
    assert [event["kind"] for event in events] == ["state", "state", "state", "result"]
    assert [event["sequence"] for event in events] == [1, 2, 3, 4]


def test_a_failure_carries_its_code_and_message(table: OperationTable) -> None:
    table.add("a", Verb.INFER)
    table.apply("a", StateEvent.START)
    failed = table.apply("a", StateEvent.FAIL, failure=OperationFailure("child-died", "was killed by SIGKILL"))
    assert failed.to_json()["error"] == {"code": "child-died", "message": "was killed by SIGKILL", "detail": {}}


def test_nothing_happens_after_the_end(table: OperationTable) -> None:
    table.add("a", Verb.TRAIN)
    table.apply("a", StateEvent.CANCEL)
    with pytest.raises(InvalidTransition):
        table.apply("a", StateEvent.START)
    table.tell_log("a", "late")
    table.publish_progress("a", Progress("train", 1, 2))
    assert [event.kind for event in table.events_after("a")] == ["state", "state", "result"]


def test_an_unknown_operation_may_be_of_an_earlier_process(table: OperationTable) -> None:
    for call in (table.get, table.events_after):
        with pytest.raises(NotFound, match=r"only in memory, so it may belong to an earlier process"):
            call("x")


def test_old_progress_is_dropped_but_states_stay(table: OperationTable) -> None:
    table.add("a", Verb.TRAIN)
    table.apply("a", StateEvent.START)
    for step in range(KEPT_EVENTS + 10):
        table.publish_progress("a", Progress("train", step, 9999))
    events = table.events_after("a")
    assert len(events) == KEPT_EVENTS + 2
    assert [event.sequence for event in events[:3]] == [1, 2, 13]


def test_only_so_many_finished_operations_are_kept_beside_the_open_ones(
    table: OperationTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KEPT_OPERATIONS", 10)
    for number in range(3):
        table.add(f"open{number}", Verb.COMPILE)
    for number in range(15):
        table.add(f"op{number}", Verb.COMPILE)
        table.apply(f"op{number}", StateEvent.CANCEL)
    assert [o.id for o in table.all()] == ["open0", "open1", "open2", *(f"op{number}" for number in range(5, 15))]


def test_finished_operations_that_are_too_large_are_forgotten_but_the_last_one_stays(
    table: OperationTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KEPT_BYTES", 1_000_000)
    for number in range(5):
        table.add(f"op{number}", Verb.TRAIN)
        for _ in range(100):
            table.tell_log(f"op{number}", "x" * 4000)
        table.apply(f"op{number}", StateEvent.CANCEL)
    assert [o.id for o in table.all()] == ["op3", "op4"]
    table.add("large", Verb.TRAIN)
    table.apply("large", StateEvent.START)
    table.apply("large", StateEvent.SUCCEED, result={"text": "x" * 2_000_000}, outputs={})
    assert [o.id for o in table.all()] == ["large"]


def test_a_line_of_a_log_without_end_is_cut(table: OperationTable) -> None:
    table.add("a", Verb.TRAIN)
    table.tell_log("a", "x" * 100_000)
    assert len(table.events_after("a")[-1].log or "") < 5000


async def test_a_follower_sees_everything_once_and_stops_after_the_result(table: OperationTable) -> None:
    table.add("a", Verb.TRAIN)

    async def follow(after: int) -> list[int]:
        return [event.sequence async for event in table.follow("a", after)]

    early, late = asyncio.create_task(follow(0)), asyncio.create_task(follow(2))
    await asyncio.sleep(0)
    table.apply("a", StateEvent.START)
    for step in range(3):
        table.publish_progress("a", Progress("train", step, 3))
        await asyncio.sleep(0)
    table.apply("a", StateEvent.SUCCEED, result={}, outputs={})
    assert await early == [1, 2, 3, 4, 5, 6, 7]
    assert await late == [3, 4, 5, 6, 7]
    assert await follow(0) == [1, 2, 3, 4, 5, 6, 7]
    assert await follow(7) == []


def test_the_list_is_given_in_parts_newest_first_and_can_be_filtered(table: OperationTable) -> None:
    for number in range(7):
        table.add(f"op{number}", Verb.TRAIN if number % 2 else Verb.COMPILE)
    table.apply("op3", StateEvent.CANCEL)
    first = table.page(None, None, 3)
    assert [o.id for o in first.operations] == ["op6", "op5", "op4"]
    table.add("op7", Verb.TRAIN)
    second = table.page(None, None, 3, first.cursor)
    assert [o.id for o in second.operations] == ["op3", "op2", "op1"]
    last = table.page(None, None, 3, second.cursor)
    assert ([o.id for o in last.operations], last.cursor) == (["op0"], "")
    assert [o.id for o in table.page(OperationState.QUEUED, Verb.TRAIN, 9).operations] == ["op7", "op5", "op1"]
    assert [o.id for o in table.page(OperationState.CANCELLED, None, 9).operations] == ["op3"]


@pytest.mark.parametrize("cursor", ["x", "é", "YmVmb3JlOg", "YmVmb3JlOi0x", "=" * 9, "A" * 9999])
def test_a_cursor_that_no_list_gave_is_refused(table: OperationTable, cursor: str) -> None:
    with pytest.raises(InvalidArgument, match="cursor") as caught:
        table.page(None, None, 3, cursor)
    assert caught.value.detail["field"] == "cursor"


def test_a_cursor_of_an_earlier_process_is_refused(table: OperationTable, clock: FakeClock) -> None:
    earlier = OperationTable(clock)
    for number in range(3):
        earlier.add(f"op{number}", Verb.TRAIN)
    with pytest.raises(InvalidArgument, match="since the box started"):
        table.page(None, None, 1, earlier.page(None, None, 1).cursor)
