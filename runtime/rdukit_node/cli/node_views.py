"""The views of ``snconfig`` as nested values, and their text form. Pure.

Source: runtime reference 5 (banners, four spaces a level, keys padded to 18; the layouts of the dynamic part, of
op-state and of topo are ours, as are the names in the JSON files).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from rdukit.errors import InvalidArgument
from rdukit.hardware import NodeSpec, find_node
from rdukit_node.cli.output import aligned, time_text
from rdukit_node.inventory import ComponentHealth

Row = Mapping[str, Any]
Tree = dict[str, Any]

_RULE: Final = "=" * 54
_GIB: Final = 1 << 30
_NONE: Final = "-"


def banner(title: str) -> list[str]:
    """Return the ruled head of an answer."""
    return [_RULE, _title_line(title), _RULE]


def _title_line(title: str) -> str:
    return "=" * 7 + f"{'':16}{title:<24}" + "=" * 7


# -- of one job ------------------------------------------------------------------------------------------------------


def rdus_of_job(status: Row, job: str) -> frozenset[str]:
    """Return the paths of the RDUs on which a job holds tiles, by an answer of ``status``."""
    leases = {lease["id"] for lease in status["leases"] if lease["job"] == job}
    return frozenset(str(tile["path"]).rpartition("/")[0] for tile in status["tiles"] if tile["lease"] in leases)


def rows_around(rows: Sequence[Row], rdus: Collection[str]) -> list[Row]:
    """Return the rows of these RDUs, of the parts below them and of the parts that contain them."""
    return [
        row for row in rows
        if any(f"{row['comp_name']}/".startswith(f"{rdu}/") or rdu.startswith(f"{row['comp_name']}/") for rdu in rdus)
    ]  # fmt: skip


# -- node: values ----------------------------------------------------------------------------------------------------


def static_tree(platform: str, inventory: Sequence[Row], timestamp: str) -> Tree:
    """Build the tree of a node's constant properties: components with serial numbers and sizes."""
    spec = _find_spec(platform)
    children = _children(inventory)
    xrdus = []
    for xrdu in children.get("/NODE", ()):
        rdus = [_static_rdu(rdu, children, spec) for rdu in children.get(xrdu["comp_name"], ())]
        total = sum(dimm["size_bytes"] for rdu in rdus for channel in rdu["ddr_channels"] for dimm in channel["dimms"])
        xrdus.append({"name": _name(xrdu), "rdus": rdus, "memory_bytes": total})
    return {"timestamp": timestamp, "platform_name": _title(platform), "node_name": "NODE", "xrdus": xrdus}


def _static_rdu(rdu: Row, children: Mapping[str, Sequence[Row]], spec: NodeSpec | None) -> Tree:
    parts = children.get(rdu["comp_name"], ())
    board = spec.board if spec else None
    return {
        "name": _name(rdu),
        "serial_number": rdu["serial"],
        "tiles": [{"name": _name(row), "serial_number": row["serial"]} for row in parts if row["kind"] == "TILE"],
        "pcies": [
            {
                "name": _name(row),
                "bandwidth_bytes_per_s": board.pcie_link_bandwidth if board else None,
                "transfers_per_s": board.pcie_transfers if board else None,
                "width": board.pcie_width if board else None,
                "serial_number": row["serial"],
            }
            for row in parts
            if row["kind"] == "PCIE"
        ],
        "ddr_channels": [
            {
                "name": _name(row),
                "dimms": [
                    {"name": _name(dimm), "size_bytes": int(dimm["size_bytes"] or 0), "serial_number": dimm["serial"]}
                    for dimm in children.get(row["comp_name"], ())
                ],
            }
            for row in parts
            if row["kind"] == "DDRCH"
        ],
    }


def dynamic_tree(
    platform: str, rdus: Sequence[Row], tiles: Sequence[Row], leases: Sequence[Row], timestamp: str
) -> Tree:
    """Build the tree of a node's changing state: RDUs' operational states, tiles in service and free; tiles' health and
    owners.

    Args:
        rdus: rows of ``op_state``. tiles, leases: those of ``status``; a tile's lease names its owner.
    """
    owners = {lease["id"]: lease for lease in leases}
    by_rdu: dict[str, list[Row]] = {}
    for tile in tiles:
        by_rdu.setdefault(str(tile["path"]).rpartition("/")[0], []).append(tile)
    xrdus: dict[str, Tree] = {}
    for rdu in rdus:
        path = str(rdu["comp_name"])
        xrdu = path.split("/")[2]
        xrdus.setdefault(xrdu, {"name": xrdu, "rdus": []})["rdus"].append(
            {
                "name": path.rpartition("/")[2],
                "comp_name": path,
                "state": rdu["state"],
                "perfect": bool(rdu["perfect"]),
                "available_tiles": rdu["available_tiles"],
                "free_tiles": sum(
                    tile["lease"] is None and tile["health"] == ComponentHealth.ONLINE for tile in by_rdu.get(path, ())
                ),
                "tiles": [_dynamic_tile(tile, owners.get(tile["lease"])) for tile in by_rdu.get(path, ())],
            }
        )
    return {
        "timestamp": timestamp, "platform_name": _title(platform), "node_name": "NODE", "xrdus": list(xrdus.values()),
    }  # fmt: skip


def _dynamic_tile(tile: Row, lease: Row | None) -> Tree:
    return {
        "name": str(tile["path"]).rpartition("/")[2],
        "health": tile["health"],
        "pids": list(lease["pids"]) if lease else [],
        "user": lease.get("user") if lease else None,
        "application": lease["application"] if lease else None,
    }


def topology(rdus: Sequence[str]) -> Tree:
    """Return how RDUs are joined pair by pair: ``X`` itself, ``XRDU`` on one module, ``PCIE`` through links."""
    links = {
        one: {other: "X" if one == other else "XRDU" if _module(one) == _module(other) else "PCIE" for other in rdus}
        for one in rdus
    }
    return {"rdus": list(rdus), "links": links}


def _module(path: str) -> str:
    return path.rpartition("/")[0]


def _children(inventory: Iterable[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in inventory:
        found.setdefault(str(row["comp_name"]).rpartition("/")[0], []).append(row)
    return found


def _name(row: Row) -> str:
    return str(row["comp_name"]).rpartition("/")[2]


def _find_spec(platform: str) -> NodeSpec | None:
    try:
        return find_node(platform)
    except InvalidArgument:  # a daemon of another version may know more platforms
        return None


def _title(platform: str) -> str:
    return platform if platform.startswith("DataScale") else f"DataScale {platform}"


# -- node: text ------------------------------------------------------------------------------------------------------


def static_lines(tree: Tree) -> list[str]:
    """Return the text of ``show Node static``, without the first banner."""
    lines = _head(tree, "Static Info")
    for xrdu in tree["xrdus"]:
        lines += [_line(1, f"XRDU Name: {xrdu['name']}"), _line(2, f"Number of RDUS: {len(xrdu['rdus'])}")]
        for rdu in xrdu["rdus"]:
            lines += _static_rdu_lines(rdu)
        lines.append(_line(2, f"Total {xrdu['name']} memory size (GB): {xrdu['memory_bytes'] / _GIB:.1f}"))
    return lines


def _static_rdu_lines(rdu: Tree) -> list[str]:
    lines = [_line(2, f"RDU name: {rdu['name']}"), _pair(3, "Serial Number", rdu["serial_number"])]
    lines.append(_line(3, f"Number of TILES: {len(rdu['tiles'])}"))
    for tile in rdu["tiles"]:
        lines += [_line(3, f"TILE Name: {tile['name']}"), _pair(4, "Serial Number", tile["serial_number"])]
    lines.append(_line(3, f"Number of PCIES: {len(rdu['pcies'])}"))
    for link in rdu["pcies"]:
        lines.append(_line(3, f"PCIE Name: {link['name']}"))
        lines.append(_pair(4, "Bandwidth", _giga(link["bandwidth_bytes_per_s"], "GB/s")))
        lines.append(_pair(4, "Speed", _giga(link["transfers_per_s"], "GT/s")))
        lines.append(_pair(4, "Width", "N/A" if link["width"] is None else link["width"]))
        lines.append(_pair(4, "Serial Number", link["serial_number"]))
    lines.append(_line(3, f"Number of DDRCHs: {len(rdu['ddr_channels'])}"))
    for channel in rdu["ddr_channels"]:
        lines += [_line(3, f"DDR CH Name: {channel['name']}"), _line(4, f"Number of DIMMS: {len(channel['dimms'])}")]
        for dimm in channel["dimms"]:
            lines.append(_line(4, f"DIMM Name: {dimm['name']}"))
            lines.append(_pair(5, "Size", f"{dimm['size_bytes'] / _GIB:.1f} GB"))
            lines.append(_pair(5, "Serial Number", dimm["serial_number"]))
    return lines


def dynamic_lines(tree: Tree) -> list[str]:
    """Return the text of ``show Node dynamic``, without the first banner.

    Each RDU has a line with its path and, if intact, the word *perfect*, to find lost tiles with grep.
    """
    lines = _head(tree, "Dynamic Info")
    for xrdu in tree["xrdus"]:
        lines += [_line(1, f"XRDU Name: {xrdu['name']}"), _line(2, f"Number of RDUS: {len(xrdu['rdus'])}")]
        for rdu in xrdu["rdus"]:
            lines.append(_line(2, f"RDU name: {rdu['name']}"))
            lines.append(_pair(3, "State", rdu["state"]))
            lines.append(_pair(3, "perfect", f"{rdu['perfect']} ({rdu['comp_name']})"))
            lines.append(_pair(3, "Available TILES", rdu["available_tiles"]))
            lines.append(_pair(3, "Free TILES", rdu["free_tiles"]))
            for tile in rdu["tiles"]:
                lines.append(_line(3, f"TILE Name: {tile['name']}"))
                lines.append(_pair(4, "ComponentHealth", tile["health"]))
                lines.append(_pair(4, "Owner PID", ",".join(map(str, tile["pids"])) or _NONE))
                if tile["user"]:
                    lines.append(_pair(4, "Owner", tile["user"]))
    return lines


def op_state_lines(rdus: Sequence[Row]) -> list[str]:
    """Return the text of ``show Node op-state``, without the first banner."""
    cells = [["RDU", "STATE", "TILES", "SINCE", "REASON"]]
    cells += [
        [str(row["comp_name"]), str(row["state"]), str(row["available_tiles"]), time_text(row["since"]),
         row["reason"] or _NONE]
        for row in rdus
    ]  # fmt: skip
    return [_title_line("Operational State"), *aligned(cells)]


def topology_lines(found: Tree) -> list[str]:
    """Return the text of ``show Node topo``: a matrix and its legend."""
    short = [path.removeprefix("/NODE/") for path in found["rdus"]]
    cells = [["", *short]]
    cells += [[short[i], *found["links"][path].values()] for i, path in enumerate(found["rdus"])]
    return [
        _title_line("Topology"), *aligned(cells), "",
        "X     the RDU itself", "XRDU  both on one module", "PCIE  over the node's PCIe links",
    ]  # fmt: skip


def host_lines(facts: Mapping[str, object]) -> list[str]:
    """Return the text of ``show Host all``: keys padded to 26."""
    return [*banner("Host Info"), *(f"{key:<26}: {value}" for key, value in facts.items())]


#: Source: runtime reference 5.
RDMA_COLUMNS: Final = ("IBDEV", "NETDEV", "LINKSTATUS", "CARRIERSTATUS", "SPEED", "MTU")


def rdma_lines(devices: Sequence[Row]) -> list[str]:
    """Return the table of ``rdma-dev``, with its header also when there is none."""
    rows = [[str(device[name.lower()]) for name in RDMA_COLUMNS] for device in devices]
    return aligned([list(RDMA_COLUMNS), *rows], gap=" ")


def _head(tree: Tree, title: str) -> list[str]:
    return [
        _title_line(title), f"Timestamp: {tree['timestamp']}", f"Platform Name: {tree['platform_name']}",
        f"Node Name: {tree['node_name']}", _line(1, f"Number of XRDUS: {len(tree['xrdus'])}"),
    ]  # fmt: skip


def _line(level: int, text: str) -> str:
    return "    " * level + text


def _pair(level: int, key: str, value: object) -> str:
    return _line(level, f"{key:<18}: {value}")


def _giga(value: float | None, unit: str) -> str:
    return "N/A" if value is None else f"{value / 1e9:g} {unit}"


def power_lines(rows: Sequence[Row]) -> list[str]:
    """Return one line an RDU: power, temperature, clock, all emulated."""
    head = "Emulated readings: a model of the present load, not measurements"
    lines = [
        f"{row['comp_name']:<20}  {row['power_w']:6.1f} W  {row['temperature_c']:5.1f} C"
        f"  {row['clock_hz'] / 1e6:6.0f} MHz"
        + "".join(f"  would throttle: {reason}" for reason in row.get("throttle_reasons", ()))
        for row in rows
    ]
    return [head, *lines]
