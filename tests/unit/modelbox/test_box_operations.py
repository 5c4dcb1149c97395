"""The table of operations and their event logs."""

import asyncio

import pytest

from rdukit.errors import Conflict, InvalidArgument, InvalidTransition, NotFound
from rdukit_modelbox.contract.box import Verb
from rdukit_modelbox.operations import OperationFailure, VerbCall, Webhook
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
            with pytest.raises(InvalidTransition, match="legal"):
                next_state(state, event, "operation x")
    assert all(not any(s is state for s, _ in TRANSITIONS) for state in FINAL_STATES)


def test_an_operation_that_succeeds_has_result_outputs_and_an_end(table: OperationTable, clock: FakeClock) -> None:
    table.add("a", Verb.TRAIN)
    table.apply("a", StateEvent.START)
    clock.advance(5)
    done = table.apply("a", StateEvent.SUCCEED, result={"loss": 1.0}, outputs={"checkpoint": "/x"})
    assert done.to_json() == {
        "id": "a", "verb": "train", "state": "succeeded", "created_at": 100.0, "started_at": 100.0, "runs": 1,
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


def test_one_key_stands_for_one_request(table: OperationTable) -> None:
    call = VerbCall({"epochs": 2}, idempotency_key="k")
    assert table.find_by_key("k", call.asked(Verb.TRAIN)) is None
    table.add("a", Verb.TRAIN, call)
    found = table.find_by_key("k", VerbCall({"epochs": 2.0}, idempotency_key="k").asked(Verb.TRAIN))
    assert found is not None
    assert found.id == "a"
    with pytest.raises(Conflict, match="another request"):
        table.find_by_key("k", VerbCall({"epochs": 3}).asked(Verb.TRAIN))


def test_an_unknown_operation_is_not_found(table: OperationTable) -> None:
    with pytest.raises(NotFound):
        table.events_after("x")


def test_old_progress_is_dropped_but_states_stay(table: OperationTable) -> None:
    table.add("a", Verb.TRAIN)
    table.apply("a", StateEvent.START)
    for step in range(KEPT_EVENTS + 10):
        table.publish_progress("a", Progress("train", step, 9999))
    events = table.events_after("a")
    assert len(events) == KEPT_EVENTS + 2
    assert [event.sequence for event in events[:3]] == [1, 2, 13]


def test_the_oldest_finished_operations_are_forgotten_with_their_keys(table: OperationTable) -> None:
    module_limit = module.KEPT_OPERATIONS
    for number in range(module_limit + 5):
        table.add(f"op{number}", Verb.COMPILE, VerbCall(idempotency_key=f"key{number}"))
        table.apply(f"op{number}", StateEvent.CANCEL)
    assert len(table.all()) == module_limit
    assert table.find_by_key("key0", "") is None


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


def test_an_announcement_is_noted_for_each_state_that_was_asked_for(clock: FakeClock) -> None:
    heard = list[str]()
    table = OperationTable(clock, on_state=lambda operation: heard.append(operation.state))
    webhook = Webhook("https://example.com", ("running", "succeeded"))
    table.add("a", Verb.TRAIN, VerbCall(webhook=webhook))
    table.apply("a", StateEvent.START)
    done = table.apply("a", StateEvent.SUCCEED, result={}, outputs={})
    assert [(d.id, d.event, d.state) for d in done.deliveries] == [
        ("a.1", "operation.running", "pending"), ("a.2", "operation.succeeded", "pending"),
    ]  # fmt: skip
    assert heard == ["queued", "running", "succeeded"]
    table.validate()
