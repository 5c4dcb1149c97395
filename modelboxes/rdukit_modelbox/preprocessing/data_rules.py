"""Rules that compare data with a model before the first step. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rdukit.errors import InvalidArgument
from rdukit_zoo.registry import IGNORED, SizeValue

#: Part of the seed of validation samples.
_VALIDATION: Final = 5


@dataclass(frozen=True, slots=True)
class ValueLimit:
    """Limit of integers that choose from something, classes or rows of a table: they are from 0 to below ``count``."""

    count: int
    #: Name of the model's size with this limit; empty: none.
    size: str = ""
    #: Whether values may also be ``IGNORED``, as for targets that no loss counts.
    allows_ignored: bool = False


def check_sizes(found: Mapping[str, SizeValue], wanted: Mapping[str, SizeValue]) -> None:
    """Compare the sizes of a data set with those of a PEF's model.

    Raises:
        InvalidArgument: names each size that differs, with both values.
    """
    differing = [name for name, value in found.items() if name in wanted and wanted[name] != value]
    if differing:
        told = "; ".join(f"{name}: {found[name]} in the data set, {wanted[name]} in the PEF" for name in differing)
        advice = ", ".join(f"{name}={found[name]}" for name in differing)
        raise InvalidArgument(
            f"the data set belongs to another model: {told}; compile with {advice}, or preprocess with the PEF's values"
        )


def check_values(where: str, values: NDArray[Any], limit: ValueLimit) -> None:
    """Refuse labels beyond the classes and indices beyond a table. Floats are not indices.

    Raises:
        InvalidArgument: names ``where``, the first wrong value and the expected ones.
    """
    if not values.size or not np.issubdtype(values.dtype, np.integer):
        return
    low, high = int(values.min()), int(values.max())
    if low >= 0 and high < limit.count:
        return
    wrong = values[(values < 0) | (values >= limit.count)]
    if limit.allows_ignored:
        wrong = wrong[wrong != IGNORED]
    if wrong.size:
        why, advice = (
            (f"as {limit.size} is {limit.count}", f"correct the data, or compile with a larger {limit.size}")
            if limit.size
            else (f"because there are {limit.count} choices", "correct the data")
        )
        raise InvalidArgument(
            f"{where} has the value {wrong.flat[0]}; expected 0 to {limit.count - 1}, {why}; {advice}"
        )


def validation_rows(samples: int, share: float) -> NDArray[np.int64]:
    """Return the numbers of the training samples held out for validation, ascending; at least one.

    They depend on the number of samples alone, so that trainings with different seeds compare. Pure.
    """
    count = min(samples, max(1, round(samples * share)))
    chosen_N = np.random.default_rng([samples, _VALIDATION]).permutation(samples)[:count]
    return np.sort(chosen_N)


def divide_rows(samples: int, share: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the numbers of the samples to train on, and those of ``validation_rows``. Pure."""
    held_N = validation_rows(samples, share)
    return np.delete(np.arange(samples), held_N), held_N
