"""Leases of a private node, and how settings and launchers choose what it has."""

import os
from pathlib import Path

import pytest

from rdukit.errors import InvalidArgument, LeaseLost, NoResources, OutOfDeviceMemory, RuntimeFault
from rdukit_node.leases.launch import LAUNCHERS
from rdukit_node.private_node import open_lease, ranks_here
from support import shows

pytestmark = shows("node")


@pytest.fixture(autouse=True)
def private_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RDUKIT_LEASE", "RDUKIT_SND_SOCKET", "RDUKIT_PLATFORM", "SF_RNT_TILE_AFFINITY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RDUKIT_HOME", str(tmp_path))
    monkeypatch.setenv("RDUKIT_NODE", "private")


def test_ranks_on_one_machine_share_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    for launcher in LAUNCHERS:
        monkeypatch.delenv(launcher.rank, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert open_lease("app", arch=None, tiles=1, memory_bytes=0).cores == 8
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "2")
    assert open_lease("app", arch=None, tiles=1, memory_bytes=0).cores == 4
    monkeypatch.setenv("PMI_SIZE", "20")
    assert open_lease("app", arch=None, tiles=1, memory_bytes=0).cores == 1
    assert ranks_here({"PMI_RANK": "0", "PMI_SIZE": "4", "MPI_LOCALNRANKS": "2"}) == 1, "how many are here is not said"
    assert ranks_here({"PMI_RANK": "0", "PMI_SIZE": "many"}) == 1


def test_a_private_node_is_of_the_platform_in_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDUKIT_PLATFORM", "TEST-1")
    with pytest.raises(NoResources, match=r"TEST-1 .*waiting cannot help"):
        open_lease("app", arch="sn10", tiles=5, memory_bytes=0)
    assert open_lease("app", arch="sn30", tiles=5, memory_bytes=0).chip.name == "sn30"


def test_the_vendor_s_affinity_variable_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SF_RNT_TILE_AFFINITY", "0xf0")
    assert open_lease("app", arch="sn10", tiles=1, memory_bytes=0).tiles == ("/NODE/XRDU_0/RDU_1/TILE_0",)
    monkeypatch.setenv("SF_RNT_TILE_AFFINITY", "all")
    with pytest.raises(InvalidArgument, match="expected a number such as 0xf"):
        open_lease("app", arch="sn10", tiles=1, memory_bytes=0)


def test_regions_are_zeroed_memory_within_the_lease() -> None:
    with open_lease("app", arch="sn10", tiles=1, memory_bytes=100) as lease:
        region = lease.allocate("weights", 60)
        assert region.buffer.tolist() == [0] * 60
        region.buffer[0] = 1
        with pytest.raises(OutOfDeviceMemory, match="40 B left"):
            lease.allocate("cache", 41)
        region.free()
        region.free()
        assert lease.allocate("cache", 100).buffer[0] == 0
        with pytest.raises(RuntimeFault, match="was freed"):
            region.buffer  # noqa: B018


def test_a_view_of_a_freed_region_stays_usable() -> None:
    lease = open_lease("app", arch="sn10", tiles=1, memory_bytes=100)
    region = lease.allocate("weights", 60)
    view = region.buffer[10:20]
    region.free()
    lease.release()
    view[0] = 3
    assert view[0] == 3


def test_a_released_lease_refuses_everything_but_another_release() -> None:
    lease = open_lease("app", arch="sn10", tiles=1, memory_bytes=100)
    region = lease.allocate("weights", 60)
    lease.check()
    lease.release()
    lease.release()
    region.free()
    with pytest.raises(LeaseLost):
        lease.allocate("late", 1)


@pytest.mark.parametrize("held", ["L1", ":", "L1:", ":token"])
def test_a_malformed_lease_variable_is_an_error_that_does_not_show_it(
    held: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDUKIT_LEASE", held)
    with pytest.raises(InvalidArgument, match="<id>:<token>"):
        open_lease("app", arch="sn10", tiles=1, memory_bytes=0)
