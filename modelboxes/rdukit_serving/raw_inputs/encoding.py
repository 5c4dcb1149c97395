"""Numbers and names of rows as features. Pure.

Axes: N rows of a block, C numbers of a row, K categorical columns, F features.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rdukit.errors import IllegalValue
from rdukit_serving.raw_inputs.layout import ColumnFault

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

#: Mean and standard deviation of MNIST's training images on the scale 0..1, as everybody uses them.
MNIST_MEAN: Final = np.float32(0.1307)
MNIST_DEVIATION: Final = np.float32(0.3081)
#: Category for names that were rare or absent in the training data.
OTHER: Final = "(other)"
#: Names that a message lists.
_SHOWN: Final = 10


@dataclass(frozen=True, slots=True, eq=False)
class FeatureEncoding:
    """Turns numbers [N, C] and names [K][N] into features [N, F] float32: the numbers, then the categories."""

    #: ``standard`` and ``min_max`` use figures of the training rows, ``none`` and ``mnist`` scale grey values 0..255 to
    #: 0..1,
    #: ``as_is`` changes nothing.
    normalize: str
    #: Rule for an empty value; ``zero`` and ``mean`` fill a number in.
    missing: str
    #: ``one_hot``: a feature for each name of a category; ``ordinal``: one with the name's position.
    encoding: str
    #: Figures of the training rows, [C] each.
    mean_C: Doubles
    deviation_C: Doubles
    least_C: Doubles
    most_C: Doubles
    #: Names of each categorical column, in the order of their features; ``OTHER`` stands for unknown names.
    categories: tuple[tuple[str, ...], ...] = ()

    @property
    def features(self) -> int:
        """Features of a row."""
        each = [len(names) if self.encoding == "one_hot" else 1 for names in self.categories]
        return len(self.mean_C) + sum(each)

    def feature_names(self, numbers: Sequence[str], categorical: Sequence[str]) -> tuple[str, ...]:
        """Return the features' names, given the names of the numeric and of the categorical columns."""
        if self.encoding != "one_hot":
            return (*numbers, *categorical)
        pairs = zip(categorical, self.categories, strict=True)
        return (*numbers, *(f"{column}={name}" for column, names in pairs for name in names))

    def encode(
        self, numbers_NC: Doubles | Floats, names_KN: Sequence[Sequence[str]], categorical: Sequence[str] = ()
    ) -> Floats:
        """Return the features [N, F]; ``categorical`` are the columns' names, for messages.

        Raises:
            ColumnFault: a name that the training rows did not have, in a column without ``OTHER``.
            IllegalValue: unknown normalisation.
        """
        parts = [self._normalised(self._filled(numbers_NC))]
        for index, (known, values) in enumerate(zip(self.categories, names_KN, strict=True)):
            code = {name: place for place, name in enumerate(known)}
            other = code.get(OTHER, -1)
            codes_N = np.array([code.get(value, other) for value in values], np.int64)
            if (codes_N < 0).any():
                column = categorical[index] if categorical else str(index)
                row = int((codes_N < 0).argmax())
                fault = _unknown_name(column, values[row], known)
                fault.row = row
                raise fault
            if self.encoding == "one_hot":
                parts.append((codes_N[:, None] == np.arange(len(known))).astype(np.float32))
            else:
                parts.append(codes_N[:, None].astype(np.float32))
        return np.ascontiguousarray(np.concatenate(parts, axis=1)) if len(parts) > 1 else parts[0]

    def _filled(self, numbers_NC: Doubles | Floats) -> Doubles | Floats:
        if self.missing not in {"zero", "mean"} or not np.isnan(numbers_NC).any():
            return numbers_NC
        instead_C = self.mean_C if self.missing == "mean" else np.zeros_like(self.mean_C)
        return np.where(np.isnan(numbers_NC), instead_C, numbers_NC)

    def _normalised(self, numbers_NC: Doubles | Floats) -> Floats:
        match self.normalize:
            case "as_is":
                return np.ascontiguousarray(numbers_NC, np.float32)
            case "none" | "mnist":
                rows: Floats = numbers_NC.astype(np.float32) / np.float32(255)
                return rows if self.normalize == "none" else (rows - MNIST_MEAN) / MNIST_DEVIATION
            case "standard":
                low_C, width_C = self.mean_C, self.deviation_C
            case "min_max":
                low_C, width_C = self.least_C, self.most_C - self.least_C
            case other:
                raise IllegalValue(
                    f"normalize {other!r} is not valid; expected as_is, none, mnist, standard, min_max",
                    parameter="normalize",
                )
        # A column of one value alone carries nothing: it becomes 0.
        scaled: Floats = ((numbers_NC - low_C) / np.where(width_C > 0, width_C, 1.0)).astype(np.float32)
        return scaled

    def to_json(self) -> dict[str, Any]:
        """Return lists and words by name; floats are written so that they are read back bit for bit."""
        figures = {"mean": self.mean_C, "std": self.deviation_C, "min": self.least_C, "max": self.most_C}
        return {
            "normalize": self.normalize, "missing": self.missing, "encoding": self.encoding,
            **{name: [v if np.isfinite(v) else None for v in values.tolist()] for name, values in figures.items()},
            "categories": [list(names) for names in self.categories],
        }  # fmt: skip

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "FeatureEncoding":
        """Read back what ``to_json`` wrote."""
        mean, std, least, most = (
            np.array([np.nan if v is None else v for v in value[name]], np.float64)
            for name in ("mean", "std", "min", "max")
        )
        return cls(
            str(value["normalize"]), str(value["missing"]), str(value["encoding"]), mean, std, least, most,
            tuple(tuple(map(str, names)) for names in value["categories"]),
        )  # fmt: skip


def _unknown_name(column: str, name: str, known: Sequence[str]) -> ColumnFault:
    if not name:
        return ColumnFault(column, "no value, although every training row had one", "a value")
    shown = ", ".join(known[:_SHOWN]) + (f", … ({len(known)} in all)" if len(known) > _SHOWN else "")
    return ColumnFault(
        column, f"{name!r} is a category that no training row had", f"{shown}; or preprocess with rare_below above 0"
    )
