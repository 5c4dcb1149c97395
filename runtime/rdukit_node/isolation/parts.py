"""What isolation consists of, as values: parts, their states, the report. Pure."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum


class PartState(StrEnum):
    """What became of one part."""

    APPLIED = "applied"
    UNAVAILABLE = "unavailable"
    #: The settings do not ask for it.
    OFF = "off"


@dataclass(frozen=True, slots=True)
class Part:
    """One measure. ``detail``: what exactly was applied, or why it could not be."""

    name: str
    state: PartState
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.state}: {self.detail}" if self.detail else str(self.state)


def applied(name: str, detail: str = "") -> Part:
    """A part that is in force."""
    return Part(name, PartState.APPLIED, detail)


def unavailable(name: str, reason: object) -> Part:
    """A part that was wanted and is not in force."""
    return Part(name, PartState.UNAVAILABLE, str(reason))


def off(name: str) -> Part:
    """A part that was not wanted."""
    return Part(name, PartState.OFF)


def as_report(parts: Iterable[Part]) -> dict[str, str]:
    """Texts by part, each beginning with the state, such as ``unavailable: no permission``."""
    return {part.name: str(part) for part in parts}


def cores_of(allowed: Collection[int], tiles: Collection[int], node_tiles: int) -> list[int]:
    """The host's cores that belong to tiles: the allowed ones shared out evenly, in order, over the node's tiles.

    Two leases have no core in common if there are at least as many cores as tiles, and their tiles' runs of cores
    overlap at the ends at most otherwise.

    Args:
        tiles: flat numbers, at least one.
    Source: ours.
    """
    cores, count = sorted(allowed), len(allowed)
    share = {
        core
        for tile in tiles
        for core in range(
            tile * count // node_tiles, max((tile + 1) * count // node_tiles, tile * count // node_tiles + 1)
        )
    }
    return [cores[index] for index in sorted(share)]
