"""Model cards of the boxes that come with rdukit: the results of ``scripts/zoo_cards.py``, and the model's picture."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from rdukit_modelbox.contract.box import BOXES_FOLDER, Box
from rdukit_zoo.pictures import load_pictures

FILE: Final = Path(__file__).with_name("cards.json")


@cache
def load_cards() -> Mapping[str, Mapping[str, Any]]:
    """Return the cards by box."""
    cards: Mapping[str, Mapping[str, Any]] = json.loads(FILE.read_text())
    return cards


def card_of(box: Box) -> Mapping[str, Any] | None:
    """Return the card of a box; None if the box is not rdukit's.

    ``picture`` has the SVG under ``svg``, and its path under ``file``. A model without a recipe was measured
    when its picture was made.
    """
    if box.folder.parent != BOXES_FOLDER:
        return None
    card, picture = load_cards().get(box.name), load_pictures().get(box.name)
    if card is None or picture is None:
        return card
    measured = {**picture.reached, "train_seconds": picture.seconds}
    svg = picture.file.read_text(encoding="utf-8")
    shown = {"alt": picture.alt, "caption": picture.caption, "file": str(picture.file), "svg": svg}
    return {"measured": measured, **card, "picture": shown}
