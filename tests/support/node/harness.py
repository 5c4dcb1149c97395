"""Test doubles of a node: a daemon without sockets on a clock that stands still, and a fake node for its readers."""

import copy
import json
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, Final

from rdukit.hardware import GIB, find_node
from rdukit_node.daemon.connections import PageGrant, Peer, Response
from rdukit_node.daemon.daemon import NodeDaemon
from rdukit_node.faults.machine import FaultMachine
from rdukit_node.inventory import inventory_rows, node_tiles, rdu_path
from rdukit_node.leases.allocator import Allocator
from rdukit_node.leases.user_limits import UserLimits
from rdukit_node.status_page import StatusPage, private_page
from rdukit_node.telemetry.sampling import BUSY_PHASES, Reading
from support import FakeClock

ADMIN_TOKEN = "secret of the node"


class DaemonHarness:
    """A daemon, a clock, and connections that speak to it."""

    def __init__(
        self, platform: str = "TEST-1", rdu_reset_s: float = 0, first_id: int = 1,
        user_limits: UserLimits | None = None,
    ) -> None:  # fmt: skip
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
            user_limits=user_limits,
        )

    def connect(self, number: int, is_admin: bool = False, uid: int = 1000, user: str = "ada") -> None:
        """Open a connection; its process is ``1000 + number``."""
        self.daemon.connected(number, Peer(1000 + number, uid, user, is_admin))

    def find_answer(self, number: int, op: str, **arguments: object) -> Response | None:
        """Return ``None``: the request waits."""
        line = json.dumps({"op": op, "protocol": 1, **arguments}).encode()
        return self.daemon.handle(number, line, self.clock.now())

    def ask(self, number: int, op: str, **arguments: object) -> Response:
        """Return the answer, whatever it is."""
        answer = self.find_answer(number, op, **arguments)
        assert answer is not None, "it waits"
        return answer

    def ok(self, number: int, op: str, **arguments: object) -> Mapping[str, Any]:
        """Return the body of an answer that says yes."""
        body = self.ask(number, op, **arguments).body
        assert body["ok"], body
        return json.loads(json.dumps(body))  # type: ignore[no-any-return]

    def error(self, number: int, op: str, **arguments: object) -> Mapping[str, Any]:
        """Return the error of a refusal."""
        body: Any = self.ask(number, op, **arguments).body
        assert not body["ok"]
        error: Mapping[str, Any] = body["error"]
        return error

    def code(self, number: int, op: str, **arguments: object) -> str:
        """Return the code of the error of an answer that says no."""
        return str(self.error(number, op, **arguments)["code"])

    def page(self, number: int, lease: str) -> StatusPage:
        """Return a status page, as the shell would make it."""
        grant = self.ask(number, "page", lease=lease).grant
        assert isinstance(grant, PageGrant)
        page = private_page()
        self.daemon.page_created(number, grant, page)
        return page

    def kinds(self) -> list[str]:
        """Kinds of the events so far; connection 1 asks."""
        return [event["kind"] for event in self.ok(1, "events")["events"]]


def acquire(
    desk: DaemonHarness, number: int, tiles: int = 2, memory_bytes: int = GIB, **more: object
) -> Mapping[str, Any]:
    """Return a lease of the application ``app``."""
    lease: Mapping[str, Any] = desk.ok(
        number, "acquire", application="app", tiles=tiles, memory_bytes=memory_bytes, **more
    )["lease"]
    return lease


_ZEROS: Final = {f"{phase}_ns": 0 for phase in BUSY_PHASES}
_MOVED: Final = ("ddr_read_bytes", "ddr_written_bytes", "pcie_rx_bytes", "pcie_tx_bytes")
START_NS: Final = 1_700_000_000_000_000_000


class FakeNode:
    """Answers of a daemon (``docs/design/node.md``), changed by hand."""

    def __init__(self, platform: str = "SN10-8") -> None:
        self.spec = find_node(platform)
        self.time_ns = START_NS
        self.tiles: list[dict[str, Any]] = [
            {"path": t.path, "rdu": t.rdu, "tile": t.tile, "lease": None, **_ZEROS} for t in node_tiles(self.spec)
        ]
        self.rdus: list[dict[str, Any]] = [
            {"path": rdu_path(self.spec, r), "rdu": r, **dict.fromkeys(_MOVED, 0), "pcie_replays": 0}
            for r in range(self.spec.rdus)
        ]
        self.leases: dict[str, dict[str, Any]] = {}
        self.details: dict[str, dict[str, Any]] = {}
        self.components: list[dict[str, Any]] = [dict(row) for row in inventory_rows(self.spec, "sm-01")]
        self.waiting: list[dict[str, Any]] = []
        self.faults: list[dict[str, Any]] = []
        self.errors: list[dict[str, Any]] = []
        #: Operational states by flat RDU number; the others are FUNCTIONAL.
        self.states: dict[int, str] = {}
        self.database: dict[str, Any] = {"path": "snfm.db", "is_writable": True, "reason": None, "pending": 0}

    def grant(self, lease: str, tiles: Sequence[int], **more: Any) -> None:
        """Give the tiles with these flat numbers to a new lease; ``more`` replaces its fields."""
        paths = [self.tiles[i]["path"] for i in tiles]
        for i in tiles:
            self.tiles[i]["lease"] = lease
        row: dict[str, Any] = {
            "id": lease, "application": "mlp", "tenant": None, "job": None, "user": "jdoe", "pid": 41207,
            "command": "python mlp.py run --pef=pef/mlp/mlp.pef", "phase": "exec", "tiles": paths, **_ZEROS,
            **dict.fromkeys(_MOVED, 0), "runs": 0, "sections": 0, "cycles": 0, "flops": 0, "bytes": 0,
            "host_seconds": 0.0,
        }  # fmt: skip
        details = {"memory_bytes": 1 << 30, "memory_allocated": 1 << 20, "granted_at": START_NS / 1e9, "io": []}
        row.update({name: value for name, value in more.items() if name in row})
        details.update({name: value for name, value in more.items() if name not in row})
        self.leases[lease] = row
        self.details[lease] = {**row, "pids": [row["pid"]], "fault": None, **details}

    def end(self, lease: str) -> None:
        """End a lease; the counters of its tiles and RDUs stay."""
        del self.leases[lease], self.details[lease]
        for tile in self.tiles:
            if tile["lease"] == lease:
                tile["lease"] = None

    def work(self, lease: str, **amounts: float) -> None:
        """Count for the lease, its tiles (times) and its RDUs (bytes, by the tiles it has there)."""
        row = self.leases[lease]
        mine = [tile for tile in self.tiles if tile["lease"] == lease]
        for name, amount in amounts.items():
            row[name] += amount
            if name.endswith("_ns"):
                for tile in mine:
                    tile[name] += amount
            if name in _MOVED:
                for tile in mine:
                    self.rdus[tile["rdu"]][name] += int(amount) // len(mine)

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.time_ns += int(seconds * 1e9)

    def set_health(self, path: str, health: str) -> None:
        """Set the health of one component."""
        for row in self.components:
            if row["comp_name"] == path:
                row["health"] = health

    def answer(self, op: str) -> Mapping[str, Any]:
        """Answer an operation that only looks, as a daemon would."""
        health = {row["comp_name"]: row["health"] for row in self.components}
        held = {tile["lease"] for tile in self.tiles} - {None}
        answers: dict[str, dict[str, Any]] = {
            "hello": {"version": "1", "platform": self.spec.platform, "node": "sm-01", "minor": 1, "pid": 1},
            "counters": {
                "time_ns": self.time_ns,
                "tiles": self.tiles,
                "rdus": self.rdus,
                "leases": list(self.leases.values()),
            },
            "status": {
                "platform": self.spec.platform, "chip": self.spec.chip.name, "node": "sm-01", "version": "1",
                "applications": len(held), "max_applications": self.spec.max_applications, "uptime_s": 60.0,
                "memory": {
                    "total": self.spec.rdus * self.spec.chip.ddr_bytes,
                    "used": sum(details["memory_bytes"] for details in self.details.values()),
                },
                "tiles": [
                    {**{k: t[k] for k in ("path", "rdu", "tile", "lease")}, "health": health[t["path"]]}
                    for t in self.tiles
                ],
                "rdus": [
                    {
                        "rdu": r["rdu"], "comp_name": r["path"], "state": self.states.get(r["rdu"], "FUNCTIONAL"),
                        "perfect": True,
                    }
                    for r in self.rdus
                ],
                "leases": list(self.details.values()), "waiting": self.waiting, "database": self.database,
            },
            "inventory": {"components": self.components},
            "faults": {"faults": self.faults, "more": False},
            "errors": {"errors": self.errors, "more": False},
        }  # fmt: skip
        return copy.deepcopy(answers[op])

    def read(self) -> Reading:
        """Return a reading of this moment, which later changes do not touch."""
        return Reading(self.answer("counters"), self.answer("status"), self.answer("inventory")["components"])
