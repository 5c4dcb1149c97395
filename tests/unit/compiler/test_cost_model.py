"""The cost model against published figures (compiler reference 9.4, 9.5) and against itself."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdukit.hardware import CHIPS, ChipSpec
from rdukit_compiler.cost import OpWork, WorkKind, memory_bandwidth, project
from rdukit_compiler.cost.model import balance_units, load_constants
from support import shows

pytestmark = shows("pef-profile")

SN10, SN30, SN40L = CHIPS["sn10"], CHIPS["sn30"], CHIPS["sn40l"]
LAUNCH = load_constants().launch_s


def gemms(flops: float, count: int = 4, rows: int = 4096) -> list[OpWork]:
    return [OpWork(int(flops / count), WorkKind.GEMM, 0, rows)] * count


def seconds(sections: int, flops: float, moved: float, tiles: int = 4) -> float:
    _, cost = project(gemms(flops / sections), int(moved / sections), 0, 0, SN30, tiles)
    return cost.seconds * sections


def test_a_bert_large_step_is_within_a_factor_of_one_and_a_half_of_the_compilers_projection() -> None:
    assert 0.606 / 1.5 < seconds(75, 74e12, 39e9) < 0.606 * 1.5


def test_a_gpt_layer_is_within_a_factor_of_one_and_a_half_in_o3_and_in_o0() -> None:
    o3, o0 = seconds(5, 4.45e12, 4.3e9), seconds(60, 4.45e12, 21e9)
    assert 0.0705 / 1.5 < o3 < 0.0705 * 1.5
    assert 0.2516 / 1.5 < o0 < 0.2516 * 1.5
    assert 3.6 * 0.6 < o0 / o3 < 3.6 * 1.4


@pytest.mark.parametrize(
    ("parameters", "layers", "published"), [(8.03e9, 32, 646), (6.74e9, 32, 599), (70.6e9, 80, 86)]
)
def test_decoding_on_eight_sn40l_is_within_a_factor_of_one_and_a_half(
    parameters: float, layers: int, published: float
) -> None:
    weights = int(2 * parameters / 8 / layers)
    _, cost = project([OpWork(weights, WorkKind.GEMM, 0, 1)], 0, 0, weights, SN40L, 4)
    assert published / 1.5 < 1 / (cost.seconds * layers) < published * 1.5


def test_an_empty_section_takes_its_launch() -> None:
    resources, cost = project([], 0, 0, 0, SN30, 1)
    assert cost.seconds == LAUNCH["sn30"]
    assert (resources.pcus, cost.flops) == (0, 0)


def test_cycles_are_seconds_at_the_chips_clock() -> None:
    _, cost = project(gemms(1e12), 10**6, 10**6, 10**6, SN10, 4)
    assert cost.cycles == pytest.approx(cost.seconds * SN10.clock_hz, rel=1e-6)


def test_the_slowest_of_pipeline_and_links_decides() -> None:
    _, memory = project(gemms(1e6), 10**9, 0, 0, SN30, 8)
    assert memory.seconds == pytest.approx(10**9 / memory_bandwidth(SN30, 8) + LAUNCH["sn30"])
    _, peer = project(gemms(1e6), 0, 0, 0, SN30, 8, peer_s=0.04)
    assert peer.seconds == pytest.approx(0.04 + LAUNCH["sn30"])
    _, host = project(gemms(1e6), 0, 0, 0, SN30, 8, bytes_host=10**9)
    assert host.seconds == pytest.approx(10**9 / SN30.pcie_bandwidth + LAUNCH["sn30"])


@pytest.mark.parametrize("chip", [SN10, SN30, SN40L])
def test_more_tiles_are_never_slower_and_never_beat_the_peak(chip: ChipSpec) -> None:
    times = [project(gemms(1e13), 10**8, 0, 0, chip, tiles)[1].seconds for tiles in range(1, chip.tiles + 1)]
    assert times == sorted(times, reverse=True)
    assert 1e13 / times[-1] < chip.peak_flops(chip.tiles)


def test_hbm_is_used_where_there_is_some() -> None:
    assert memory_bandwidth(SN40L, 4) == pytest.approx(1.6e12 * 0.85)
    assert memory_bandwidth(SN30, 4) == pytest.approx(102.4e9 * 0.75)


def test_decisions_limit_units_and_set_the_tiling() -> None:
    free, _ = project(gemms(1e12), 0, 0, 0, SN30, 8)
    tight, slower = project(gemms(1e12), 0, 0, 0, SN30, 8, {"pcu_limit": 100})
    assert tight.pcus <= 100 < free.pcus
    _, serial = project(gemms(1e12), 0, 0, 0, SN30, 8, {"pcu_limit": 100, "stream_iterations": 1})
    assert serial.seconds > slower.seconds * 2


def test_a_section_that_waits_for_memory_occupies_only_the_units_that_keep_up() -> None:
    bound, _ = project(gemms(1e9), 10**9, 0, 0, SN30, 8)
    busy, _ = project(gemms(1e13), 10**6, 0, 0, SN30, 8)
    assert bound.pcus == 4
    assert busy.pcus > 1200


def test_more_stages_than_units_share_them() -> None:
    work = [OpWork(1000, WorkKind.ELEMENTWISE, 100, 64)] * 500
    resources, cost = project(work, 0, 0, 0, SN10, 1)
    assert resources.pcus <= 160
    assert resources.pmus <= 160
    assert cost.seconds > LAUNCH["sn10"]


@given(st.lists(st.just(0.0) | st.floats(0.01, 1e9), max_size=30), st.integers(1, 1000))
def test_balancing_never_gives_more_units_than_there_are(loads: list[float], units: int) -> None:
    shares = balance_units(loads, units)
    assert sum(shares) <= units * (1 + 1e-9)
    assert all((share > 0) == (load > 0) for share, load in zip(shares, loads, strict=True))


def test_balancing_makes_stages_equally_long() -> None:
    assert balance_units([100.0, 300.0, 0.0], 40) == [10.0, 30.0, 0.0]
