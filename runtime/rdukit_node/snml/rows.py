"""Answers of the node daemon to replies, method by method. Pure.

Source: runtime reference 4.2 (fields of errors, faults, policies), 1.4 (states), 7.2 (what each method returns).
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from rdukit.hardware import find_node
from rdukit.proto import snml_pb2 as pb
from rdukit.snd import PROTOCOL_VERSION
from rdukit_node.snml.messages import as_count, as_text, fill, from_row, full_path, is_within, rows_within

Row = Mapping[str, Any]

SNML_VERSION: Final = "1.0"
#: Bits of ``GetTileInfo``'s status word.
ONLINE, EXCLUDED, UNAVAILABLE, OCCUPIED = (1 << n for n in range(4))
_PHASE_SHIFT: Final = 4
_PHASE_CODES: Final = {"exec": 1, "pload": 2, "aload": 3, "chkpt": 4, "quiesce": 5}
_HEALTH_BITS: Final = {"Online": ONLINE, "Excluded": EXCLUDED, "Unavailable": UNAVAILABLE}
_NOT_EMULATED: Final[Mapping[int, str]] = {
    pb.COUNTER_KIND_HBM: "HBM", pb.COUNTER_KIND_D2D: "die-to-die", pb.COUNTER_KIND_ETHERNET: "Ethernet",
}  # fmt: skip
_COUNTER_BITS: Final = 63


def platform_info(hello: Row) -> pb.GetSystemPlatformInfoReply:
    """Source: runtime reference 1.3 (the word before the platform)."""
    return pb.GetSystemPlatformInfoReply(
        platform_name=platform_name(hello), node_name=as_text(hello.get("node")), is_emulated=True
    )


def platform_name(hello: Row) -> str:
    """Return the vendor's name, such as ``DataScale SN30-8``."""
    return f"DataScale {as_text(hello.get('platform'))}"


def version_info(hello: Row, pef: str, logs: str) -> pb.GetSystemVersionInfoReply:
    """Return ``pef``, ``logs``: versions of the PEF format and of the fault database that this runtime writes."""
    version = as_text(hello.get("version"))
    return pb.GetSystemVersionInfoReply(
        sambaflow=version,
        runtime=version,
        runtime_interface=f"{PROTOCOL_VERSION}.{as_count(hello.get('minor'))}",
        pef=pef,
        snml=SNML_VERSION,
        snml_admin=SNML_VERSION,
        error_log=logs,
        fault_log=logs,
        inventory_log=logs,
        policy_log=logs,
    )


def platform_details(hello: Row, status: Row, inventory: Iterable[Row]) -> pb.GetSystemPlatformDetailsReply:
    """Return maxima of the platform. Bandwidths are those of the emulated chip's model."""
    node = find_node(as_text(hello.get("platform")))
    chip = node.chip
    dimms: dict[str, int] = {}
    for row in inventory:
        if row.get("kind") == "DIMM":
            channel = as_text(row.get("comp_name")).rpartition("/")[0]
            dimms[channel] = dimms.get(channel, 0) + 1
    return pb.GetSystemPlatformDetailsReply(
        chip=chip.name,
        max_xrdus=node.xrdus,
        max_rdus_per_xrdu=node.rdus_per_xrdu,
        max_tiles_per_rdu=chip.tiles,
        max_ddr_channels_per_rdu=chip.ddr_channels,
        max_dimms_per_ddr_channel=max(dimms.values(), default=0),
        max_pcie_links_per_rdu=chip.pcie_links,
        max_applications=as_count(status.get("max_applications"), 32),
        ddr_bytes_per_rdu=chip.ddr_bytes,
        hbm_bytes_per_rdu=chip.hbm_bytes,
        ddr_channel_bandwidth=chip.ddr_bandwidth / chip.ddr_channels,
        pcie_link_bandwidth=chip.pcie_bandwidth,
        counter_bits=_COUNTER_BITS,
    )


def operational_status(rows: Iterable[Row], comp_name: str) -> Iterator[pb.GetRDUOperationalStatusReply]:
    """Return one reply an RDU."""
    for row in rows_within(rows, comp_name):
        reply = from_row(pb.GetRDUOperationalStatusReply, row, is_perfect="perfect", state="-")
        reply.state = pb.RDUState.Value(f"RDU_{row['state']}")
        yield reply


def tile_info(status: Row, counters: Row, comp_name: str) -> pb.GetTileInfoReply:
    """Return one item a tile of the component."""
    leases = {as_text(lease.get("id")): lease for lease in counters.get("leases", ())}
    reply = pb.GetTileInfoReply()
    for row in rows_within(status.get("tiles", ()), comp_name, "path"):
        lease = leases.get(as_text(row.get("lease")), {})
        tile = reply.tiles.add()
        fill(tile, lease, lease="id")
        fill(tile, row, comp_name="path", status="-")
        phase = _PHASE_CODES.get(tile.phase, 0)
        tile.status = _HEALTH_BITS.get(tile.health, 0) | (OCCUPIED if tile.lease else 0) | phase << _PHASE_SHIFT
    return reply


def error_reply(row: Row) -> pb.GetSystemErrorsReply:
    """Return one error row."""
    return from_row(pb.GetSystemErrorsReply, row)


def is_counted(row: Row, least: int, most: int) -> bool:
    """Return whether an error was counted between ``least`` and ``most`` times; 0: no bound."""
    count = as_count(row.get("err_count"))
    return count >= least and (not most or count <= most)


def fault_reply(row: Row) -> pb.GetSystemFaultsReply:
    """Return one fault row."""
    return pb.GetSystemFaultsReply(fault=from_row(pb.Fault, row))


def fault_states(
    inventory: Iterable[Row], faults: Iterable[Row], comp_name: str
) -> Iterator[pb.GetSystemFaultStateReply]:
    """Return one reply per component of the inventory, then components with faults that the inventory lacks."""
    active: dict[str, list[str]] = {}
    for row in faults:
        if row.get("fault_state") == "ACTIVE":
            active.setdefault(full_path(as_text(row.get("comp_name"))), []).append(as_text(row.get("fault_uuid")))
    listed = [full_path(as_text(row.get("comp_name"))) for row in rows_within(inventory, comp_name)]
    others = [path for path in active if path not in set(listed) and is_within(path, full_path(comp_name))]
    for path in [*listed, *others]:
        uuids = active.get(path, [])
        yield pb.GetSystemFaultStateReply(comp_name=path, fault_state="FAULTED" if uuids else "OK", fault_uuids=uuids)


def hang_reply(row: Row) -> pb.GetHangRecoveryHistoryReply:
    """Return one row of the hang-recovery log."""
    return from_row(pb.GetHangRecoveryHistoryReply, row)


def policy_reply(row: Row) -> pb.GetSystemPolicyInfoReply:
    """Return one policy."""
    return from_row(pb.GetSystemPolicyInfoReply, row)


def perf_counters(counters: Row, kinds: Iterable[int], comp_name: str) -> pb.GetPerfCounterReply:
    """Return counters of the requested kinds; ``error_details`` names those that are not emulated."""
    wanted = set(kinds) - {pb.COUNTER_KIND_UNSPECIFIED}
    is_any = not wanted
    reply = pb.GetPerfCounterReply(time_ns=as_count(counters.get("time_ns"), 63))
    for kind in sorted(wanted):
        if kind in _NOT_EMULATED:
            reply.error_details.append(f"{_NOT_EMULATED[kind]} counters are not emulated")
        elif kind not in pb.CounterKind.values():
            reply.error_details.append(f"unknown kind of counter {kind}; expected {_legal_kinds()}")
    if is_any or wanted & {pb.COUNTER_KIND_DDR, pb.COUNTER_KIND_PCIE}:
        for row in rows_within(counters.get("rdus", ()), _rdu_part(comp_name), "path"):
            item = from_row(pb.RDUCounters, row, comp_name="path")
            for kind, prefix in ((pb.COUNTER_KIND_DDR, "ddr_"), (pb.COUNTER_KIND_PCIE, "pcie_")):
                if not is_any and kind not in wanted:
                    for field, _ in item.ListFields():
                        if field.name.startswith(prefix):
                            item.ClearField(field.name)
            reply.rdus.append(item)
    if is_any or pb.COUNTER_KIND_TILE in wanted:
        for row in _tile_rows(counters, comp_name):
            reply.tiles.append(_with_times(from_row(pb.TileCounters, row, comp_name="path"), row))
    if is_any or pb.COUNTER_KIND_APPLICATION in wanted:
        for row in counters.get("leases", ()):
            if any(is_within(full_path(as_text(tile)), full_path(comp_name)) for tile in row.get("tiles", ())):
                item = _with_times(from_row(pb.ApplicationCounters, row, lease="id"), row)
                reply.applications.append(item)
    return reply


def reset_reply(comp_name: str, row: Row) -> pb.ResetRDUReply:
    """Return ``row``: the entry of the hang-recovery log that the reset made."""
    reply = from_row(pb.ResetRDUReply, row)
    reply.comp_name = reply.comp_name or full_path(comp_name)
    reply.message = f"{reply.event} {reply.outcome}"
    return reply


def clear_reply(answer: Row) -> pb.ClearSystemFaultReply:
    """Return the daemon's answer to ``clear``."""
    fault = from_row(pb.Fault, answer["fault"])
    returned = as_text(answer.get("returned"))
    return pb.ClearSystemFaultReply(
        fault_uuid=fault.fault_uuid,
        fault=fault,
        returned_fault_uuid=returned,
        message="cleared, but diagnosed again because the cause remains" if returned else "cleared",
    )


def application_reply(row: Row) -> pb.Application:
    """Return one row of the accounting."""
    return from_row(pb.Application, row)


def _tile_rows(counters: Row, comp_name: str) -> list[Row]:
    ancestor = full_path(comp_name)
    return [row for row in counters.get("tiles", ()) if is_within(full_path(as_text(row.get("path"))), ancestor)]


def _rdu_part(comp_name: str) -> str:
    """Return the RDU of a tile or channel; components above the RDUs are returned unchanged."""
    parts = full_path(comp_name).split("/")
    return "/".join(parts[:4]) if comp_name else ""


def _with_times(item: Any, row: Row) -> Any:
    fill(item.times, row)
    return item


def _legal_kinds() -> str:
    return ", ".join(str(number) for number in sorted(pb.CounterKind.values()) if number)
