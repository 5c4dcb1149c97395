"""Whatever clients say, in whatever order: the node daemon answers, its books agree, and no request makes it fail."""

import gc
import json
import weakref
from collections.abc import Mapping
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rdukit.errors import all_error_classes
from rdukit_node.daemon.connections import PageGrant, RegionGrant, Response
from rdukit_node.daemon.protocol import OPERATIONS
from rdukit_node.faults.catalogue import fault_classes
from rdukit_node.inventory import components
from rdukit_node.status_page import private_page
from support import shows
from support.node.harness import ADMIN_TOKEN, DaemonHarness

pytestmark = shows("node", "wire")

CODES = set(all_error_classes())
LOOKS = ("hello", "status", "events", "counters", "inventory", "op_state", "errors", "faults", "policies", "hangs",
         "applications", "catalogue")  # fmt: skip
USES = ("attach", "allocate", "free", "release", "report", "page", "interrupt", "isolation")
COMPONENTS = [component.path for component in components(DaemonHarness().daemon.allocator.node)]
CLASSES = sorted(fault_classes())

scalars = (
    st.none() | st.booleans() | st.integers() | st.integers(-2, 9) | st.floats() | st.text(max_size=9)
    | st.sampled_from(["/NODE", "L1", "token-1", "region-1", "uuid-1", ADMIN_TOKEN, *COMPONENTS[:6], *CLASSES])
)  # fmt: skip
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["class", "component", "count", "seed", "data", "phase", "runs"]) | st.text(max_size=5),
        inner, max_size=4,
    ),
    max_leaves=8,
)  # fmt: skip
#: One request of the right shape, with arguments of any kind.
requests = st.sampled_from(sorted(OPERATIONS)).flatmap(
    lambda op: st.fixed_dictionaries(
        {"op": st.just(op), "protocol": st.just(1)}, optional=dict.fromkeys(OPERATIONS[op], values)
    )
)
#: Scenarios are YAML: pieces of their words, well formed or not.
scenario_texts = st.lists(
    st.sampled_from(["steps:", "- ", "at: 1s", "inject: tile-hang", "\n", "  ", "seed: 1", "{", "}", "&a", "*a", "!!x",
                     "every: 1", "repeat: 99", "component: /NODE", "count: 3", "repair: /NODE"]) | st.text(max_size=4),
    max_size=12,
).map("".join)  # fmt: skip


def check_answer(answer: Response | None) -> Mapping[str, Any]:
    """An answer that could be sent, and that does not say that the daemon failed. ``{}``: it waits."""
    if answer is None:
        return {}
    body: Mapping[str, Any] = json.loads(json.dumps(answer.body, allow_nan=False))
    if not body["ok"]:
        error = body["error"]
        assert error["code"] in CODES - {"internal"}, error
        assert error["message"], error
        assert answer.grant is None
    return body


@settings(max_examples=300, deadline=None)
@given(line=st.binary(max_size=200) | requests.map(lambda request: json.dumps(request).encode()))
def test_any_line_is_answered(line: bytes) -> None:
    desk = DaemonHarness()
    desk.connect(1, is_admin=True)
    check_answer(desk.daemon.handle(1, line, 0.0))
    desk.daemon.validate()


@settings(max_examples=150, deadline=None)
@given(text=scenario_texts)
def test_any_scenario_is_read_or_refused(text: str) -> None:
    desk = DaemonHarness()
    desk.connect(1, is_admin=True)
    check_answer(desk.find_answer(1, "scenario", text=text or " "))
    desk.daemon.tick(1e6)
    desk.daemon.validate()


class HostileClients(RuleBasedStateMachine):
    """Clients of one daemon that say anything, hold leases, wait, break hardware and leave."""

    def __init__(self) -> None:
        super().__init__()
        self.desk = DaemonHarness("TEST-1")
        self.next_number = 1
        self.leases: list[Mapping[str, Any]] = []
        self.faults: list[str] = []
        self.regions = ["region-1"]

    @initialize()
    def begin(self) -> None:
        """Three connections, and a lease."""
        for is_admin in (True, False, True):
            self.connect(is_admin)
        self.ask(1, "acquire", application="a", tiles=2, memory_bytes=1000)

    @property
    def open(self) -> list[int]:
        return sorted(self.desk.daemon.connections)

    def ask(self, number: int, op: str, **arguments: object) -> Mapping[str, Any]:
        answer = self.desk.find_answer(number, op, **arguments)
        body = check_answer(answer)
        if body.get("ok") and "lease" in body:
            self.leases.append(body["lease"])
        if answer is not None and isinstance(answer.grant, PageGrant):
            self.desk.daemon.page_created(number, answer.grant, private_page())
        self._take_ready()
        return body

    def _take_ready(self) -> None:
        for number, answer in self.desk.daemon.take_ready():
            assert number in self.desk.daemon.connections
            body = check_answer(answer)
            if body["ok"]:
                self.leases.append(body["lease"])

    def draw_open(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(self.open))

    @rule(is_admin=st.booleans())
    def connect(self, is_admin: bool) -> None:
        self.desk.connect(self.next_number, is_admin)
        self.next_number += 1

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        self.desk.daemon.disconnected(self.draw_open(data), self.desk.clock.now())
        self._take_ready()

    @precondition(lambda self: self.open)
    @rule(data=st.data(), request=requests)
    def say_anything(self, data: st.DataObject, request: dict[str, object]) -> None:
        line = json.dumps(request).encode()
        number = self.draw_open(data)
        check_answer(self.desk.daemon.handle(number, line, self.desk.clock.now()))
        self._take_ready()

    @precondition(lambda self: self.open)
    @rule(data=st.data(), line=st.binary(max_size=40))
    def say_bytes(self, data: st.DataObject, line: bytes) -> None:
        check_answer(self.desk.daemon.handle(self.draw_open(data), line, self.desk.clock.now()))

    @precondition(lambda self: self.open)
    @rule(data=st.data(), tiles=st.integers(1, 5), memory=st.integers(0, 2000), wait=st.sampled_from([0, 0, 1, 50]),
          launch=st.sampled_from([None, "a", "b"]), mask=st.sampled_from([None, 1, 6, 15, 2**40]))  # fmt: skip
    def acquire(self, data: st.DataObject, tiles: int, memory: int, wait: float, launch: str, mask: int) -> None:
        self.ask(self.draw_open(data), "acquire", application="a", tiles=tiles, memory_bytes=memory, wait_s=wait,
                 launch=launch, affinity=mask)  # fmt: skip

    @precondition(lambda self: self.desk.daemon.allocator.leases)
    @rule(data=st.data(), is_admin=st.booleans())
    def another_holder_comes(self, data: st.DataObject, is_admin: bool) -> None:
        lease = data.draw(st.sampled_from([each for each in self.leases if self._is_active(each)]))
        self.connect(is_admin)
        number = self.next_number - 1
        assert self.ask(number, "attach", lease=lease["id"], token=lease["token"])["ok"]
        self.ask(number, "page", lease=lease["id"])

    def _is_active(self, lease: Mapping[str, Any]) -> bool:
        return lease["id"] in self.desk.daemon.allocator.leases

    @precondition(lambda self: self.open and self.leases)
    @rule(data=st.data(), op=st.sampled_from(USES))
    def use(self, data: st.DataObject, op: str) -> None:
        number, lease = self.draw_open(data), data.draw(st.sampled_from(self.leases[-4:]))
        more: dict[str, object] = {
            "attach": {"token": lease["token"]},
            "allocate": {"bytes": data.draw(st.integers(1, 900)), "name": "r"},
            "free": {"region": f"region-{data.draw(st.integers(1, 9))}"},
            "report": {"counters": {"runs": 1, "phase": "exec"}},
            "isolation": {"report": {"mode": "auto"}},
        }.get(op, {})
        self.ask(number, op, lease=lease["id"], **more)

    @precondition(lambda self: self.open and self.leases)
    @rule(data=st.data(), is_page=st.booleans())
    def the_host_has_no_memory(self, data: st.DataObject, is_page: bool) -> None:
        number, lease = self.draw_open(data), self.leases[-1]
        answer = self.desk.ask(number, "page", lease=lease["id"]) if is_page else (
            self.desk.ask(number, "allocate", lease=lease["id"], bytes=10, name="r")
        )  # fmt: skip
        if isinstance(answer.grant, PageGrant | RegionGrant):
            self.desk.daemon.creation_failed(number, answer.grant)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), events=st.lists(st.fixed_dictionaries(
        {"class": st.sampled_from(CLASSES)},
        optional={"component": st.sampled_from(COMPONENTS), "count": st.integers(1, 20), "seed": st.integers(0, 9)},
    ), min_size=1, max_size=3))  # fmt: skip
    def inject(self, data: st.DataObject, events: list[dict[str, object]]) -> None:
        self.faults += self.ask(self.draw_open(data), "inject", events=events).get("faults", [])

    @precondition(lambda self: self.open)
    @rule(data=st.data(), op=st.sampled_from(["repair", "reset"]))
    def mend(self, data: st.DataObject, op: str) -> None:
        self.ask(self.draw_open(data), op, component=data.draw(st.sampled_from(COMPONENTS)))

    @precondition(lambda self: self.open and self.faults)
    @rule(data=st.data())
    def clear(self, data: st.DataObject) -> None:
        returned = self.ask(self.draw_open(data), "clear", fault=data.draw(st.sampled_from(self.faults))).get(
            "returned"
        )
        self.faults += [returned] if returned else []

    @precondition(lambda self: self.open)
    @rule(data=st.data(), op=st.sampled_from(LOOKS))
    def look(self, data: st.DataObject, op: str) -> None:
        number = self.draw_open(data)
        body = self.ask(number, op)
        assert body.get("ok") or body["error"]["code"] == "conflict"  # whoever waits may not ask

    @rule(seconds=st.sampled_from([0.0, 0.5, 2.0, 100.0, 4000.0]))
    def time_passes(self, seconds: float) -> None:
        self.desk.clock.advance(seconds)
        self.desk.daemon.tick(self.desk.clock.now())
        self._take_ready()

    @invariant()
    def books_agree(self) -> None:
        self.desk.daemon.validate()

    @invariant()
    def what_is_due_is_done(self) -> None:
        self.desk.daemon.tick(self.desk.clock.now())
        self._take_ready()
        due = self.desk.daemon.next_deadline()
        assert due is None or due > self.desk.clock.now(), "the loop would spin"

    def teardown(self) -> None:
        self.desk.daemon.stop(self.desk.clock.now())
        self.desk.daemon.validate()
        assert not any(self.desk.daemon.allocator.tile_holders)


TestHostileClients = HostileClients.TestCase
TestHostileClients.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_the_page_of_a_holder_that_left_is_let_go_at_once_though_others_wait() -> None:
    desk = DaemonHarness("TEST-1")
    for number in (1, 2, 3):
        desk.connect(number)
    lease = desk.ok(1, "acquire", application="a", tiles=4, memory_bytes=0)["lease"]
    desk.ok(2, "attach", lease=lease["id"], token=lease["token"])
    page = weakref.ref(desk.page(2, lease["id"]))
    gc.disable()
    try:
        assert desk.find_answer(3, "acquire", application="b", tiles=4, memory_bytes=0, wait_s=50) is None
        desk.daemon.disconnected(2, desk.clock.now())  # whoever waits is looked at again, and refused again
        assert page() is None
    finally:
        gc.enable()
