"""The node's figures for Prometheus: which metrics there are, and their samples from a node's answers. Pure.

A figure that is not known is left out; there are no sentinel numbers. ``exporter_process`` asks the node and serves.

Source: runtime reference 6.5 for ``sambanova_…`` (names, labels, collectors); ``rdukit_…`` and when a sample is left
out are ours.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from rdukit.hardware import NODES
from rdukit_node.faults.catalogue import class_by_error_type
from rdukit_node.inventory import ComponentKind, components
from rdukit_node.telemetry.emulated import emulated_readings
from rdukit_node.telemetry.sampling import SHARES, Reading, TileShares, tile_shares

_TILE: Final = ("xrdu", "rdu", "tile")
_RDU: Final = ("xrdu", "rdu")
_WHO: Final = ("lease", "application", "tenant", "job", "user")
#: Words of the ``severity`` label; each always has a sample, so that a rule for it can be tried out.
SEVERITIES: Final = ("Minor", "Major", "Critical")
TILE_STATES: Final = ("free", "leased", "excluded", "unavailable")
RDU_STATES: Final = ("FUNCTIONAL", "PENDING", "DEGRADED", "UNAVAILABLE")

#: Collectors that can be switched off. ``hbm`` is the vendor's; HBM traffic is not counted here, so it exports nothing.
COLLECTORS: Final = ("platform", "tile", "ddr", "hbm", "pcie", "lease", "emulated")


@dataclass(frozen=True, slots=True)
class Metric:
    """A name that is exported. ``kind`` is ``gauge`` or ``counter``."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...]
    collector: str


@dataclass(frozen=True, slots=True)
class Sample:
    """A value of a metric, with its labels' values in order."""

    metric: str
    labels: tuple[str, ...]
    value: float


@dataclass(frozen=True, slots=True)
class Observed:
    """A node's answers for one scrape: two readings, its active faults, its errors."""

    before: Reading
    after: Reading
    faults: Sequence[Mapping[str, Any]] = ()
    errors: Sequence[Mapping[str, Any]] = ()


def _metrics() -> Iterator[Metric]:
    platform, tile, lease = "platform", "tile", "lease"
    yield Metric("rdukit_node_up", "gauge", "Whether the node daemon answers.", (), platform)
    info = ("node", "platform", "chip", "version")
    yield Metric("rdukit_node_info", "gauge", "The node, always 1.", info, platform)
    yield Metric("rdukit_node_uptime_seconds", "gauge", "Time since the node daemon started.", (), platform)
    yield Metric("sambanova_platform_error_count", "gauge", "Errors recorded, repeats included.", (), platform)
    errors = "Errors recorded, repeats included, by component and type."
    yield Metric("rdukit_errors_total", "counter", errors, ("component", "type"), platform)
    yield Metric("rdukit_faults_active", "gauge", "Faults that are not cleared.", ("severity",), platform)
    fault = ("fault", "component", "type", "severity")
    yield Metric("rdukit_fault_info", "gauge", "A fault that is not cleared; always 1.", fault, platform)
    yield Metric("rdukit_tiles", "gauge", "Tiles by state.", ("state",), platform)
    yield Metric("rdukit_rdus", "gauge", "RDUs by operational state.", ("state",), platform)
    yield Metric("rdukit_leases", "gauge", "Leases at present.", (), platform)
    yield Metric("rdukit_applications", "gauge", "Applications at present.", (), platform)
    yield Metric("rdukit_applications_limit", "gauge", "Largest number of concurrent applications.", (), platform)
    yield Metric("rdukit_waiting_requests", "gauge", "Waiting requests for tiles.", (), platform)
    yield Metric("rdukit_memory_size_bytes", "gauge", "Device memory of the node.", (), platform)
    yield Metric("rdukit_memory_granted_bytes", "gauge", "Device memory held by leases.", (), platform)
    yield Metric("rdukit_database_writable", "gauge", "Whether faults can be recorded.", (), platform)
    yield Metric("rdukit_database_pending_rows", "gauge", "Rows that could not be written yet.", (), platform)
    yield Metric(
        "rdukit_database_dropped_rows_total", "counter", "Rows lost because too many waited for the disk.", (), platform
    )
    for share in SHARES:
        what = "in which the tile was idle or its program was on the host" if share == "idle" else f"in phase {share}"
        text = f"Percent of the time since the last scrape {what}; none for a tile out of service."
        yield Metric(f"sambanova_tile_{share}_percent", "gauge", text, _TILE, tile)
    yield Metric("rdukit_tile_lease_info", "gauge", "Holder of the tile; always 1.", (*_TILE, *_WHO), tile)
    for way in ("read", "written"):
        yield Metric(f"rdukit_rdu_ddr_{way}_bytes_total", "counter", f"Device memory {way}.", _RDU, "ddr")
    for way, text in (("received", "from host to device"), ("sent", "from device to host")):
        yield Metric(f"rdukit_rdu_pcie_{way}_bytes_total", "counter", f"Moved {text}.", _RDU, "pcie")
    yield Metric("rdukit_rdu_pcie_replays_total", "counter", "Transfers repeated on a link.", _RDU, "pcie")
    for name, text in _EMULATED.values():
        yield Metric(name, "gauge", text, _RDU, "emulated")
    yield Metric("rdukit_lease_tiles", "gauge", "Tiles of the lease.", _WHO, lease)
    yield Metric("rdukit_lease_memory_bytes", "gauge", "Device memory granted to the lease.", _WHO, lease)
    busy = "Time of the lease in each phase, on this host's clock."
    yield Metric("rdukit_lease_phase_seconds_total", "counter", busy, (*_WHO, "phase"), lease)
    for name, text in _LEASE_COUNTERS.values():
        yield Metric(name, "counter", text, _WHO, lease)


#: By the field of ``EmulatedReading``.
_EMULATED: Final = {
    "power_w": ("rdukit_rdu_emulated_power_watts", "Emulated: a model of the load, not measured."),
    "temperature_c": ("rdukit_rdu_emulated_temperature_celsius", "Emulated: follows the emulated power."),
    "clock_hz": ("rdukit_rdu_emulated_clock_hertz", "Emulated: the platform's nominal clock."),
}

#: By the counter's name in the ``counters`` answer.
_LEASE_COUNTERS: Final = {
    "runs": ("rdukit_lease_runs_total", "Runs of the lease's program."),
    "sections": ("rdukit_lease_sections_total", "Sections that ran."),
    "cycles": ("rdukit_lease_emulated_cycles_total", "Emulated cycles of the device."),
    "flops": ("rdukit_lease_emulated_flops_total", "Floating-point operations of the sections."),
    "ddr_read_bytes": ("rdukit_lease_ddr_read_bytes_total", "Device memory read."),
    "ddr_written_bytes": ("rdukit_lease_ddr_written_bytes_total", "Device memory written."),
    "pcie_rx_bytes": ("rdukit_lease_pcie_received_bytes_total", "Moved from host to device."),
    "pcie_tx_bytes": ("rdukit_lease_pcie_sent_bytes_total", "Moved from device to host."),
}

#: Every metric by its name, in the order of the exposition.
METRICS: Final = {metric.name: metric for metric in _metrics()}


def node_samples(observed: Observed | None, collectors: Iterable[str] = COLLECTORS) -> list[Sample]:
    """Yield the samples of the enabled collectors; for a node that is down (``None``) only that fact."""
    up = Sample("rdukit_node_up", (), float(observed is not None))
    if observed is None:
        return [up]
    makers = {
        "platform": _platform_samples, "tile": _tile_samples, "ddr": _ddr_samples, "pcie": _pcie_samples,
        "lease": _lease_samples, "emulated": _emulated_samples,
    }  # fmt: skip
    return [up, *(sample for name in collectors if name in makers for sample in makers[name](observed))]


def _platform_samples(observed: Observed) -> Iterator[Sample]:
    status = observed.after.status
    yield Sample("rdukit_node_info", tuple(_text(status.get(k)) for k in ("node", "platform", "chip", "version")), 1.0)
    yield Sample("rdukit_node_uptime_seconds", (), float(status["uptime_s"]))
    yield Sample("sambanova_platform_error_count", (), float(sum(int(row["err_count"]) for row in observed.errors)))
    # Zeros before the first event: ``increase`` ignores a series that begins with its first errors.
    by_type = Counter(dict.fromkeys(_error_labels(str(status["platform"])), 0))
    for row in observed.errors:
        by_type[str(row["comp_name"]), str(row["err_type"])] += int(row["err_count"])
    yield from (Sample("rdukit_errors_total", labels, float(count)) for labels, count in by_type.items())
    active = [row for row in observed.faults if row["fault_state"] == "ACTIVE"]
    yield from _by_word("rdukit_faults_active", (str(row["severity"]) for row in active), SEVERITIES)
    for row in active:
        labels = (row["fault_uuid"], row["comp_name"], row["fault_type"], row["severity"])
        yield Sample("rdukit_fault_info", tuple(map(_text, labels)), 1.0)
    yield from _by_word("rdukit_tiles", map(_tile_state, status["tiles"]), TILE_STATES)
    yield from _by_word("rdukit_rdus", (str(row["state"]) for row in status["rdus"]), RDU_STATES)
    yield Sample("rdukit_leases", (), float(len(status["leases"])))
    yield Sample("rdukit_applications", (), float(status["applications"]))
    yield Sample("rdukit_applications_limit", (), float(status["max_applications"]))
    yield Sample("rdukit_waiting_requests", (), float(len(status["waiting"])))
    yield Sample("rdukit_memory_size_bytes", (), float(status["memory"]["total"]))
    yield Sample("rdukit_memory_granted_bytes", (), float(status["memory"]["used"]))
    yield Sample("rdukit_database_writable", (), float(bool(status["database"]["is_writable"])))
    yield Sample("rdukit_database_pending_rows", (), float(status["database"]["pending"]))
    yield Sample("rdukit_database_dropped_rows_total", (), float(status["database"].get("dropped", 0)))


def _tile_samples(observed: Observed) -> Iterator[Sample]:
    for tile in tile_shares(observed.before, observed.after):
        labels = _tile_labels(tile)
        if tile.is_working:
            for share, tenths in zip(SHARES, tile.tenths, strict=True):
                yield Sample(f"sambanova_tile_{share}_percent", labels, tenths / 10)
        if (who := tile.holder) is not None:
            names = (who.lease, who.application, who.tenant, who.job, who.user)
            yield Sample("rdukit_tile_lease_info", (*labels, *map(_text, names)), 1.0)


def _ddr_samples(observed: Observed) -> Iterator[Sample]:
    for row in observed.after.counters["rdus"]:
        labels = _path_labels(str(row["path"]))
        yield Sample("rdukit_rdu_ddr_read_bytes_total", labels, float(row["ddr_read_bytes"]))
        yield Sample("rdukit_rdu_ddr_written_bytes_total", labels, float(row["ddr_written_bytes"]))


def _pcie_samples(observed: Observed) -> Iterator[Sample]:
    for row in observed.after.counters["rdus"]:
        labels = _path_labels(str(row["path"]))
        yield Sample("rdukit_rdu_pcie_received_bytes_total", labels, float(row["pcie_rx_bytes"]))
        yield Sample("rdukit_rdu_pcie_sent_bytes_total", labels, float(row["pcie_tx_bytes"]))
        yield Sample("rdukit_rdu_pcie_replays_total", labels, float(row["pcie_replays"]))


def _emulated_samples(observed: Observed) -> Iterator[Sample]:
    for reading in emulated_readings(observed.before, observed.after):
        for field, (metric, _) in _EMULATED.items():
            yield Sample(metric, _path_labels(reading.path), float(getattr(reading, field)))


def _lease_samples(observed: Observed) -> Iterator[Sample]:
    memory = {row["id"]: row["memory_bytes"] for row in observed.after.status["leases"]}
    for row in observed.after.counters["leases"]:
        who = tuple(_text(row.get(name)) for name in ("id", *_WHO[1:]))
        yield Sample("rdukit_lease_tiles", who, float(len(row["tiles"])))
        if row["id"] in memory:
            yield Sample("rdukit_lease_memory_bytes", who, float(memory[row["id"]]))
        for phase in SHARES[1:]:
            yield Sample("rdukit_lease_phase_seconds_total", (*who, phase), row[f"{phase}_ns"] / 1e9)
        for name, (metric, _) in _LEASE_COUNTERS.items():
            yield Sample(metric, who, float(row[name]))


@cache
def _error_labels(platform: str) -> tuple[tuple[str, str], ...]:
    """Return each component of a node with each of its possible types of error; empty for an unknown platform."""
    if platform not in NODES:
        return ()
    types: dict[ComponentKind, list[str]] = {}
    for error_type, entry in class_by_error_type().items():
        types.setdefault(entry.kind, []).append(error_type)
    present = [each for each in components(NODES[platform]) if not each.is_empty_slot]
    return tuple((each.path, error_type) for each in present for error_type in types.get(each.kind, ()))


def _by_word(metric: str, words: Iterable[str], legal: Sequence[str]) -> Iterator[Sample]:
    """Return one sample for each legal word, zeros included, and for any other that occurs."""
    counts = Counter(words)
    for word in (*legal, *sorted(set(counts) - set(legal))):
        yield Sample(metric, (word,), float(counts[word]))


def _tile_state(row: Mapping[str, Any]) -> str:
    if row["health"] in ("Online", "Degraded"):
        return "free" if row["lease"] is None else "leased"
    return str(row["health"]).lower()


def _tile_labels(tile: TileShares) -> tuple[str, ...]:
    return _path_labels(tile.path)


def _path_labels(path: str) -> tuple[str, ...]:
    """Return ``("0", "1", "3")`` of ``/NODE/XRDU_0/RDU_1/TILE_3``."""
    return tuple(part.rpartition("_")[2] for part in path.split("/")[2:])


def _text(value: object) -> str:
    return "" if value is None else str(value)
