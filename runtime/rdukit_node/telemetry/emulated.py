"""Power, temperature and clock of RDUs, emulated: a model of the present load, not a measurement. Pure.

Source: ours: the vendor publishes no such figures of its chips. An idle RDU takes ``IDLE_W``. An executing tile adds
its share of ``BUSY_W``, in proportion to its cores; a byte of device memory costs ``DDR_J_PER_BYTE``. The temperature
is that of the air plus ``KELVIN_PER_WATT`` times the power, as after a long time of this load, or a thermal error's, if
that is higher. The clock is the platform's own: nothing here throttles, but what would lower the clock of real hardware
is named.
"""

from dataclasses import dataclass
from typing import Final

from rdukit.hardware import CHIPS
from rdukit_node.telemetry.sampling import Reading, rdu_rates, tile_shares

IDLE_W: Final = 90.0
#: Power in W beyond ``IDLE_W`` of a chip with all tiles executing.
BUSY_W: Final = 260.0
#: About what DDR4 takes for a byte, with its interface.
DDR_J_PER_BYTE: Final = 150e-12
AIR_C: Final = 25.0
KELVIN_PER_WATT: Final = 0.12


@dataclass(frozen=True, slots=True)
class EmulatedReading:
    """Emulated readings of one RDU over the window between two readings of the node."""

    path: str
    rdu: int
    power_w: float
    temperature_c: float
    clock_hz: float
    #: Reasons for which real hardware would lower its clock: ``thermal``.
    throttle_reasons: tuple[str, ...] = ()

    def as_json(self) -> dict[str, object]:
        """Return plain values; ``is_emulated`` marks them as not measured."""
        return {
            "comp_name": self.path, "rdu": self.rdu, "power_w": round(self.power_w, 1),
            "temperature_c": round(self.temperature_c, 1), "clock_hz": self.clock_hz,
            "throttle_reasons": list(self.throttle_reasons), "is_emulated": True,
        }  # fmt: skip


def emulated_readings(before: Reading, after: Reading) -> list[EmulatedReading]:
    """Return readings of the working RDUs, in the node's order."""
    chip = CHIPS.get(str(after.status.get("chip")))
    if chip is None:  # a daemon of another version may know more chips
        return []
    executing: dict[int, float] = {}
    for tile in tile_shares(before, after):
        executing[tile.rdu] = executing.get(tile.rdu, 0.0) + tile.tenths[1] / 1000
    reported = {int(row["rdu"]): row.get("celsius") for row in after.status.get("rdus", ())}
    found = []
    for rdu in rdu_rates(before, after):
        if rdu.state == "UNAVAILABLE":
            continue
        busy = executing.get(rdu.rdu, 0.0) / chip.tiles
        power = IDLE_W + BUSY_W * busy + DDR_J_PER_BYTE * (rdu.ddr_read_bytes + rdu.ddr_written_bytes)
        celsius, hot = AIR_C + KELVIN_PER_WATT * power, reported.get(rdu.rdu)
        reasons = () if hot is None else ("thermal",)
        found.append(
            EmulatedReading(rdu.path, rdu.rdu, power, max(celsius, hot or celsius), chip.clock_hz, reasons)
        )  # fmt: skip
    return found
