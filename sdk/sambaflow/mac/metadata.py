"""Tiling hints that programs pass as ``metadata``: recorded, without effect on results. Source: SDK reference 14.7."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TilingMetadata:
    """Tiling of the dimension ``key``: its ``original_size`` elements are divided into ``num_tiles``."""

    key: str = ""
    original_size: Any = None
    num_tiles: Any = 1


@dataclass(frozen=True, slots=True)
class ConvTilingMetadata(TilingMetadata):
    """Tiling of a convolution's image: sizes and numbers of tiles are (height, width)."""


__all__ = ["ConvTilingMetadata", "TilingMetadata"]
