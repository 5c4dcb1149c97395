"""What the live picture of a node shows, at any width and height."""

from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from rdukit_node.cli.top import top
from rdukit_node.cli.top_frame import draw, draw_down, rate_text
from rdukit_node.telemetry.picture import Picture, SlotNumbers, application_key, make_picture, of_job
from rdukit_node.telemetry.sampling import Reading, holders
from support import shows
from support.node.harness import START_NS, FakeNode

pytestmark = shows("node", "tools", "node-watch")

START = START_NS / 1e9


def picture(node: FakeNode, before: Reading | None = None, slots: SlotNumbers | None = None) -> Picture:
    after = node.read()
    keys = [application_key(holder) for holder in holders(after).values()]
    return make_picture(before or after, after, node.faults, (slots or SlotNumbers()).assign(keys))


def text(shown: Any, width: int = 80, height: int | None = None) -> list[str]:
    console = Console(width=width, color_system=None, force_terminal=False, highlight=False, markup=False)
    with console.capture() as capture:
        console.print(draw(shown, width, height) if isinstance(shown, Picture) else shown)
    return [line.rstrip() for line in capture.get().splitlines()]


def fault(component: str, severity: str, seconds_ago: float = 5, state: str = "ACTIVE") -> dict[str, Any]:
    return {
        "fault_state": state, "severity": severity, "comp_name": component, "fault_type": "FTYPE",
        "fault_desc": f"{severity} trouble", "timestamp": START_NS - int(seconds_ago * 1e9), "fault_uuid": component,
    }  # fmt: skip


def crowded(platform: str) -> tuple[FakeNode, Reading]:
    """Eight applications, six faults, five waiting requests: more than any low screen holds."""
    node = FakeNode(platform)
    for i in range(8):
        node.grant(
            f"l{i}", [4 * i, 4 * i + 1], application=f"application-with-a-long-name-{i}", user="averylongusername"
        )
    node.faults = [fault(f"/NODE/XRDU_0/RDU_0/TILE_{i}", "Major") for i in range(6)]
    node.waiting = [
        {"application": "llama", "tiles": 64, "memory_bytes": 1, "since": START - 3, "reason": "no room " * 30}
    ] * 5
    before = node.read()
    for i in range(8):
        node.work(f"l{i}", exec_ns=100_000_000 * i, ddr_read_bytes=3 * 10**i)
    node.advance(1)
    return node, before


def test_tiles_are_a_grid_with_a_letter_for_each_application_and_how_busy_they_are() -> None:
    node = FakeNode("SN10-8")
    node.grant("a", [0, 1], application="logreg", granted_at=START - 75)
    node.grant("b", [4, 5, 6, 7], application="gpt2", job="j7", granted_at=START)
    before = node.read()
    node.work("a", exec_ns=500_000_000, pcie_rx_bytes=3_200_000)
    node.work("b", exec_ns=1_000_000_000, ddr_read_bytes=12_300_000_000)
    node.advance(1)
    assert text(picture(node, before)) == [
        " sm-01  SN10-8 (sn10)  up 1 min                             2023-11-14T22:13:21Z",
        "tiles 6/32  ━━╌╌╌╌╌╌╌╌   apps 2/8   memory 2 GiB/3 TiB                 ● healthy",
        "",
        "XRDU_0 ───────────────────────────  XRDU_1 ───────────────────────────",
        "RDU 0 A▅ A▅ ·  ·    50%             RDU 0 ·  ·  ·  ·",
        "      ddr -         pcie 3.2 MB/s",
        "RDU 1 B█ B█ B█ B█  100%             RDU 1 ·  ·  ·  ·",
        "      ddr 12.3 GB/s pcie -",
        "",
        "XRDU_2 ───────────────────────────  XRDU_3 ───────────────────────────",
        "RDU 0 ·  ·  ·  ·                    RDU 0 ·  ·  ·  ·",
        "",
        "RDU 1 ·  ·  ·  ·                    RDU 1 ·  ·  ·  ·",
        "",
        "",
        "  APPLICATION               USER JOB TILES   EXEC       DDR     PCIE PHASE   AGE",
        "A logreg                    jdoe -       2  50.0%         - 3.2 MB/s exec  1m16s",
        "B gpt2                      jdoe j7      4 100.0% 12.3 GB/s        - exec     1s",
    ]


def test_a_narrow_screen_still_shows_health_letters_and_phases() -> None:
    node, before = crowded("SN10-8")
    lines = text(picture(node, before), 52)
    assert max(map(len, lines)) <= 52
    assert lines[1].endswith("● 6 faults")
    head = next(line for line in lines if "APPLICATION" in line)
    assert head.split() == ["APPLICATION", "TILES", "EXEC", "DDR", "PHASE", "AGE"]
    assert any(line.startswith("A application") for line in lines)


def test_a_degraded_rdu_still_shows_its_traffic() -> None:
    node = FakeNode("SN10-8")
    node.grant("a", [0])
    node.states[0] = "DEGRADED"
    before = node.read()
    node.work("a", exec_ns=1, ddr_read_bytes=1_060_000_000)
    node.advance(1)
    assert "degraded  ddr 1.06 GB/s" in "\n".join(text(picture(node, before)))


def test_the_widest_traffic_is_not_cut() -> None:
    node = FakeNode("SN10-8")
    node.grant("a", [0])
    before = node.read()
    node.work("a", exec_ns=1, ddr_read_bytes=1_060_000_000, pcie_rx_bytes=15_100_000)
    node.advance(1)
    assert "ddr 1.06 GB/s pcie 15.1 MB/s" in "\n".join(text(picture(node, before)))


@pytest.mark.parametrize("platform", ["SN10-8", "SN30-8", "SN40L-16", "TEST-1"])
@pytest.mark.parametrize("width", [80, 100, 132, 250])
def test_no_line_is_wider_than_the_screen_and_every_tile_is_shown(platform: str, width: int) -> None:
    node = FakeNode(platform)
    shown = picture(node)
    lines = text(shown, width)
    assert max(map(len, lines)) <= width
    assert sum(line.count("·") for line in lines) == node.spec.tiles


@pytest.mark.parametrize("platform", ["SN30-8", "SN40L-16"])
@pytest.mark.parametrize("size", [(80, 24), (80, 40), (120, 30), (200, 60)])
def test_a_crowded_node_fits_the_screen_and_hides_only_what_it_says(platform: str, size: tuple[int, int]) -> None:
    width, height = size
    node, before = crowded(platform)
    lines = text(picture(node, before), width, height)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    assert sum(line.count("·") for line in lines) == node.spec.tiles - 16
    assert any("more; snfadm -l fault" in line for line in lines)
    shown = sum("averylo" in line for line in lines)
    assert shown == 8 or any(f"… {8 - shown} more applications" in line for line in lines)


def test_an_unlimited_picture_shows_every_application() -> None:
    node, before = crowded("SN30-8")
    assert sum("averylo" in line for line in text(picture(node, before))) == 8


def test_broken_tiles_failed_programs_and_faults_are_marked_the_worst_first() -> None:
    node = FakeNode("SN10-8")
    node.grant("a", [0, 1])
    node.details["a"]["fault"] = {"code": "tile-fault", "message": "hung", "detail": {}}
    node.set_health("/NODE/XRDU_0/RDU_0/TILE_1", "Excluded")
    node.set_health("/NODE/XRDU_3/RDU_1/TILE_3", "Unavailable")
    node.states[7] = "DEGRADED"
    node.faults = [
        fault("/NODE/XRDU_1/RDU_0", "Minor"),
        fault("/NODE/XRDU_0/RDU_0/TILE_1", "Critical", seconds_ago=130),
        fault("/NODE/XRDU_2/RDU_0", "Major", state="CLEARED"),
    ]
    lines = text(picture(node))
    assert any(line.startswith("RDU 0 A▁ A! ·  ·") for line in lines)
    assert any(line.endswith("RDU 1 ·  ·  ·  ✗") for line in lines)
    assert any(line.endswith("degraded") for line in lines)
    assert any("FAULT" in line and line.startswith("A mlp") for line in lines)
    assert lines[1].endswith("● 2 faults")
    assert lines[-2:] == [
        "● Critical /XRDU_0/RDU_0/TILE_1  2m10s ago  Critical trouble",
        "● Minor    /XRDU_1/RDU_0  5s ago  Minor trouble",
    ]


def test_a_node_is_not_healthy_while_a_recovery_is_pending_or_its_database_is_read_only() -> None:
    node = FakeNode("TEST-1")
    assert text(picture(node))[1].endswith("● healthy")
    node.states[0] = "PENDING"
    assert text(picture(node))[1].endswith("● degraded")
    node.database["is_writable"] = False
    assert "database not writable" in text(picture(node), 120)[1]


def test_the_leases_of_a_launch_are_one_application() -> None:
    node = FakeNode("SN30-8")
    for rank in range(4):
        node.grant(f"r{rank}", [rank], application="ddp", launch="L1")
    node.grant("other", [8], application="ddp")
    before = node.read()
    node.work("r0", exec_ns=1_000_000_000)
    node.advance(1)
    first, second = picture(node, before).occupants
    assert (first.letter, len(first.holders), first.tiles, first.exec_percent) == ("A", 4, 4, 25.0)
    assert (second.letter, second.tiles) == ("B", 1)


def test_an_application_keeps_its_letter_when_an_earlier_one_ends() -> None:
    node, slots = FakeNode("SN10-8"), SlotNumbers()
    node.grant("a", [0])
    node.grant("b", [1])
    assert [o.letter for o in picture(node, slots=slots).occupants] == ["A", "B"]
    node.end("a")
    assert [o.letter for o in picture(node, slots=slots).occupants] == ["B"]
    node.grant("c", [2])
    assert {o.first.lease: o.letter for o in picture(node, slots=slots).occupants} == {"c": "A", "b": "B"}


def test_a_job_has_its_own_applications_and_requests_on_the_tiles_and_faults_of_the_node() -> None:
    node = FakeNode("SN10-8")
    node.grant("a", [0, 1], application="logreg", job="j1")
    node.grant("b", [4], application="gpt2", job="j2")
    node.faults = [fault("/NODE/XRDU_0/RDU_0/TILE_3", "Major")]
    node.waiting = [
        {"application": name, "job": name, "tiles": 64, "memory_bytes": 1, "since": START, "reason": "no room"}
        for name in ("j1", "j2")
    ]
    shown = of_job(picture(node), "j2")
    assert [each.first.application for each in shown.occupants] == ["gpt2"]
    assert [row["application"] for row in shown.waiting] == ["j2"]
    lines = text(shown)
    assert (shown.tiles_in_use, len(shown.faults)) == (3, 1)
    assert any(line.startswith("RDU 0 A") for line in lines) and any(line.startswith("B gpt2") for line in lines)
    assert "no applications" in text(of_job(picture(node), "j3"))


def test_an_idle_node_and_a_node_that_is_down_say_so() -> None:
    assert "no applications" in text(picture(FakeNode("TEST-1")))
    down = text(draw_down("no node daemon answers at /tmp/x", 80))
    assert down[0].strip() == "no node daemon answers"


@pytest.mark.parametrize(
    ("rate", "shown"),
    [(0, "-"), (12, "12 B/s"), (999.9, "1 kB/s"), (3.2e6, "3.2 MB/s"), (450e6, "450 MB/s"), (12.345e9, "12.3 GB/s")],
)
def test_rates_have_three_figures(rate: float, shown: str) -> None:
    assert rate_text(rate) == shown


def test_an_interval_that_is_no_time_is_refused() -> None:
    result = CliRunner().invoke(top, ["--interval", "0"])
    assert result.exception is not None and "expected 0.1" in str(result.exception)
