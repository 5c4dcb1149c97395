"""The cost model's numbers, from ``constants.yaml``."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Constants:
    """One value per key of ``constants.yaml``, where each is explained. ``e_…`` and ``u_…`` are fractions of a peak."""

    flops_per_pcu_cycle: int
    lanes_per_pcu: int
    pmu_port_bytes: int
    u_gemm: float
    u_elementwise: float
    u_pmu: float
    balance: float
    e_ddr: float
    e_hbm: float
    usable_units: float
    peer_bandwidth: float
    switch_bandwidth: float
    launch_s: Mapping[str, float]
    looped_launch_s: float
    looped_e_hbm: float
    columns_per_pcu: int
    pmus_per_buffer: int
    weight_block_bytes: int
    max_stream_iterations: int


@cache
def load_constants() -> Constants:
    """The constants that come with the compiler."""
    import yaml  # who only needs to know what operators do reads no file

    text = files("rdukit_compiler.cost").joinpath("constants.yaml").read_text(encoding="utf-8")
    return Constants(**yaml.safe_load(text))
