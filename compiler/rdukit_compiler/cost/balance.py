"""Share PCUs among the stages of a section so that none waits for another."""

from collections.abc import Sequence
from math import ceil


def balance_units(loads: Sequence[float], units: float) -> list[float]:
    """Units for each load, so that the slowest stage is as fast as can be; shares add up to at most ``units``.

    ``loads`` are cycles on one unit. A stage with work gets whole units while there are enough for everybody, and
    parts of one (several stages in one unit's pipeline) otherwise; a stage without work gets none.

    Source:
        Compiler reference 9.2, "give PCUs to the slowest stage until none is left".
    """
    working = sum(load > 0 for load in loads)
    if not working:
        return [0.0] * len(loads)
    if working > units:
        total = sum(loads)
        return [units * load / total for load in loads]
    low, high = sum(loads) / units, max(loads)
    for _ in range(48):
        middle = (low + high) / 2
        if sum(ceil(load / middle) for load in loads if load > 0) <= units:
            high = middle
        else:
            low = middle
    return [float(ceil(load / high)) if load > 0 else 0.0 for load in loads]
