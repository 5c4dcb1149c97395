"""SNML: rows of the daemon's answers become messages."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rdukit.errors import NotFound
from rdukit.hardware import find_node
from rdukit.proto import snml_pb2 as pb
from rdukit_node.inventory import components, inventory_rows
from rdukit_node.snml import rows
from rdukit_node.snml.messages import from_row, full_path, resource_tree, routes
from rdukit_node.snml.watch import event_reply, missed
from support import shows

pytestmark = shows("snml")

NODE = find_node("SN30-8")
INVENTORY = inventory_rows(NODE, "node0")
STATES = [
    {
        "rdu": c.rdu, "comp_name": c.path, "state": "FUNCTIONAL", "reason": "", "since": 7,
        "available_tiles": 8, "perfect": True,
    }
    for c in components(NODE)
    if c.kind == "RDU"
]  # fmt: skip
FAULT = {
    "fault_uuid": "f1", "fault_type": "FTYPE_DIMM_UE", "fault_state": "ACTIVE", "severity": "Major",
    "comp_name": "/NODE/XRDU_0/RDU_1/TILE_2", "comp_ser_num": "N/A", "fault_desc": "d", "recovery_act": "r",
    "action": "a", "err_uuid": "e1", "timestamp": 1_700_000_000_000_000_001, "cleared_timestamp": None,
    "cleared_by": None, "suspects": ["/NODE/A", "/NODE/B"], "application": None, "tenant": None, "job": None,
}  # fmt: skip


def health(path: str, words: str, presence: str = "Present") -> list[dict[str, Any]]:
    return [{**row, "health": words, "presence": presence} if row["comp_name"] == path else row for row in INVENTORY]


def names(root: pb.Component) -> list[str]:
    return [root.comp_name, *(name for child in root.children for name in names(child))]


def test_a_fault_keeps_its_nanoseconds_and_its_suspects_in_order() -> None:
    fault = rows.fault_reply(FAULT).fault
    assert fault.timestamp == 1_700_000_000_000_000_001
    assert list(fault.suspects) == ["/NODE/A", "/NODE/B"]
    assert (fault.cleared_timestamp, fault.cleared_by) == (0, "")


def test_every_field_of_the_contract_s_rows_has_a_field_in_its_message() -> None:
    contract = {
        pb.GetSystemErrorsReply: "err_uuid err_type err_type_desc err_data err_count orig_timestamp last_timestamp "
        "comp_name fault_uuid application tenant job",
        pb.Fault: "fault_uuid fault_type fault_state severity comp_name comp_ser_num fault_desc recovery_act action "
        "err_uuid timestamp cleared_timestamp cleared_by suspects application tenant job",
        pb.GetSystemPolicyInfoReply: "error_type fault_type count window_s action severity fault_desc "
        "fault_detail_desc recovery_act",
        pb.GetHangRecoveryHistoryReply: "rdu comp_name timestamp event outcome",
        pb.Application: "lease application tenant job user pid command tiles memory_bytes granted_at ended_at reason "
        "runs sections cycles flops bytes host_seconds fault",
    }
    for message, fields in contract.items():
        assert set(fields.split()) <= {field.name for field in message.DESCRIPTOR.fields}, message.__name__


def test_all_requests_and_replies_carry_a_request_id_and_all_replies_error_details() -> None:
    for service in pb.DESCRIPTOR.services_by_name.values():
        for method in service.methods:
            assert method.input_type.fields_by_name["request_id"].number == 1
            assert method.output_type.fields_by_name["request_id"].number == 1
            details = method.output_type.fields_by_name["error_details"]
            assert (details.number, details.is_repeated) == (2, True)


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from([field.name for field in pb.Fault.DESCRIPTOR.fields]),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.integers() | st.text()),
    )
)
def test_whatever_a_row_holds_the_message_can_be_sent(row: dict[str, Any]) -> None:
    message = from_row(pb.Fault, row)
    assert pb.Fault.FromString(message.SerializeToString()) == message


def test_paths_are_taken_with_and_without_the_node() -> None:
    assert full_path("/XRDU_0/RDU_1") == full_path("/NODE/XRDU_0/RDU_1/") == "/NODE/XRDU_0/RDU_1"
    assert full_path("") == full_path("/") == full_path("/NODE") == "/NODE"
    assert full_path("/NODES") == "/NODE/NODES"


def test_the_tree_has_every_component_once_in_the_listing_s_order() -> None:
    root = resource_tree(INVENTORY, STATES, "", only_usable=False)
    assert names(root) == [component.path for component in components(NODE)]
    rdu = next(c for x in root.children for c in x.children if c.comp_name == "/NODE/XRDU_1/RDU_1")
    assert (rdu.rdu, rdu.available_tiles, rdu.is_perfect) == (3, 8, True)
    tile = next(c for c in rdu.children if c.comp_name.endswith("TILE_5"))
    assert (tile.rdu, tile.tile, tile.presence) == (3, 5, pb.PRESENCE_PRESENT)


def test_a_listing_without_the_components_above_gets_them_in_the_tree() -> None:
    tiles = [row for row in INVENTORY if row["kind"] == "TILE"]
    root = resource_tree(tiles, [], "", only_usable=False)
    assert (root.comp_name, root.kind, len(root.children)) == ("/NODE", "NODE", 4)
    assert len(names(root)) == 64 + 8 + 4 + 1


def test_the_tree_of_a_part_begins_at_that_part() -> None:
    assert names(resource_tree(INVENTORY, STATES, "/XRDU_0/RDU_0/TILE_1", only_usable=True)) == [
        "/NODE/XRDU_0/RDU_0/TILE_1"
    ]
    with pytest.raises(NotFound, match="GetStaticResource"):
        resource_tree(INVENTORY, STATES, "/NODE/XRDU_9", only_usable=False)


def test_what_cannot_be_used_is_installed_but_not_online() -> None:
    path = "/NODE/XRDU_0/RDU_0/TILE_3"
    excluded = health(path, "Excluded")
    assert path in names(resource_tree(excluded, STATES, "", only_usable=False))
    assert path not in names(resource_tree(excluded, STATES, "", only_usable=True))
    removed = names(resource_tree(health("/NODE/XRDU_0/RDU_0", "Offline", "Absent"), STATES, "", only_usable=True))
    assert not any(name.startswith("/NODE/XRDU_0/RDU_0") for name in removed)
    assert "/NODE/XRDU_0/RDU_1" in removed


def test_a_route_takes_the_next_link_when_its_own_is_down_and_is_down_without_any() -> None:
    up = {(r.source, r.destination): r for r in routes(INVENTORY, only_local=False)}
    assert len(up) == 8 * 7
    assert all(route.is_up and list(route.expected) == list(route.actual) for route in up.values())
    pair = ("/NODE/XRDU_0/RDU_0", "/NODE/XRDU_0/RDU_1")
    link = up[pair].expected[1]
    detour = {(r.source, r.destination): r for r in routes(health(link, "Offline"), only_local=False)}[pair]
    assert detour.is_up
    assert link in detour.expected and link not in detour.actual
    dead = [{**row, "health": "Offline"} if row["kind"] == "PCIE" else row for row in INVENTORY]
    assert all(not route.is_up and not route.actual for route in routes(dead, only_local=False))


def test_local_routes_stay_on_one_xrdu_and_can_begin_at_one_rdu() -> None:
    assert len(routes(INVENTORY, only_local=True)) == 8
    assert [r.destination for r in routes(INVENTORY, "/XRDU_2/RDU_1", only_local=True)] == ["/NODE/XRDU_2/RDU_0"]


def test_the_status_word_says_online_occupied_and_phase() -> None:
    path = "/NODE/XRDU_0/RDU_0/TILE_0"
    status = {
        "tiles": [
            {"path": path, "rdu": 0, "tile": 0, "lease": "l1", "application": "app", "health": "Online"},
            {"path": path[:-1] + "1", "rdu": 0, "tile": 1, "lease": None, "application": None, "health": "Excluded"},
        ]
    }
    counters = {"leases": [{"id": "l1", "application": "app", "pid": 42, "user": "jo", "phase": "pload", "job": None}]}
    busy, idle = rows.tile_info(status, counters, "").tiles
    assert busy.status == rows.ONLINE | rows.OCCUPIED | 2 << 4
    assert (busy.lease, busy.pid, busy.user, busy.phase) == ("l1", 42, "jo", "pload")
    assert (idle.status, idle.lease, idle.pid) == (rows.EXCLUDED, "", 0)


def test_component_states_follow_the_active_faults() -> None:
    states = {s.comp_name: s for s in rows.fault_states(INVENTORY, [FAULT, {**FAULT, "fault_state": "CLEARED"}], "")}
    assert list(states) == [component.path for component in components(NODE)]
    assert [name for name, state in states.items() if state.fault_state == "FAULTED"] == [FAULT["comp_name"]]
    assert list(states[str(FAULT["comp_name"])].fault_uuids) == ["f1"]


def test_errors_are_chosen_by_their_count() -> None:
    assert [n for n in range(6) if rows.is_counted({"err_count": n}, 2, 4)] == [2, 3, 4]
    assert rows.is_counted({"err_count": 10**6}, 1, 0)


def test_counters_that_are_not_emulated_are_said_to_be_so() -> None:
    counters = {
        "time_ns": 9, "tiles": [{"path": "/NODE/XRDU_0/RDU_0/TILE_0", "rdu": 0, "tile": 0, "lease": "l", "exec_ns": 5}],
        "rdus": [{"path": "/NODE/XRDU_0/RDU_0", "rdu": 0, "ddr_read_bytes": 1, "pcie_rx_bytes": 2}],
        "leases": [{"id": "l", "tiles": ["/NODE/XRDU_0/RDU_0/TILE_0"], "runs": 3, "host_seconds": 0.5}],
    }  # fmt: skip
    everything = rows.perf_counters(counters, [], "")
    assert everything.time_ns == 9 and not everything.error_details
    assert everything.tiles[0].times.exec_ns == 5
    assert everything.applications[0].runs == 3
    some = rows.perf_counters(counters, [pb.COUNTER_KIND_PCIE, pb.COUNTER_KIND_HBM, 77], "")
    hbm, unknown = some.error_details
    assert hbm == "HBM counters are not emulated" and "77" in unknown
    assert (some.rdus[0].ddr_read_bytes, some.rdus[0].pcie_rx_bytes) == (0, 2)
    assert not some.tiles


def test_an_event_s_seconds_become_nanoseconds_and_a_gap_is_told() -> None:
    row = {"seq": 12, "time": 1.5, "kind": "fault", "component": "/NODE", "fault_uuid": "f", "tiles": [], "pid": None}
    reply = event_reply(row)
    assert (reply.sequence, reply.timestamp, reply.comp_name, reply.pid) == (12, 1_500_000_000, "/NODE", 0)
    assert missed(row, 11) is None
    assert missed(row, 3) == "events 4 to 11 are no longer kept"


def test_a_fault_that_came_back_is_told_with_its_successor() -> None:
    assert rows.clear_reply({"fault": FAULT, "returned": None}).message == "cleared"
    again = rows.clear_reply({"fault": FAULT, "returned": "f2"})
    assert again.returned_fault_uuid == "f2" and "again" in again.message
