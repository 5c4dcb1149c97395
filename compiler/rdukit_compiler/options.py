"""What a compile is asked to do."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rdukit.errors import InvalidArgument
from rdukit.hardware import ChipSpec, find_chip

MODES: Final = ("o0", "o1", "o3")


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """Options of one compile.

    ``num_tiles`` 0 means all tiles of one chip. ``rules`` is a fusion rule file of the user; ``default_rules`` adds
    the built-in ones. ``regions`` maps symbol names to shared region names. ``workers`` bounds nothing by itself: see
    the setting ``compile.workers``.
    """

    name: str
    pef_path: Path
    mode: str = "o3"
    arch: str = "sn30"
    num_tiles: int = 0
    precision: str = "bf16"
    inference: bool = False
    rules: Path | None = None
    default_rules: bool = True
    kernels: str = "auto"
    regions: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def chip(self) -> ChipSpec:
        return find_chip(self.arch)

    @property
    def tiles(self) -> int:
        return self.num_tiles or self.chip.tiles

    def check(self) -> None:
        """Check every value.

        Raises:
            InvalidArgument: one is not legal; the message lists what is.
        """
        if self.mode not in MODES:
            raise InvalidArgument(f"mode {self.mode!r} is not legal; legal: {', '.join(MODES)}")
        if self.precision not in {"bf16", "f32"}:
            raise InvalidArgument(f"precision {self.precision!r} is not legal; legal: bf16, f32")
        legal = [n for n in (1, 2, 4, 8) if n <= self.chip.tiles]
        if self.tiles not in legal:
            raise InvalidArgument(f"--num-tiles {self.tiles} is not legal on {self.chip.name}; legal: {legal}")
