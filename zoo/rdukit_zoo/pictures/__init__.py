"""Pictures of each box's model at work, drawn from real runs by ``scripts/zoo_pictures.py``."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent
CAPTIONS: Final = FOLDER / "captions.json"


@dataclass(frozen=True, slots=True)
class ModelPicture:
    """An SVG that follows the viewer's light or dark scheme, of one box."""

    model: str
    #: Description for readers who do not see the picture.
    alt: str
    #: The same with figures, the run, and the source of the data.
    caption: str
    #: Seconds of the training, and figures on held-out data.
    seconds: float
    reached: Mapping[str, float]
    file: Path


@cache
def load_pictures() -> Mapping[str, ModelPicture]:
    """Return the pictures by box."""
    known = json.loads(CAPTIONS.read_text(encoding="utf-8"))
    return {box: ModelPicture(**fields, file=FOLDER / f"{box}.svg") for box, fields in known.items()}
