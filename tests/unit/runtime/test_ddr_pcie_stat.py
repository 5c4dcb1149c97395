"""What snddrstat and snpciestat print."""

from rdukit_node.cli import snddrstat, snpciestat
from rdukit_node.cli.intervals import StatisticsOptions
from rdukit_node.telemetry.sampling import Reading
from support import shows
from support.node.harness import FakeNode

pytestmark = shows("snddrstat", "snpciestat", "tools")

RDU = "/NODE/XRDU_0/RDU_0"


def readings() -> tuple[Reading, Reading]:
    """An SN30 for two seconds: one program on half an RDU, one dead channel, one dead and one degraded link."""
    node = FakeNode("SN30-8")
    node.grant("a", range(4), pid=41207, io=[{"path": f"{RDU}/PCIE_0", "first_lane": 0, "lanes": 16}])
    node.set_health(f"{RDU}/DDRCH_2", "Excluded")
    node.set_health(f"{RDU}/PCIE_3", "Unavailable")
    node.set_health(f"{RDU}/PCIE_1", "Degraded")
    before = node.read()
    node.work("a", ddr_read_bytes=70_000_000_000, ddr_written_bytes=7_000_000, pcie_rx_bytes=2_500_000_000)
    node.rdus[0]["pcie_replays"] += 3
    node.advance(2)
    return before, node.read()


def test_channels_are_listed_with_rates_utilisation_and_program() -> None:
    lines = snddrstat.TABLE.lines(snddrstat.TABLE.rows(*readings(), StatisticsOptions()))
    assert lines[:4] == [
        "DDRCH                  rd_GB/s wr_GB/s  tot%    PID     USER COMMAND",
        "/XRDU_0/RDU_0/DDRCH_0    5.000   0.001  19.5  41207     jdoe python mlp.py run --pef=pef/mlp/mlp.pef",
        "/XRDU_0/RDU_0/DDRCH_1    5.000   0.001  19.5  41207     jdoe python mlp.py run --pef=pef/mlp/mlp.pef",
        "/XRDU_0/RDU_0/DDRCH_2    0.000   0.000   0.0                 [Excluded]",
    ]
    assert lines[9] == "/XRDU_0/RDU_1/DDRCH_0    0.000   0.000   0.0"
    assert len(lines) == 1 + 64


def test_links_are_listed_with_rates_utilisation_replays_and_program() -> None:
    lines = snpciestat.TABLE.lines(snpciestat.TABLE.rows(*readings(), StatisticsOptions()))
    assert lines[:5] == [
        "PCIE                   rx_GB/s tx_GB/s  util%  replay    PID     USER COMMAND",
        "/XRDU_0/RDU_0/PCIE_0     1.250   0.000    3.9       0  41207     jdoe python mlp.py run --pef=pef/mlp/mlp.pef",
        "/XRDU_0/RDU_0/PCIE_1     0.000   0.000    0.0       3                 [Degraded]",
        "/XRDU_0/RDU_0/PCIE_2     0.000   0.000    0.0       0",
        "/XRDU_0/RDU_0/PCIE_3     0.000   0.000    0.0       0                 [Unavailable]",
    ]


def test_skip_idle_leaves_the_rdus_that_somebody_uses() -> None:
    before, after = readings()
    assert {
        row["ddrch"].split("/")[2] for row in snddrstat.TABLE.rows(before, after, StatisticsOptions(skip_idle=True))
    } == {"RDU_0"}
    assert len(snddrstat.TABLE.rows(before, after, StatisticsOptions(skip_idle=True))) == 8


def test_filters_leave_what_the_holder_uses() -> None:
    before, after = readings()
    assert [row["pcie"] for row in snpciestat.TABLE.rows(before, after, StatisticsOptions(pid=41207))] == [
        "/XRDU_0/RDU_0/PCIE_0"
    ]
    assert len(snddrstat.TABLE.rows(before, after, StatisticsOptions(user="jdoe"))) == 7
    assert snddrstat.TABLE.rows(before, after, StatisticsOptions(user="nobody")) == []


def test_machines_get_bytes_too_and_they_add_up() -> None:
    before, after = readings()
    assert sum(row["read_bytes"] for row in snddrstat.TABLE.rows(before, after, StatisticsOptions())) == 70_000_000_000
    assert sum(row["rx_bytes"] for row in snpciestat.TABLE.rows(before, after, StatisticsOptions())) == 2_500_000_000
