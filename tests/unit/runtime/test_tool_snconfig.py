"""snconfig's parts, from answers as plain values, and facts about the host."""

import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rdukit.errors import InvalidArgument, NotFound, PermissionDenied, RuntimeFault
from rdukit.hardware import find_node
from rdukit_node.cli.node_views import (
    banner,
    dynamic_lines,
    dynamic_tree,
    op_state_lines,
    rdma_lines,
    rdus_of_job,
    rows_around,
    static_lines,
    static_tree,
    topology,
    topology_lines,
)
from rdukit_node.cli.snconfig import file_name, snconfig
from rdukit_node.host_info import check_huge_pages, describe_host, read_host, set_huge_pages
from rdukit_node.inventory import components, node_tiles, serial_number
from support import shows

pytestmark = shows("snconfig", "tools", "fidelity")

STAMP = "2024-03-05 10:12:44"
CPUINFO = (
    "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 85\n"
    "model name\t: Some(R) CPU @ 2.70GHz\nstepping\t: 7\ncpu MHz\t\t: 3100.500\nflags\t\t: sse2 avx\n\n"
    "processor\t: 1\nvendor_id\t: GenuineIntel\n"
)
MEMINFO = (
    "MemTotal:       1056000000 kB\nMemFree: 1 kB\nHugePages_Total:     263\nHugePages_Free:      262\nOther: 3 kB\n"
)


def inventory_of(platform: str) -> list[dict[str, Any]]:
    return [
        {
            "comp_name": each.path, "kind": str(each.kind), "serial": serial_number("n", each),
            "size_bytes": each.size_bytes,
        }
        for each in components(find_node(platform))
    ]  # fmt: skip


def rdu_rows(platform: str) -> list[dict[str, Any]]:
    node = find_node(platform)
    paths = [each.path for each in components(node) if each.kind == "RDU"]
    return [
        {
            "rdu": n, "comp_name": path, "state": "FUNCTIONAL", "reason": None, "since": 0, "perfect": True,
            "available_tiles": node.chip.tiles,
        }
        for n, path in enumerate(paths)
    ]  # fmt: skip


def tile_rows(platform: str, lease: str | None = None) -> list[dict[str, Any]]:
    return [
        {"path": tile.path, "rdu": tile.rdu, "tile": tile.tile, "lease": lease, "health": "Online"}
        for tile in node_tiles(find_node(platform))
    ]


def test_the_banner_is_as_wide_as_its_rule() -> None:
    assert banner("NODE Info") == [
        "======================================================",
        "=======                NODE Info               =======",
        "======================================================",
    ]


def test_the_static_part_of_an_sn30_is_laid_out_as_documented() -> None:
    lines = static_lines(static_tree("SN30-8", inventory_of("SN30-8"), STAMP))
    assert lines[:8] == [
        "=======                Static Info             =======",
        "Timestamp: 2024-03-05 10:12:44",
        "Platform Name: DataScale SN30-8",
        "Node Name: NODE",
        "    Number of XRDUS: 4",
        "    XRDU Name: XRDU_0",
        "        Number of RDUS: 2",
        "        RDU name: RDU_0",
    ]
    assert lines[8].startswith("            Serial Number     : ")
    assert lines[9:12] == [
        "            Number of TILES: 8",
        "            TILE Name: TILE_0",
        "                Serial Number     : N/A",
    ]
    link = lines.index("            PCIE Name: PCIE_0")
    assert lines[link + 1 : link + 5] == [
        "                Bandwidth         : 32 GB/s",
        "                Speed             : 16 GT/s",
        "                Width             : 16",
        "                Serial Number     : N/A",
    ]
    channel = lines.index("            DDR CH Name: DDRCH_0")
    assert lines[channel - 1] == "            Number of DDRCHs: 8"
    assert lines[channel + 1 : channel + 4] == [
        "                Number of DIMMS: 1",
        "                DIMM Name: DIMM_C0",
        "                    Size              : 128.0 GB",
    ]
    assert lines[-1] == "        Total XRDU_3 memory size (GB): 2048.0"


def test_an_empty_slot_has_no_gigabytes() -> None:
    lines = static_lines(static_tree("SN10-8", inventory_of("SN10-8"), STAMP))
    slot = lines.index("                DIMM Name: DIMM_C1")
    assert lines[slot + 1 : slot + 3] == [
        "                    Size              : 0.0 GB",
        "                    Serial Number     : N/A",
    ]


def test_a_platform_that_is_not_known_here_shows_what_its_inventory_says() -> None:
    tree = static_tree("SN50-8", inventory_of("TEST-1"), STAMP)
    assert tree["platform_name"] == "DataScale SN50-8"
    assert "                Bandwidth         : N/A" in static_lines(tree)


def test_one_line_an_rdu_says_perfect_and_changes_when_a_tile_is_lost() -> None:
    rows = rdu_rows("SN10-8")
    before = dynamic_lines(dynamic_tree("SN10-8", rows, tile_rows("SN10-8"), [], STAMP))
    rows[3] = {**rows[3], "perfect": False, "state": "DEGRADED", "available_tiles": 3}
    after = dynamic_lines(dynamic_tree("SN10-8", rows, tile_rows("SN10-8"), [], STAMP))
    perfect = [line for line in after if "perfect" in line]
    assert len(perfect) == 8
    assert [line for line in perfect if line not in before] == [
        "            perfect           : False (/NODE/XRDU_1/RDU_1)"
    ]


def test_tiles_show_the_processes_that_own_them() -> None:
    lease = {"id": "l-1", "pids": [41207, 41300], "user": "jdoe", "application": "mlp"}
    tree = dynamic_tree("TEST-1", rdu_rows("TEST-1"), tile_rows("TEST-1", "l-1"), [lease], STAMP)
    lines = dynamic_lines(tree)
    assert lines.count("                Owner PID         : 41207,41300") == 4
    assert lines.count("                Owner             : jdoe") == 4
    assert "            Available TILES   : 4" in lines
    assert "            Free TILES        : 0" in lines
    idle = dynamic_lines(dynamic_tree("TEST-1", rdu_rows("TEST-1"), tile_rows("TEST-1"), [], STAMP))
    assert "                Owner PID         : -" in idle


def test_the_operational_state_is_a_line_an_rdu() -> None:
    rows = [{**rdu_rows("TEST-1")[0], "state": "PENDING", "reason": "reset"}]
    assert op_state_lines(rows)[-1] == "/NODE/XRDU_0/RDU_0  PENDING  4      1970-01-01T00:00:00Z  reset"


def test_the_topology_tells_neighbours_from_the_others() -> None:
    found = topology([row["comp_name"] for row in rdu_rows("SN30-8")])
    assert list(found["links"]["/NODE/XRDU_0/RDU_0"].values()) == ["X", "XRDU", *["PCIE"] * 6]
    assert all(found["links"][a][b] == found["links"][b][a] for a in found["rdus"] for b in found["rdus"])
    assert len(topology_lines(found)) == 1 + 9 + 4


def test_the_rdma_table_has_its_header_when_there_is_no_device() -> None:
    assert rdma_lines([]) == ["IBDEV NETDEV LINKSTATUS CARRIERSTATUS SPEED MTU"]


def test_files_are_named_by_form_date_and_time() -> None:
    moment = datetime(2024, 3, 5, 10, 12, 44)
    assert file_name(("node", "static"), moment) == "show_node_static_2024-03-05_10-12-44.json"
    assert file_name(("", "rdma-dev"), moment) == "show_rdma_dev_2024-03-05_10-12-44.json"


def test_host_facts_have_the_known_names() -> None:
    facts = describe_host(CPUINFO, MEMINFO, {(1, "Data"): "32K", (3, "Unified"): "36M"}, "x86_64", "3.11.7")
    assert facts == {
        "python_version": "3.11.7", "arch": "X86_64", "bits": 64, "count": 2, "arch_string_raw": "x86_64",
        "vendor_id_raw": "GenuineIntel", "brand_raw": "Some(R) CPU @ 2.70GHz", "hz_actual": "3100500000",
        "hz_actual_friendly": "3.1005 GHz", "hz_advertised": "2700000000", "hz_advertised_friendly": "2.7000 GHz",
        "l1_data_cache_size": 32768, "l3_cache_size": 37748736, "stepping": 7, "model": 85, "family": 6,
        "flags": "avx sse2", "MemTotal": "1056000000 kB", "MemFree": "1 kB", "HugePages_Total": "263",
        "HugePages_Free": "262",
    }  # fmt: skip


def test_a_kernel_that_tells_nothing_leaves_facts_out() -> None:
    assert set(describe_host("", "", {}, "aarch64", "3.12.0")) == {
        "python_version", "arch", "bits", "count", "arch_string_raw",
    }  # fmt: skip


def test_this_host_has_processors_and_memory() -> None:
    facts = read_host()
    assert int(facts["count"]) >= 1
    assert str(facts["MemTotal"]).endswith("kB")


def test_the_host_is_shown_without_a_node(tmp_path: Path) -> None:
    result = CliRunner().invoke(snconfig, ["show", "Host", "all", "-j", str(tmp_path)])
    assert result.exit_code == 0
    assert "=======                Host Info               =======" in result.output
    written = Path(result.output.splitlines()[-1])
    assert written.parent == tmp_path
    assert written.name.startswith("show_host_all_")
    assert "MemTotal" in json.loads(written.read_text())


def test_json_stays_one_document_when_files_are_written_too(tmp_path: Path) -> None:
    result = CliRunner().invoke(snconfig, ["-j", str(tmp_path), "--json", "rdma-dev"])
    assert json.loads(result.stdout) == {"rdma_devices": []}
    assert len(list(tmp_path.iterdir())) == 1


def test_a_folder_that_takes_no_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = CliRunner().invoke(snconfig, ["rdma-dev", "-j", str(tmp_path / "file")])
    assert isinstance(result.exception, InvalidArgument)


@pytest.mark.parametrize(
    "words", [["show"], ["show", "Node", "nothing"], ["set", "hugepages"], ["set", "hugepages", "-1"], ["set", "clock"]]
)
def test_a_form_that_does_not_exist_is_refused_with_those_that_do(words: list[str]) -> None:
    result = CliRunner().invoke(snconfig, ["--", *words])
    assert isinstance(result.exception, InvalidArgument)


def huge_pages(folder: Path, count: int) -> Path:
    (folder / "nr_hugepages").write_text(f"{count}\n")
    return folder


def test_huge_pages_are_asked_of_the_kernel_by_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert set_huge_pages(8, huge_pages(tmp_path, 3)) == 3
    assert (tmp_path / "nr_hugepages").read_text() == "8\n"


def test_huge_pages_are_for_root_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(PermissionDenied, match="only root"):
        set_huge_pages(8, huge_pages(tmp_path, 3))
    assert (tmp_path / "nr_hugepages").read_text() == "3\n"


def test_a_kernel_that_reserves_fewer_pages_is_not_hidden() -> None:
    check_huge_pages(8, 8)
    with pytest.raises(RuntimeFault, match="3 of 8"):
        check_huge_pages(8, 3)


def test_a_machine_without_huge_pages_says_so(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no huge pages"):
        set_huge_pages(8, tmp_path)


def test_a_job_has_the_rdus_of_its_tiles_with_their_parts_and_modules() -> None:
    tiles = tile_rows("SN30-8")
    for tile in tiles[:2]:
        tile["lease"] = "l1"
    tiles[9]["lease"] = "l2"
    leases = [{"id": "l1", "job": "j1"}, {"id": "l2", "job": None}]
    rdus = rdus_of_job({"tiles": tiles, "leases": leases}, "j1")
    assert rdus == {"/NODE/XRDU_0/RDU_0"}
    assert [row["comp_name"] for row in rows_around(rdu_rows("SN30-8"), rdus)] == ["/NODE/XRDU_0/RDU_0"]
    paths = {row["comp_name"] for row in rows_around(inventory_of("SN30-8"), rdus)}
    assert {"/NODE", "/NODE/XRDU_0", "/NODE/XRDU_0/RDU_0", "/NODE/XRDU_0/RDU_0/TILE_7"} <= paths
    assert not {path for path in paths if path.startswith(("/NODE/XRDU_0/RDU_1", "/NODE/XRDU_1"))}
    assert rows_around(rdu_rows("SN30-8"), rdus_of_job({"tiles": tiles, "leases": leases}, "j2")) == []


@pytest.mark.parametrize("form", [["show", "Host", "all"], ["rdma-dev"], ["set", "hugepages", "1"]])
def test_what_is_the_hosts_is_no_jobs(form: list[str]) -> None:
    result = CliRunner().invoke(snconfig, [*form, "--job", "j1"])
    assert isinstance(result.exception, InvalidArgument) and "--job is only for show Node" in result.exception.message
