"""Model cards of the boxes that come with rdukit: what ``scripts/zoo_cards.py`` found about each model."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from rdukit_modelbox.contract.box import BOXES_FOLDER, Box

FILE: Final = Path(__file__).with_name("cards.json")


@cache
def load_cards() -> Mapping[str, Mapping[str, Any]]:
    """Return the cards by box."""
    cards: Mapping[str, Mapping[str, Any]] = json.loads(FILE.read_text())
    return cards


def card_of(box: Box) -> Mapping[str, Any] | None:
    """Return the card of a box; None for one that does not come with rdukit."""
    return load_cards().get(box.name) if box.folder.parent == BOXES_FOLDER else None
