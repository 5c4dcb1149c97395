"""Emulated hardware: the public figures, and names in every spelling."""

import pytest

from rdukit.errors import InvalidArgument
from rdukit.hardware import CHIPS, GIB, NODES, find_chip, find_node
from support import shows

pytestmark = shows("node")


@pytest.mark.parametrize(
    ("name", "tiles", "pcus", "bf16_tflops"),
    [("sn10", 4, 640, 324), ("sn30", 8, 1280, 688), ("sn40l", 4, 1040, 639)],
)
def test_a_chip_has_its_public_figures(name: str, tiles: int, pcus: int, bf16_tflops: float) -> None:
    chip = find_chip(name)
    assert (chip.tiles, chip.pcus, chip.pmus) == (tiles, pcus, pcus)
    assert chip.peak_flops(chip.tiles) / 1e12 == pytest.approx(bf16_tflops, rel=0.01)


def test_peak_rate_grows_with_the_tiles() -> None:
    chip = CHIPS["sn30"]
    assert chip.peak_flops(8) == pytest.approx(8 * chip.peak_flops(1))


@pytest.mark.parametrize(("platform", "rdus", "tiles"), [("SN10-8", 8, 32), ("SN30-8", 8, 64), ("SN40L-16", 16, 64)])
def test_a_node_counts_its_rdus_and_tiles(platform: str, rdus: int, tiles: int) -> None:
    node = find_node(platform)
    assert (node.rdus, node.tiles) == (rdus, tiles)


def test_names_are_found_in_any_spelling() -> None:
    assert find_chip("SN10-8") is CHIPS["sn10"]
    assert find_chip("SN40") is CHIPS["sn40l"]
    assert find_node("sn30-8") is NODES["SN30-8"]


@pytest.mark.parametrize("find", [find_chip, find_node])
def test_an_unknown_name_is_refused_with_the_legal_ones(find: object) -> None:
    assert callable(find)
    with pytest.raises(InvalidArgument, match=r"unknown (chip|platform) 'sn99'.*expected .*(sn10|SN10-8)"):
        find("sn99")


def test_memory_is_per_chip_in_bytes() -> None:
    assert CHIPS["sn30"].ddr_bytes == 1024 * GIB
    assert CHIPS["sn40l"].hbm_bytes == 64 * GIB
