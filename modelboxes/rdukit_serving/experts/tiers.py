"""Emulated tiers of memory for the weights of experts: counted by bytes and bandwidth, never waited for. Pure.

Source: SN40L (Hot Chips 2024, arXiv 2405.07518): an expert outside HBM is copied there from DDR; a switch takes its
bytes divided by DDR's bandwidth. Weights are only read, so nothing is copied back.
"""

from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TierSizes:
    """Bytes for weights in HBM and DDR, and bytes a second of DDR and PCIe; without HBM, weights are read from DDR."""

    hbm_bytes: int
    ddr_bytes: int
    ddr_bandwidth: float
    pcie_bandwidth: float

    @property
    def has_hbm(self) -> bool:
        """Return whether there is a tier above DDR."""
        return self.hbm_bytes > 0


@dataclass(frozen=True, slots=True)
class ExpertSwitch:
    """Emulated copies that a use of an expert needs: bytes from DDR to HBM, from the host to DDR, and their seconds."""

    switch_bytes: int = 0
    switch_s: float = 0.0
    load_bytes: int = 0
    load_s: float = 0.0


class MemoryTiers:
    """Experts in each tier. A tier evicts the least recently used experts; pinned ones only if nothing else helps."""

    def __init__(self, sizes: TierSizes, weights: Mapping[str, int], pinned: Collection[str] = ()) -> None:
        """``weights``: bytes of each expert."""
        self._sizes = sizes
        self._weights = weights
        self._pinned = frozenset(pinned)
        #: Least recently used first.
        self._hbm: OrderedDict[str, None] = OrderedDict()
        self._ddr: OrderedDict[str, None] = OrderedDict()

    @property
    def in_hbm(self) -> tuple[str, ...]:
        """Return the experts in HBM, the least recently used first."""
        return tuple(self._hbm)

    @property
    def in_ddr(self) -> tuple[str, ...]:
        """Return the experts in DDR, the least recently used first."""
        return tuple(self._ddr)

    def use(self, expert: str, busy: Collection[str] = ()) -> ExpertSwitch:
        """Bring an expert to where it runs; ``busy`` experts elsewhere on the device keep their places."""
        size = self._weights[expert]
        load = self._enter(self._ddr, self._sizes.ddr_bytes, expert, busy)
        switch = self._sizes.has_hbm and self._enter(self._hbm, self._sizes.hbm_bytes, expert, busy)
        return ExpertSwitch(
            size if switch else 0, size / self._sizes.ddr_bandwidth if switch else 0.0,
            size if load else 0, size / self._sizes.pcie_bandwidth if load else 0.0,
        )  # fmt: skip

    def _enter(self, tier: OrderedDict[str, None], room: int, expert: str, busy: Collection[str]) -> bool:
        """Put an expert into a tier as the last used one; False if it was there."""
        if expert in tier:
            tier.move_to_end(expert)
            return False
        free = room - sum(self._weights[each] for each in tier)
        leaving = [each for each in tier if each not in busy]
        for each in sorted(leaving, key=lambda name: name in self._pinned):  # stable: the rest by their last use
            if free >= self._weights[expert]:
                break
            del tier[each]
            free += self._weights[each]
        tier[expert] = None
        return True
