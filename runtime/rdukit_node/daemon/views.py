"""Public views of a node: status, events, counters. A part of the decisions of ``daemon.NodeDaemon``.

Source: ours; ``docs/design/node.md`` lists the fields.
"""

from collections.abc import Callable, Mapping
from typing import Final

from rdukit_node.daemon.administration import Administration
from rdukit_node.daemon.connections import NodeLedger, Response, lease_paths, lease_status, ok, tile_rows
from rdukit_node.daemon.maintenance_operations import MaintenanceOperations
from rdukit_node.daemon.protocol import SndRequest
from rdukit_node.leases.allocator import Lease


class NodeViews:
    """The read-only operations, except those on faults."""

    def __init__(
        self, daemon: NodeLedger, administration: Administration, maintenance: MaintenanceOperations
    ) -> None:  # fmt: skip
        self._daemon, self._administration, self._maintenance = daemon, administration, maintenance
        self.operations: Final[Mapping[str, Callable[[int, SndRequest, float], Response]]] = {
            "status": self._status,
            "events": self._events,
            "counters": self._counters,
        }

    def _status(self, number: int, message: SndRequest, now: float) -> Response:
        daemon = self._daemon
        allocator, node = daemon.allocator, daemon.allocator.node
        hot = self._administration.rdu_temperatures(now)
        waiting = [
            {
                "application": w.request.application, "tiles": w.request.tiles, "tenant": w.request.tenant,
                "job": w.request.job, "memory_bytes": w.request.memory_bytes, "since": w.since,
                "reason": w.reason.message,
            }
            for w in self._daemon.queue.waiting
        ]  # fmt: skip
        return ok(
            platform=node.platform,
            chip=node.chip.name,
            node=self._daemon.name,
            version=self._daemon.version,
            tiles=tile_rows(allocator, self._administration.faults.health_of, self._maintenance.word_of(now)),
            leases=[self._lease_status(lease) for lease in allocator.leases.values()],
            memory={
                "total": allocator.memory_total,
                "used": sum(allocator.memory_granted),
                "retired": sum(allocator.memory_retired),
                "free": sum(allocator.room.memory_free),
            },
            applications=len(allocator.applications),
            max_applications=allocator.max_applications,
            uptime_s=max(0.0, now - self._daemon.started_at),
            rdus=[{**row, "celsius": hot.get(rdu)} for rdu, row in enumerate(self._administration.rdu_rows())],
            waiting=waiting,
            database=dict(self._administration.database),
            **self._maintenance.rows(),
        )

    def _events(self, number: int, message: SndRequest, now: float) -> Response:
        events = self._daemon.events.page(message.number("since", 0))
        return ok(events=[event.as_json() for event in events], last=self._daemon.events.last)

    def _counters(self, number: int, message: SndRequest, now: float) -> Response:
        daemon = self._daemon
        allocator = daemon.allocator
        totals = {lease_id: self._daemon.lease_totals(lease_id) for lease_id in allocator.leases}
        tiles, rdus = self._daemon.totals.rows(
            [(allocator.leases[lease_id].tiles, count) for lease_id, count in totals.items()],
            allocator.tile_holders,
            self._administration.replays(),
        )
        leases = []
        for lease_id, lease in allocator.leases.items():
            record = self._daemon.leases[lease_id]
            busiest = self._daemon.busiest(lease_id)
            leases.append(
                {
                    "id": lease_id, "application": lease.request.application, "tenant": lease.request.tenant,
                    "job": lease.request.job, "user": record.peer.user, "pid": busiest.pid,
                    "command": record.command or lease.request.application, "phase": busiest.phase(lease_id),
                    "tiles": list(lease_paths(allocator.node, lease)), **totals[lease_id].as_json(),
                }
            )  # fmt: skip
        return ok(time_ns=int(now * 1e9), tiles=tiles, rdus=rdus, leases=leases)

    def _lease_status(self, lease: Lease) -> dict[str, object]:
        record = self._daemon.leases[lease.id]
        pids = self._daemon.pids_of(record)
        totals, allocated = self._daemon.lease_totals(lease.id), self._daemon.allocator.memory_allocated[lease.id]
        by_node = dict(self._daemon.groups.report(lease.id))
        if not by_node and not pids:
            by_node["cgroup"] = "unavailable: the holder's process is in another, invisible namespace"
        isolation = {**record.isolation, "node": by_node}
        phase = self._daemon.busiest(lease.id).phase(lease.id)
        return lease_status(self._daemon.lease_body(lease), totals, phase, allocated, pids, record.failure, isolation)
