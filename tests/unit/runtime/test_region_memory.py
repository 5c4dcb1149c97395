"""Device memory as mapped host memory."""

import gc
import os
from pathlib import Path

import pytest

from rdukit.errors import OutOfDeviceMemory, RuntimeFault
from rdukit_node.leases.memory import create_region, map_private, map_region
from support import shows

pytestmark = shows("isolation")

MIB = 1024**2


def mappings() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:rdukit-region")


def test_a_region_is_zeroed_and_seen_by_everybody_who_maps_it() -> None:
    descriptor = create_region("weights", 3 * MIB + 5)
    first, second = map_region(descriptor, 3 * MIB + 5), map_region(descriptor, 3 * MIB + 5)
    os.close(descriptor)
    assert len(first) == 3 * MIB + 5
    assert not any(first)
    first[3 * MIB + 4] = 7
    assert second[3 * MIB + 4] == 7


def test_nobody_can_change_a_region_s_size() -> None:
    descriptor = create_region("weights", 4096)
    try:
        for size in (0, 8192):
            with pytest.raises(PermissionError):
                os.ftruncate(descriptor, size)
    finally:
        os.close(descriptor)


def test_a_mapping_ends_with_its_last_view_and_not_before() -> None:
    before = mappings()
    descriptor = create_region("weights", 4096)
    buffer = map_region(descriptor, 4096)
    os.close(descriptor)
    view = buffer[100:200]
    del buffer
    gc.collect()
    view[0] = 1
    assert mappings() == before + 1
    del view
    gc.collect()
    assert mappings() == before


def test_mappings_do_not_use_up_descriptors() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    buffers = []
    for _ in range(50):
        descriptor = create_region("weights", 4096)
        buffers.append(map_region(descriptor, 4096))
        os.close(descriptor)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert len(buffers) == 50


def test_a_descriptor_of_another_size_is_refused() -> None:
    descriptor = create_region("weights", 4096)
    try:
        with pytest.raises(RuntimeFault, match="4096 bytes for a region of 8192"):
            map_region(descriptor, 8192)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("make", [create_region, map_private])
def test_more_than_the_host_has_is_refused_at_once(make: object) -> None:
    assert callable(make)
    with pytest.raises(OutOfDeviceMemory, match=r"the host has .* available"):
        make("weights", 1 << 60)


def test_private_memory_is_zeroed_and_writable() -> None:
    buffer = map_private("weights", 3 * MIB)
    assert not any(buffer)
    buffer[-1] = 9
    assert buffer[3 * MIB - 1] == 9
