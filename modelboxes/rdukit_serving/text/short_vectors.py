"""Vectors of texts with fewer dimensions, of models that were trained for that (Matryoshka).

Source: vLLM's "Matryoshka Embeddings": ``is_matryoshka`` and ``matryoshka_dimensions`` of a model's ``config.json``.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rdukit.errors import InvalidArgument
from rdukit_serving.text.generation_config import read_generation

IS_SHORTENED: Final = "is_matryoshka"
DIMENSIONS: Final = "matryoshka_dimensions"
#: A vector whose length differs from 1 by less is normalised; bf16 rounds by 0.004.
_NEAR_ONE: Final = 0.01
#: Most numbers of dimensions that a model may state.
_MOST: Final = 1000


def stated_dimensions(known: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Return the keys of a configuration that allow fewer dimensions; empty: it states none.

    ``place``: path of the configuration, for the error.

    Raises:
        InvalidArgument: a value is not of its kind.
    """
    found = {key: known[key] for key in (IS_SHORTENED, DIMENSIONS) if known.get(key) not in (None, False, [])}
    listed = found.get(DIMENSIONS, [1])
    is_list = isinstance(listed, list) and len(listed) <= _MOST and all(type(one) is int and one > 0 for one in listed)
    if not is_list or found.get(IS_SHORTENED, True) is not True:
        raise InvalidArgument(
            f"{place}: {IS_SHORTENED} is {known.get(IS_SHORTENED)!r:.80} and {DIMENSIONS} is "
            f"{known.get(DIMENSIONS)!r:.80}; expected true or false, and a list of numbers above 0"
        )
    return found


def check_dimensions(checkpoint: Path | None, dimensions: int, size: int) -> None:
    """Check that a model whose vectors have ``size`` numbers gives ``dimensions`` numbers.

    Raises:
        InvalidArgument: it does not; the message has the numbers that are valid. Or the checkpoint's file is damaged.
    """
    if dimensions == size:
        return
    path, known = (None, {}) if checkpoint is None else read_generation(checkpoint)
    stated = stated_dimensions(known, str(path))
    listed = [each for each in stated.get(DIMENSIONS, ()) if each <= size]
    if dimensions in listed or (stated and DIMENSIONS not in stated and dimensions < size):
        return
    if not stated:
        expected = f"{size}, which this model's vectors have, because it states no shorter ones ({IS_SHORTENED})"
    else:
        expected = f"one of {', '.join(map(str, sorted({*listed, size})))}" if DIMENSIONS in stated else f"1 to {size}"
    raise InvalidArgument(f"dimensions: {dimensions} is not valid; expected {expected}", field="dimensions")


def shorten(values: Sequence[float], dimensions: int) -> Sequence[float]:
    """Return the first ``dimensions`` numbers of a vector; the beginning of a normalised vector has length 1 again."""
    found = values[:dimensions]
    length = math.hypot(*found)
    if len(found) == len(values) or not length or abs(math.hypot(*values) - 1.0) > _NEAR_ONE:
        return found
    return [each / length for each in found]
