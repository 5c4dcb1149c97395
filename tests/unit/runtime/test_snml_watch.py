"""SNML: lists that come in pages, and the past of the event log."""

from typing import Any

import pytest

from rdukit.errors import NoResources
from rdukit.proto import snml_pb2 as pb
from rdukit_node.snml.node_calls import PAGE_ROWS, NodeCalls
from rdukit_node.snml.watch import MAX_WATCHERS, EventWatch
from support import shows

pytestmark = shows("snml")


class FakeNode(NodeCalls):
    """A daemon with some faults and some events."""

    def __init__(self, faults: int = 0, events: range = range(0)) -> None:
        self.faults = [{"fault_uuid": f"f{number}"} for number in range(faults)]
        self.log = [{"seq": n, "time": 1.0, "kind": "grant" if n % 2 else "fault"} for n in events]
        self.limits: list[int] = []

    async def call(self, op: str, *, may_repeat: bool = True, **arguments: Any) -> dict[str, Any]:
        if op == "events":
            last = self.log[-1]["seq"] if self.log else 0
            return {"events": [e for e in self.log if int(str(e["seq"])) > arguments["since"]][:100], "last": last}
        self.limits.append(arguments["limit"])
        names = [row["fault_uuid"] for row in self.faults]
        start = names.index(arguments["after"]) + 1 if arguments.get("after") else 0
        page = self.faults[start : start + arguments["limit"]]
        return {"faults": page, "more": start + len(page) < len(self.faults)}


async def listed(node: FakeNode, limit: int) -> list[str]:
    return [row["fault_uuid"] async for row in node.rows("faults", "faults", "fault_uuid", limit)]


async def seen(watch: EventWatch, since: int, *kinds: str) -> list[pb.WatchEventsReply]:
    return [reply async for reply in watch.follow(since, set(kinds), only_new=False, follow=False)]


@pytest.mark.parametrize("count", [0, 1, PAGE_ROWS, PAGE_ROWS + 1, 3 * PAGE_ROWS])
async def test_a_list_of_any_length_comes_whole_and_in_order(count: int) -> None:
    assert await listed(FakeNode(count), 0) == [f"f{number}" for number in range(count)]


async def test_no_more_is_asked_for_than_is_wanted() -> None:
    node = FakeNode(1000)
    assert len(await listed(node, PAGE_ROWS + 5)) == PAGE_ROWS + 5
    assert node.limits == [PAGE_ROWS, 5]


async def test_the_past_comes_in_pages_without_gaps() -> None:
    replies = await seen(EventWatch(FakeNode(events=range(1, 351))), 40)
    assert [reply.sequence for reply in replies] == list(range(41, 351))
    assert not any(reply.error_details for reply in replies)


async def test_only_the_kinds_asked_for_come() -> None:
    replies = await seen(EventWatch(FakeNode(events=range(1, 11))), 0, "fault")
    assert [reply.sequence for reply in replies] == [2, 4, 6, 8, 10]


async def test_events_that_are_gone_are_told_even_if_their_kind_is_not_wanted() -> None:
    first, *rest = await seen(EventWatch(FakeNode(events=range(51, 55))), 10, "fault")
    assert list(first.error_details) == ["events 11 to 50 are no longer kept"]
    assert [reply.sequence for reply in rest] == [52, 54]


async def test_a_number_of_an_earlier_run_begins_anew() -> None:
    first, *rest = await seen(EventWatch(FakeNode(events=range(1, 4))), 500)
    assert "has restarted" in first.error_details[0]
    assert [reply.sequence for reply in rest] == [1, 2, 3]


async def test_one_watcher_too_many_is_refused_and_places_come_back() -> None:
    watch = EventWatch(FakeNode(events=range(1, 3)))
    open_ = [watch.follow(0, set(), only_new=False, follow=False) for _ in range(MAX_WATCHERS)]
    for watcher in open_:
        await anext(watcher)
    with pytest.raises(NoResources, match=str(MAX_WATCHERS)):
        await seen(watch, 0)
    for watcher in open_:
        await watcher.aclose()
    assert len(await seen(watch, 0)) == 2
