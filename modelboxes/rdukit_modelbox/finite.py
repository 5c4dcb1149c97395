"""Values that are legal JSON: Python's ``json`` reads and writes NaN and infinities, which JSON does not have."""

import math
from collections.abc import Mapping


def as_finite(value: object) -> object:
    """``value`` with each NaN or infinity, at any depth, as None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): as_finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_finite(item) for item in value]
    return value


def as_words(value: object) -> object:
    """``value`` with each NaN or infinity, at any depth, as ``nan``, ``inf`` or ``-inf``."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): as_words(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_words(item) for item in value]
    return value
