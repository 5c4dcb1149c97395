"""Check whether a bundle fits into the emulated device's memory and the host's (pure): a sum over static shapes.

Caches and activations of all configurations stay in the fastest tier (HBM, if the chip has it). Experts' weights share
its rest; they are copied there from DDR on demand.

Source: SambaStack's documentation of bundles for the check against the device's memory; ``rdukit.hardware`` for sizes
of tiers; the rules are ours.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rdukit.cli.tables import Table
from rdukit.hardware import ChipSpec
from rdukit.units import format_bytes, format_seconds
from rdukit_serving.experts.tiers import TierSizes


@dataclass(frozen=True, slots=True)
class ConfigurationSizes:
    """Sizes of a configuration, read from its PEF, in bytes: weights of one expert, caches of all texts, and the peak
    of its graphs' other memory. ``draft_bytes`` are all three of its draft, of which ``draft_weights_bytes`` are in the
    host's memory.
    """

    name: str
    context: int
    batch: int
    precision: str
    weights_bytes: int
    caches_bytes: int
    graphs_bytes: int
    draft_bytes: int = 0
    draft_weights_bytes: int = 0

    @property
    def fixed_bytes(self) -> int:
        """Return the bytes that stay in the fastest tier."""
        return self.caches_bytes + self.graphs_bytes + self.draft_bytes


@dataclass(frozen=True, slots=True)
class ExpertSizes:
    """An expert, and the bytes of its weights in memory."""

    name: str
    configuration: str
    weights_bytes: int
    is_pinned: bool = False


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Emulated memory of the sockets, and the host's budget, in bytes and bytes a second. ``hbm_bytes`` 0: none."""

    chip: str
    sockets: int
    hbm_bytes: int
    ddr_bytes: int
    ddr_bandwidth: float
    pcie_bandwidth: float
    host_bytes: int


@dataclass(frozen=True, slots=True)
class BundleFit:
    """Sums of a bundle. ``problems``: parts that do not fit, and sizes that would; empty: it can be served."""

    device: DeviceMemory
    configurations: Sequence[ConfigurationSizes]
    experts: Sequence[ExpertSizes]
    #: Bytes of the fastest tier for weights, and the number of experts, in the bundle's order, that fit at once.
    fast_bytes: int
    fast_experts: int
    ddr_experts: int
    host_experts: int
    #: Bytes of the host's memory that weights of experts may take: drafts have theirs there, too.
    host_bytes: int
    problems: Sequence[str]

    @property
    def fast_tier(self) -> str:
        """Return the name of the tier in which experts run."""
        return "HBM" if self.device.hbm_bytes else "DDR"

    @property
    def tiers(self) -> TierSizes:
        """Return the tiers in the emulation's form."""
        device = self.device
        hbm, ddr = (self.fast_bytes, device.ddr_bytes) if device.hbm_bytes else (0, self.fast_bytes)
        return TierSizes(hbm, ddr, device.ddr_bandwidth, device.pcie_bandwidth)


def device_memory(
    chip: ChipSpec, sockets: int, host_bytes: int, hbm_bytes: int | None = None, ddr_bytes: int | None = None
) -> DeviceMemory:
    """Return the memory of ``sockets`` chips; sizes in bytes stand for all of them."""
    return DeviceMemory(
        chip.name, sockets,
        chip.hbm_bytes and (sockets * chip.hbm_bytes if hbm_bytes is None else hbm_bytes),
        sockets * chip.ddr_bytes if ddr_bytes is None else ddr_bytes,
        sockets * chip.ddr_bandwidth, sockets * chip.pcie_bandwidth, host_bytes,
    )  # fmt: skip


def legalize(
    device: DeviceMemory, configurations: Sequence[ConfigurationSizes], experts: Sequence[ExpertSizes]
) -> BundleFit:
    """Compare the memory that a bundle needs with the available memory."""
    tier, tier_bytes = ("hbm", device.hbm_bytes) if device.hbm_bytes else ("ddr", device.ddr_bytes)
    fixed = sum(each.fixed_bytes for each in configurations)
    drafts = sum(each.draft_weights_bytes for each in configurations)
    used = {expert.configuration for expert in experts}
    #: Each configuration runs one expert at a time; all of these are in the fastest tier.
    running = sum(each.weights_bytes for each in configurations if each.name in used)
    room = tier_bytes - fixed
    problems = []
    if room < running:
        problems.append(
            f"{_fixed_parts(configurations)} of {len(configurations)} configurations take {format_bytes(fixed)}, and "
            f"one expert of each {format_bytes(running)}, but memory.{tier} is {format_bytes(tier_bytes)} (emulated "
            f"{device.chip} x {device.sockets}); expected {_least(fixed + running)} or more, fewer configurations, a "
            "smaller context or batch"
        )
    problems += _too_large(experts, device.host_bytes, "host", drafts)
    if device.hbm_bytes:
        problems += _too_large(experts, device.ddr_bytes, "ddr")
    fast, host = max(room, 0), max(device.host_bytes - drafts, 0)
    return BundleFit(
        device, configurations, experts, fast, _count(experts, fast),
        _count(experts, device.ddr_bytes if device.hbm_bytes else fast), _count(experts, host), host, problems,
    )  # fmt: skip


def _fixed_parts(configurations: Sequence[ConfigurationSizes]) -> str:
    """Describe the parts of configurations that stay in the fastest tier."""
    return "caches, graphs and drafts" if any(each.draft_bytes for each in configurations) else "caches and graphs"


def _too_large(experts: Sequence[ExpertSizes], budget: int, tier: str, drafts: int = 0) -> list[str]:
    """Name the experts that never fit into a tier, next to the pinned ones and the weights of ``drafts``."""
    pinned = sum(expert.weights_bytes for expert in experts if expert.is_pinned) + drafts
    who = "pinned experts and drafts" if drafts else "pinned experts"
    if pinned > budget:
        return [
            f"{who} take {format_bytes(pinned)}, but memory.{tier} is {format_bytes(budget)}; expected "
            f"{_least(pinned)} or more, or fewer pinned experts"
        ]
    found = [each for each in experts if not each.is_pinned and pinned + each.weights_bytes > budget]
    if not found:
        return []
    most = max(each.weights_bytes for each in found)
    names = ", ".join(each.name for each in found[:5]) + (" …" if len(found) > 5 else "")
    return [
        f"{names}: {format_bytes(most)} in addition to {format_bytes(pinned)} of {who} exceed memory.{tier}, "
        f"{format_bytes(budget)}; expected {_least(pinned + most)} or more"
    ]


def _least(count: int) -> str:
    """Return a size in a bundle's notation of at least ``count`` bytes."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= 10 * factor:
            return f"{-(-count // factor)}{unit}"
    return f"{count}B"


def _count(experts: Iterable[ExpertSizes], budget: int) -> int:
    """Count the experts that fit at once: pinned ones, then the others in order."""
    count = 0
    for expert in sorted(experts, key=lambda each: not each.is_pinned):
        budget -= expert.weights_bytes
        if budget < 0:
            break
        count += 1
    return count


def fit_tables(fit: BundleFit) -> list[Table]:
    """Return the fit of a bundle as tables of at most 80 columns."""
    device, total = fit.device, len(fit.experts)
    weights = sum(expert.weights_bytes for expert in fit.experts)
    fixed = sum(each.fixed_bytes for each in fit.configurations)
    has_draft = any(each.draft_bytes for each in fit.configurations)
    columns = ("CONFIGURATION", "CONTEXT", "BATCH", "PRECISION", "WEIGHTS", "CACHES", "GRAPHS", "DRAFT")
    tiers = [("host", format_bytes(device.host_bytes), f"{fit.host_experts} of {total}", "real: the most of weights")]
    ddr = [("DDR, emulated", format_bytes(device.ddr_bytes), f"{fit.ddr_experts} of {total}", _to_load(fit))]
    hbm = [("HBM, emulated", format_bytes(device.hbm_bytes), f"{fit.fast_experts} of {total}", _to_switch(fit))]
    tables = [
        Table(f"{device.sockets} x {device.chip}, {total} experts of {format_bytes(weights)}",
              ("TIER", "BYTES", "EXPERTS", ""), tuple((hbm if device.hbm_bytes else []) + ddr + tiers)),
        Table(f"{format_bytes(fixed)} of the fastest tier are {_fixed_parts(fit.configurations)}",
              columns if has_draft else columns[:-1],
              tuple((each.name[:24], str(each.context), str(each.batch), each.precision,
                     *map(format_bytes, (each.weights_bytes, each.caches_bytes, each.graphs_bytes)),
                     *([format_bytes(each.draft_bytes)] if has_draft else []))
                    for each in fit.configurations), frozenset({"CONTEXT", "BATCH"})),
        Table("", ("EXPERT", "CONFIGURATION", "WEIGHTS", "SWITCH, EMULATED", ""),
              tuple((each.name[:24], each.configuration[:20], format_bytes(each.weights_bytes),
                     format_seconds(_switch_s(fit, each)), "pinned" if each.is_pinned else "")
                    for each in fit.experts)),
    ]  # fmt: skip
    return tables


def describe_fit(fit: BundleFit) -> dict[str, Any]:
    """Return what fits as a JSON object."""
    switches = {each.name: _switch_s(fit, each) for each in fit.experts}
    return {**asdict(fit), "fits": not fit.problems, "fast_tier": fit.fast_tier, "emulated_switch_s": switches}


def loadable(fit: BundleFit) -> Mapping[str, tuple[int, bool]]:
    """Return bytes of each expert, and whether it is pinned."""
    return {each.name: (each.weights_bytes, each.is_pinned) for each in fit.experts}


def _switch_s(fit: BundleFit, expert: ExpertSizes) -> float:
    """Return the emulated seconds of copying an expert from the tier below to where it runs."""
    device = fit.device
    return expert.weights_bytes / (device.ddr_bandwidth if device.hbm_bytes else device.pcie_bandwidth)


def _to_switch(fit: BundleFit) -> str:
    return f"from DDR at {fit.device.ddr_bandwidth / 1e9:g} GB/s"


def _to_load(fit: BundleFit) -> str:
    return f"from the host at {fit.device.pcie_bandwidth / 1e9:g} GB/s"
