"""A fault of a link: plans and reports go around it, and say so."""

import json

import pytest
from click.testing import CliRunner

from rdukit.collectives.cli import collective
from rdukit.collectives.faulty_links import FaultyLinks, find_faulty_links
from rdukit.collectives.topology import break_links, make_machine
from rdukit.errors import InvalidArgument
from rdukit.hardware import find_node
from rdukit.snd import SndClient
from rdukit_runtime.collectives.route import describe_route, find_route
from support import shows
from support.node.daemons import running_daemon

pytestmark = shows("collective", "snfadm")

PLAN = ["plan", "--ranks", "8", "--topology", "SN30-8", "--bytes", "1G", "--algorithm", "ring", "--json"]


def test_a_fault_of_a_link_is_avoided_by_the_plan_and_named_in_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    with running_daemon("SN30-8") as daemon:
        monkeypatch.setenv("RDUKIT_SND_SOCKET", str(daemon.socket))
        whole = json.loads(CliRunner().invoke(collective, [*PLAN, "--faults"], catch_exceptions=False).stdout)
        assert whole["notes"] == []
        assert find_route(8, 8, 10**9) is None
        with SndClient(daemon.socket) as client:
            events = [
                {"class": "pcie-link-down", "component": f"/NODE/XRDU_0/RDU_0/PCIE_{link}"} for link in (1, 5)
            ]  # fmt: skip
            client.call("inject", events=events)
        found = CliRunner().invoke(collective, [*PLAN, "--faults"], catch_exceptions=False)
        assert json.loads(found.stdout)["notes"] == [
            "xrdu0-xrdu1 is broken: the ring goes around it, in the order xrdu0 xrdu2 xrdu1 xrdu3"
        ]
        assert "PCIE_5 is out of service; it connects the host, so no rank uses it" in found.stderr
        route = find_route(8, 8, 10**9)
        assert route is not None
        assert (route["topology"], route["broken"]) == ("SN30-8", ["xrdu0-xrdu1"])
        assert any("xrdu0-xrdu1 is broken" in note for note in route["notes"])
        with SndClient(daemon.socket) as client:
            lease = client.acquire("job", 8, 100)
            monkeypatch.setenv("RDUKIT_SND_SOCKET", str(client.own_socket(lease["id"])))
            assert find_route(8, 8, 10**9) is None, "a lease's own socket shows no faults"
            monkeypatch.setenv("RDUKIT_SND_SOCKET", str(daemon.socket))
        with SndClient(daemon.socket) as client:
            client.call("repair", component="/NODE/XRDU_0/RDU_0/PCIE_1")
        assert find_route(8, 8, 10**9) is None


@pytest.mark.parametrize(
    ("topology", "component", "node", "link"),
    [
        ("SN30-8", "/NODE/XRDU_2/RDU_1/PCIE_0", 0, "xrdu2/rdu0-rdu1"),
        ("SN30-8", "/XRDU_2/RDU_1/PCIE_3", 0, "xrdu2-xrdu3"),
        ("SN30-8", "/NODE/XRDU_2/RDU_1/PCIE_4", 0, None),
        ("4xSN30-8", "/NODE/XRDU_2/RDU_1/PCIE_4", 3, "node3.port5"),
        ("4xSN30-8", "/NODE/XRDU_2/RDU_1/PCIE_5", 3, None),
        ("rack:2x4xSN30-8", "/NODE/XRDU_0/RDU_0/PCIE_1", 6, "rack1/node2/xrdu0-xrdu1"),
        ("rack:2x4xSN30-8", "/NODE/XRDU_0/RDU_0/PCIE_4", 6, "rack1/node2.port0"),
    ],
)
def test_a_pcie_link_is_a_link_of_the_topology_or_leads_to_the_host(
    topology: str, component: str, node: int, link: str | None
) -> None:
    machine = make_machine(topology)
    found = find_faulty_links(machine, [component], node)
    assert found == (FaultyLinks((), (component,)) if link is None else FaultyLinks((link,), ()))
    assert [each.name for each in break_links(machine, found.broken).broken] == list(found.broken)


@pytest.mark.parametrize(
    ("component", "node"), [("/NODE/XRDU_9/RDU_0/PCIE_1", 0), ("TILE_3", 0), ("/NODE/XRDU_0/RDU_0/PCIE_1", 1)]
)
def test_a_component_or_node_that_the_topology_lacks_is_refused_by_name(component: str, node: int) -> None:
    with pytest.raises(InvalidArgument, match=r"has no (link|node).*expected"):
        find_faulty_links(make_machine("SN30-8"), [component], node)


def test_ranks_without_another_way_are_named() -> None:
    found = describe_route(find_node("SN30-8"), 2, 8, 1000, ["/NODE/XRDU_0/RDU_0/PCIE_0"])
    assert found is not None
    assert found["algorithm"] is None
    assert "cannot avoid xrdu0/rdu0-rdu1" in found["notes"][0]
