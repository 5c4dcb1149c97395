"""torchvision's transforms for tests, where it is installed and was built for the installed torch."""

from typing import Any

import pytest

from rdukit.errors import InvalidArgument
from rdukit_modelbox.preprocessing.augmentation import load_transforms


def transforms_or_skip() -> Any:
    """Return ``torchvision.transforms.v2``; skips where it cannot be imported, and says why."""
    try:
        return load_transforms()
    except InvalidArgument as refusal:
        pytest.skip(f"the extra `pictures` is not usable: {refusal.message}")
