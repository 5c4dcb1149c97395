"""For tests of the daemon's decisions: a daemon without sockets, on a clock that stands still."""

import json
from collections.abc import Mapping
from itertools import count
from typing import Any

from rdukit.hardware import GIB, find_node
from rdukit.testing import FakeClock
from rdukit_node.daemon.connections import Answer, PageGrant, Peer
from rdukit_node.daemon.daemon import NodeDaemon
from rdukit_node.faults.machine import FaultMachine
from rdukit_node.leases.allocator import Allocator
from rdukit_node.status_page import StatusPage, private_page

ADMIN_TOKEN = "secret of the node"


class Desk:
    """A daemon, a clock, and connections that speak to it."""

    def __init__(self, platform: str = "TEST-1", rdu_reset_s: float = 0, first_id: int = 1) -> None:
        self.clock = FakeClock()
        ids, uuids = count(first_id), count(1)
        node = find_node(platform)
        self.daemon = NodeDaemon(
            Allocator(node),
            name="n1",
            version="0",
            started_at=self.clock.now(),
            new_identity=lambda: (f"L{(n := next(ids))}", f"token-{n}"),
            faults=FaultMachine(node, lambda: f"uuid-{next(uuids)}", rdu_reset_ns=int(rdu_reset_s * 1e9)),
            admin_token=ADMIN_TOKEN,
        )

    def connect(self, number: int, is_admin: bool = False) -> None:
        """Open a connection; its process is ``1000 + number``."""
        self.daemon.connected(number, Peer(1000 + number, 1000, "ada", is_admin))

    def find_answer(self, number: int, op: str, **arguments: object) -> Answer | None:
        """``None``: the request waits."""
        line = json.dumps({"op": op, "protocol": 1, **arguments}).encode()
        return self.daemon.handle(number, line, self.clock.now())

    def ask(self, number: int, op: str, **arguments: object) -> Answer:
        """The answer, whatever it is."""
        answer = self.find_answer(number, op, **arguments)
        assert answer is not None, "it waits"
        return answer

    def ok(self, number: int, op: str, **arguments: object) -> Mapping[str, Any]:
        """The body of an answer that says yes."""
        body = self.ask(number, op, **arguments).body
        assert body["ok"], body
        return json.loads(json.dumps(body))  # type: ignore[no-any-return]

    def error(self, number: int, op: str, **arguments: object) -> Mapping[str, Any]:
        """The error of an answer that says no."""
        body: Any = self.ask(number, op, **arguments).body
        assert not body["ok"]
        error: Mapping[str, Any] = body["error"]
        return error

    def code(self, number: int, op: str, **arguments: object) -> str:
        """The code of the error of an answer that says no."""
        return str(self.error(number, op, **arguments)["code"])

    def page(self, number: int, lease: str) -> StatusPage:
        """A status page, as the shell would make it."""
        grant = self.ask(number, "page", lease=lease).grant
        assert isinstance(grant, PageGrant)
        page = private_page()
        self.daemon.page_created(number, grant, page)
        return page

    def kinds(self) -> list[str]:
        """Kinds of the events so far; connection 1 asks."""
        return [event["kind"] for event in self.ok(1, "events")["events"]]


def acquire(desk: Desk, number: int, tiles: int = 2, memory_bytes: int = GIB, **more: object) -> Mapping[str, Any]:
    """A lease of the application ``app``."""
    lease: Mapping[str, Any] = desk.ok(
        number, "acquire", application="app", tiles=tiles, memory_bytes=memory_bytes, **more
    )["lease"]
    return lease
