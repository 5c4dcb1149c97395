"""What a check finds (pure)."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Final

#: Entry points of checks: each is a function without arguments, which gives findings.
GROUP: Final = "rdukit.doctor"


class Level(StrEnum):
    """How bad it is."""

    GOOD = "good"
    #: It could not be looked at.
    UNKNOWN = "unknown"
    #: Less than the manual advises.
    WARN = "warn"
    #: A boundary of the manual does not hold.
    BAD = "bad"


class Topic(StrEnum):
    """What a finding is about."""

    SECURITY = "security"
    MACHINE = "machine"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    #: Such as ``home.mode``; the same thing has the same name in each run.
    check: str
    level: Level
    what: str
    #: The next step; empty where there is none.
    todo: str = ""
    topic: Topic = Topic.SECURITY

    def as_json(self) -> dict[str, str]:
        """For machines."""
        return {name: str(value) for name, value in asdict(self).items()}


Check = Callable[[], Iterable[Finding]]

_ORDER: Final = tuple(Level)


def worst_of(findings: Iterable[Finding]) -> Level:
    """The worst level; good, where nothing was found."""
    return max((finding.level for finding in findings), key=_ORDER.index, default=Level.GOOD)


def in_order(findings: Sequence[Finding]) -> list[Finding]:
    """The worst first, otherwise as they came."""
    return sorted(findings, key=lambda finding: -_ORDER.index(finding.level))


def exit_status(worst: Level, *, is_strict: bool) -> int:
    """Of the command: 1 where a boundary does not hold, or with ``is_strict`` where anything is less than good."""
    return int(worst is Level.BAD or (is_strict and worst is not Level.GOOD))
