"""For tests of what looks at a node's counters: an imaginary node that says what a daemon would."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rdukit.hardware import find_node
from rdukit_node.inventory import inventory_rows, node_tiles, rdu_path
from rdukit_node.telemetry.sampling import BUSY_PHASES, Reading

_ZEROS: Final = {f"{phase}_ns": 0 for phase in BUSY_PHASES}
_MOVED: Final = ("ddr_read_bytes", "ddr_written_bytes", "pcie_rx_bytes", "pcie_tx_bytes")
START_NS: Final = 1_700_000_000_000_000_000


class ImaginaryNode:
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
        """The lease ends; what its tiles and RDUs counted stays."""
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
        """Of one component."""
        for row in self.components:
            if row["comp_name"] == path:
                row["health"] = health

    def answer(self, op: str) -> Mapping[str, Any]:
        """What a daemon would answer to an operation that only looks."""
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
        """A reading of this moment, which later changes do not touch."""
        return Reading(self.answer("counters"), self.answer("status"), self.answer("inventory")["components"])
