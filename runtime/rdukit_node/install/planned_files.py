"""What is to be put under a prefix, as data."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """``is_kept``: once it is there it belongs to the administrator, as settings do."""

    content: bytes
    mode: int = 0o644
    is_kept: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """Paths relative to the prefix. ``folders`` are those that hold no file of the plan, with their modes."""

    files: Mapping[str, PlannedFile]
    folders: Mapping[str, int] = field(default_factory=dict)
