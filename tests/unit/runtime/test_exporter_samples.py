"""What the exporter says of a node."""

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from rdukit.errors import InvalidArgument, PermissionDenied, Unavailable
from rdukit.hardware import NODES
from rdukit_node.inventory import components
from rdukit_node.telemetry.exporter import COLLECTORS, METRICS, Observed, node_samples
from rdukit_node.telemetry.exporter_process import (
    ExporterSettings,
    NodeCollector,
    parse_settings,
    read_settings,
    switch,
)
from support import FakeClock, shows
from support.node.harness import FakeNode

pytestmark = shows("sambanova_exporter", "tools", "metrics")

Samples = dict[str, dict[tuple[str, ...], float]]


def observe(node: FakeNode, **work: float) -> Observed:
    """One second, in which the lease ``a`` did ``work``."""
    before = node.read()
    if work:
        node.work("a", **work)
    node.advance(1)
    return Observed(before, node.read(), node.faults, node.errors)


def by_name(observed: Observed | None, collectors: tuple[str, ...] = COLLECTORS) -> Samples:
    found: Samples = defaultdict(dict)
    for sample in node_samples(observed, collectors):
        assert sample.labels not in found[sample.metric], f"{sample} is there twice"
        assert len(sample.labels) == len(METRICS[sample.metric].labels)
        found[sample.metric][sample.labels] = sample.value
    return found


def busy_node() -> FakeNode:
    node = FakeNode("SN30-8")
    node.grant("a", [8, 9], job="j7", tenant="physics")
    return node


def test_every_tile_has_six_percentages_under_the_documented_names() -> None:
    found = by_name(observe(busy_node(), exec_ns=957_000_000, aload_ns=3_000_000))
    shares = {n: found[f"sambanova_tile_{n}_percent"] for n in ("idle", "exec", "pload", "aload", "chkpt", "quiesce")}
    assert all(len(values) == 64 for values in shares.values())
    assert {name: values["0", "1", "0"] for name, values in shares.items()} == {
        "idle": 4.0, "exec": 95.7, "pload": 0.0, "aload": 0.3, "chkpt": 0.0, "quiesce": 0.0,
    }  # fmt: skip
    assert METRICS["sambanova_tile_exec_percent"].labels == ("xrdu", "rdu", "tile")
    assert found["rdukit_tile_lease_info"] == {
        ("0", "1", str(tile), "a", "mlp", "physics", "j7", "jdoe"): 1.0 for tile in (0, 1)
    }


def test_a_tile_out_of_service_has_no_percentages_and_counts_as_such() -> None:
    node = busy_node()
    node.set_health("/NODE/XRDU_0/RDU_0/TILE_3", "Excluded")
    found = by_name(observe(node))
    assert ("0", "0", "3") not in found["sambanova_tile_idle_percent"]
    assert found["rdukit_tiles"] == {("free",): 61, ("leased",): 2, ("excluded",): 1, ("unavailable",): 0}


def test_a_node_that_is_down_says_only_that() -> None:
    assert by_name(None) == {"rdukit_node_up": {(): 0.0}}


def test_errors_are_counted_with_their_repeats_and_only_active_faults_are_shown() -> None:
    node = busy_node()
    component = "/NODE/XRDU_0/RDU_0/DDRCH_0/C0"
    node.errors = [
        {"comp_name": component, "err_type": "ETYPE_DDR_CE", "err_count": 12, "err_uuid": "1"},
        {"comp_name": component, "err_type": "ETYPE_DDR_CE", "err_count": 3, "err_uuid": "2"},
    ]
    fault: dict[str, Any] = {"comp_name": component, "fault_type": "FTYPE_DDR", "severity": "Major"}
    node.faults = [
        {**fault, "fault_uuid": "f1", "fault_state": "ACTIVE"},
        {**fault, "fault_uuid": "f2", "fault_state": "CLEARED"},
    ]
    found = by_name(observe(node))
    assert found["sambanova_platform_error_count"] == {(): 15}
    assert +Counter(found["rdukit_errors_total"]) == {(component, "ETYPE_DDR_CE"): 15}
    assert found["rdukit_faults_active"] == {("Minor",): 0, ("Major",): 1, ("Critical",): 0}
    assert list(found["rdukit_fault_info"]) == [("f1", component, "FTYPE_DDR", "Major")]


def test_what_a_component_can_report_is_counted_from_zero() -> None:
    found = by_name(observe(FakeNode("SN10-8")))["rdukit_errors_total"]
    assert set(found.values()) == {0}
    assert ("/NODE/XRDU_0/RDU_0/TILE_0", "ETYPE_TILE_HANG") in found and ("/NODE", "ETYPE_SND_RESTART") in found
    assert ("/NODE", "ETYPE_DDR_CE") not in found
    empty = {each.path for each in components(NODES["SN10-8"]) if each.is_empty_slot}
    assert empty and not empty & {component for component, _ in found}


def test_leases_carry_their_jobs_labels_and_totals() -> None:
    who = ("a", "mlp", "physics", "j7", "jdoe")
    found = by_name(observe(busy_node(), flops=5e12, cycles=7, exec_ns=250_000_000, ddr_read_bytes=10))
    assert found["rdukit_lease_emulated_flops_total"] == {who: 5e12}
    assert found["rdukit_lease_emulated_cycles_total"] == {who: 7}
    assert found["rdukit_lease_phase_seconds_total"][*who, "exec"] == 0.25
    assert found["rdukit_lease_memory_bytes"] == {who: 1 << 30}
    assert found["rdukit_rdu_ddr_read_bytes_total"]["0", "1"] == 10


def test_each_collector_can_be_switched_off_and_every_metric_has_one() -> None:
    node = busy_node()
    node.errors = [{"comp_name": "/NODE", "err_type": "ETYPE_SND_RESTART", "err_count": 1, "err_uuid": "1"}]
    node.faults = [
        {"comp_name": "/NODE", "fault_type": "F", "severity": "Minor", "fault_uuid": "f", "fault_state": "ACTIVE"}
    ]
    observed = observe(node)
    for name in COLLECTORS:
        assert {METRICS[metric].collector for metric in by_name(observed, (name,))} <= {name, "platform"}
    assert set(by_name(observed)) == set(METRICS)
    assert set(by_name(observed, ())) == {"rdukit_node_up"}


class Wire:
    """An imaginary daemon's connection."""

    def __init__(self, node: FakeNode, world: "World") -> None:
        self.node, self.world, self.is_open = node, world, True

    def call(self, op: str, **_: object) -> Any:
        if not (self.is_open and self.world.node is self.node):
            raise Unavailable("closed")
        return self.node.answer(op)

    def close(self) -> None:
        self.is_open = False


class World:
    """Which daemon answers at present."""

    def __init__(self) -> None:
        self.node: FakeNode | None = None
        self.connections = 0

    def connect(self) -> Any:
        if self.node is None:
            raise Unavailable("nothing listens")
        self.connections += 1
        return Wire(self.node, self)


class NodeClock(FakeClock):
    """Sleeping lets the node's time pass too."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        if self.world.node is not None:
            self.world.node.advance(seconds)
            if "a" in self.world.node.leases:
                self.world.node.work("a", exec_ns=int(seconds * 1e9) // 2)


def scraped(collector: NodeCollector) -> dict[str, float]:
    """Values by the exposition's text before the value."""
    registry = CollectorRegistry()
    registry.register(collector)
    lines = generate_latest(registry).decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


EXEC = 'sambanova_tile_exec_percent{rdu="1",tile="0",xrdu="0"}'


def test_percentages_are_over_the_time_since_the_scrape_before_and_the_first_over_a_moment() -> None:
    world = World()
    world.node = busy_node()
    collector = NodeCollector(world.connect, NodeClock(world))
    assert scraped(collector)[EXEC] == 50.0
    world.node.advance(30)
    world.node.work("a", exec_ns=27_000_000_000)
    assert scraped(collector)[EXEC] == 90.0
    world.node.advance(0.1)
    assert scraped(collector)[EXEC] == pytest.approx(89.7, abs=0.05), "a second scraper soon after sees the same"
    assert world.connections == 1


def test_nothing_stale_is_exported_when_the_daemon_goes_and_all_of_it_when_another_comes() -> None:
    world = World()
    collector = NodeCollector(world.connect, NodeClock(world))
    assert scraped(collector) == {"rdukit_node_up": 0.0}
    world.node = busy_node()
    world.node.work("a", exec_ns=10**12)
    assert scraped(collector)["rdukit_node_up"] == 1.0
    world.node = None
    assert scraped(collector) == {"rdukit_node_up": 0.0}
    world.node = busy_node()
    assert scraped(collector)[EXEC] == 50.0, "the new daemon's counters are not compared with the old one's"
    world.node = busy_node()
    assert scraped(collector)["rdukit_node_up"] == 1.0, "a restart between two scrapes is not a failure"


def test_settings_come_from_the_file_and_a_missing_one_is_ignored(tmp_path: Path) -> None:
    file = tmp_path / "exporter.conf"
    assert read_settings(file) == ExporterSettings()
    file.write_text("# ours\n[exporter]\nhttp_port = 9200 # as the firewall has it\ncollector_lease: off\n")
    settings = read_settings(file)
    assert settings.http_port == 9200
    assert settings.http_address == "127.0.0.1"
    assert settings.collectors == tuple(name for name in COLLECTORS if name != "lease")


def test_a_file_that_cannot_be_read_is_fatal(tmp_path: Path) -> None:
    with pytest.raises(PermissionDenied, match="cannot be read"):
        read_settings(tmp_path)
    file = tmp_path / "binary.conf"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PermissionDenied, match="cannot be read"):
        read_settings(file)


@pytest.mark.parametrize(
    ("line", "legal"),
    [
        ("http_port = 99999", "65535"),
        ("http_port = -1", "65535"),
        ("port = 1", "expected http_address, http_port, collector_platform"),
        ("collector_tile = perhaps", "neither true nor false"),
        ("what", "key = value"),
    ],
)
def test_a_bad_line_is_refused_with_its_number_and_what_is_legal(line: str, legal: str) -> None:
    with pytest.raises(InvalidArgument, match=r"exporter\.conf, line 2") as refusal:
        parse_settings(f"\n{line}\n", "exporter.conf")
    assert legal in refusal.value.message


def test_switching_keeps_the_collectors_order() -> None:
    settings = switch(ExporterSettings(collectors=("tile",)), {"platform": True})
    assert settings.collectors == ("platform", "tile")


def test_the_manual_has_every_metric_with_its_labels() -> None:
    manual = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text()
    for metric in METRICS.values():
        labels = ", ".join(f"`{label}`" for label in metric.labels) or "–"
        assert f"| `{metric.name}` | {labels} | {metric.help} |" in manual
