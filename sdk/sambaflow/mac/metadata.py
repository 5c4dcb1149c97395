"""Tiling hints that programs pass as ``metadata``: recorded, without effect on results. Source: SDK reference 14.7."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TilingMetadata:
    """A dimension, called ``key``, of ``original_size`` elements is cut into ``num_tiles``."""

    key: str = ""
    original_size: Any = None
    num_tiles: Any = 1


@dataclass(frozen=True, slots=True)
class ConvTilingMetadata(TilingMetadata):
    """The same for a convolution's image: sizes and numbers of tiles are (height, width)."""


__all__ = ["ConvTilingMetadata", "TilingMetadata"]
