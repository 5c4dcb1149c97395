"""Columns of rows: the request for them, their figures in one pass, and the basis of their encoding. Pure.

Axes: N rows of a block, C numbers of a row, K categorical columns.
"""

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rdukit.errors import IllegalValue, InvalidArgument
from rdukit_modelbox.contract.allowed_values import ParameterValue
from rdukit_serving.raw_inputs.encoding import OTHER, FeatureEncoding

#: Value of ``predict`` of a label that is a number.
NUMBER_LABEL: Final = "number"


@dataclass(frozen=True, slots=True)
class RowPreprocessRequest:
    """Parameters of the verb by name; a box may lack some of them."""

    #: Columns of tables, or the array, that are features; empty is all but the label.
    columns: tuple[str, ...] = ()
    label_column: str = "label"
    #: Kind of the label: ``class`` or ``number``.
    predict: str = "class"
    #: Columns whose values are names, and dates.
    categorical: tuple[str, ...] = ()
    dates: tuple[str, ...] = ()
    #: Columns that are not features.
    exclude: tuple[str, ...] = ()
    #: Column that says each row's split; empty: ``test_ratio`` does, or names of files.
    split_column: str = ""
    #: Whether the first rows say the kind of a column that is neither in ``categorical`` nor in ``dates``.
    finds_kinds: bool = False
    #: Categories of fewer rows are one; 0 keeps all.
    rare_below: int = 0
    #: ``one_hot`` or ``ordinal``.
    encoding: str = "one_hot"
    #: ``error``, ``drop``, ``zero`` or ``mean``.
    missing: str = "error"
    #: ``mnist`` and ``none`` scale grey values 0..255 to 0..1; ``mnist`` then uses the usual mean and deviation.
    #: ``standard`` and ``min_max`` use figures of the training rows; ``as_is`` changes nothing.
    normalize: str = "as_is"
    test_ratio: float = 0.2
    #: None keeps the order.
    seed: int | None = None
    skips_bad_rows: bool = False
    #: Most rows of each split, from the start; 0 keeps all.
    limit: int = 0
    #: Side of the square images; 0: images keep their size, which must be equal.
    image_size: int = 28
    #: ``grey`` or ``rgb``.
    image_mode: str = "grey"

    @classmethod
    def of(cls, parameters: Mapping[str, ParameterValue]) -> "RowPreprocessRequest":
        """Make a request from checked parameters.

        Raises:
            IllegalValue: a column has two exclusive roles, or a categorical column is not a feature.
        """
        base = cls()
        request = cls(
            columns=split_names(parameters.get("columns", "")),
            label_column=str(parameters.get("label_column", base.label_column)),
            predict=str(parameters.get("predict", base.predict)),
            categorical=split_names(parameters.get("categorical", "")),
            dates=split_names(parameters.get("dates", "")),
            exclude=split_names(parameters.get("exclude", "")),
            split_column=str(parameters.get("split_column", "")).strip(),
            finds_kinds="categorical" in parameters,
            rare_below=int(parameters.get("rare_below", 0)),
            encoding=str(parameters.get("encoding", base.encoding)),
            missing=str(parameters.get("missing", base.missing)),
            normalize=str(parameters.get("normalize", base.normalize)),
            test_ratio=float(parameters.get("test_ratio", base.test_ratio)),
            seed=int(parameters.get("seed", 0)) if parameters.get("shuffle", False) not in {False, "False"} else None,
            skips_bad_rows=parameters.get("bad_rows", "error") == "skip",
            limit=int(parameters.get("limit", 0)),
            image_size=int(parameters.get("image_size", base.image_size)),
            image_mode=str(parameters.get("image_mode", base.image_mode)),
        )
        if request.predict == NUMBER_LABEL and request.limit:
            raise IllegalValue("limit applies only to classes; leave it at 0 with predict=number")
        roles = {
            "label_column": (request.label_column,), "columns": request.columns, "categorical": request.categorical,
            "dates": request.dates, "exclude": request.exclude,
            "split_column": (request.split_column,) if request.split_column else (),
        }  # fmt: skip
        for one, other in _DISTINCT:
            if twice := [name for name in roles[one] if name in roles[other]]:
                raise IllegalValue(f"column {twice[0]!r} is in both {one} and {other}; expected in one of them")
        for role in ("categorical", "dates"):
            if request.columns and (extra := set(roles[role]) - set(request.columns)):
                raise IllegalValue(
                    f"{role} names {', '.join(sorted(extra))}, not in columns; expected {', '.join(request.columns)}"
                )
        return request


#: Parameters that may not name the same column.
_DISTINCT: Final = (
    ("label_column", "columns"), ("label_column", "categorical"), ("label_column", "dates"),
    ("label_column", "exclude"), ("exclude", "columns"), ("exclude", "categorical"), ("exclude", "dates"),
    ("categorical", "dates"), ("split_column", "label_column"), ("split_column", "columns"),
    ("split_column", "categorical"), ("split_column", "dates"), ("split_column", "exclude"),
)  # fmt: skip


def split_names(value: ParameterValue) -> tuple[str, ...]:
    """Return the names in a text with commas between them; a name with a comma stands in double quotes.

    Raises:
        IllegalValue: a quote has no end.
    """
    try:
        fields = next(csv.reader([str(value).replace("\n", " ")], skipinitialspace=True, strict=True), [])
    except csv.Error as cause:
        raise IllegalValue(
            f'{value!r} is no list of names: {cause}; expected names between commas, with commas as "a, b"'
        ) from cause
    return tuple(name.strip() for name in fields if name.strip())


def as_name(name: str) -> str:
    """Return a name as ``split_names`` reads it."""
    return '"' + name.replace('"', '""') + '"' if any(mark in name for mark in ',"') else name


Floats = NDArray[np.float32]
#: More names than this in a column, or classes, are refused: they are not categories.
MAX_CATEGORIES: Final = 10_000
#: A class by its number, less than ``MAX_CATEGORIES``.
_NUMBERED_CLASS: Final = re.compile(r"0|[1-9]\d{0,3}", re.ASCII)


@dataclass(frozen=True, slots=True)
class RowBlock:
    """A batch of rows: numbers [N, C] with NaN where one is missing, names [K][N], labels [N] as text.

    A numeric label is written so that reading it returns the same bits.
    """

    numbers_NC: NDArray[np.float64] | Floats
    names_KN: tuple[list[str], ...]
    labels_N: list[str]
    #: Bytes of the source read so far.
    consumed: int
    #: Number of each row's split, if a column has it.
    splits_N: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.labels_N)


@dataclass(slots=True)
class ColumnFigures:
    """Figures of the numeric columns [C], gathered block by block (Chan, Golub and LeVeque's update)."""

    count_C: NDArray[np.int64]
    mean_C: NDArray[np.float64]
    #: Sum of squared differences from the mean.
    squares_C: NDArray[np.float64]
    least_C: NDArray[np.float64]
    most_C: NDArray[np.float64]
    missing_C: NDArray[np.int64]

    @classmethod
    def of(cls, columns: int) -> "ColumnFigures":
        """Make the figures of ``columns`` columns with no row yet."""
        zeros, ints = np.zeros(columns), np.zeros(columns, np.int64)
        return cls(ints.copy(), zeros.copy(), zeros.copy(), zeros + np.inf, zeros - np.inf, ints.copy())

    def add(self, numbers_NC: NDArray[np.float64] | Floats) -> None:
        """Count a block in."""
        values = np.asarray(numbers_NC, np.float64)
        if not len(values):
            return
        there = ~np.isnan(values)
        count_C = there.sum(axis=0)
        filled = np.where(there, values, 0.0)
        mean_C = filled.sum(axis=0) / np.maximum(count_C, 1)
        squares_C = np.where(there, (values - mean_C) ** 2, 0.0).sum(axis=0)
        total_C = np.maximum(self.count_C + count_C, 1)
        delta_C = np.where(count_C > 0, mean_C - self.mean_C, 0.0)
        self.mean_C += delta_C * count_C / total_C
        self.squares_C += squares_C + delta_C**2 * self.count_C * count_C / total_C
        self.count_C += count_C
        self.missing_C += len(values) - count_C
        self.least_C = np.minimum(self.least_C, np.where(there, values, np.inf).min(axis=0))
        self.most_C = np.maximum(self.most_C, np.where(there, values, -np.inf).max(axis=0))

    @property
    def deviation_C(self) -> NDArray[np.float64]:
        """Standard deviation, of all rows rather than of a sample."""
        deviation: NDArray[np.float64] = np.sqrt(self.squares_C / np.maximum(self.count_C, 1))
        return deviation

    def to_json(self) -> dict[str, list[float | int | None]]:
        """Return lists by name; a column without any value has no minimum and maximum."""
        return {
            "count": self.count_C.tolist(), "mean": self.mean_C.tolist(), "std": self.deviation_C.tolist(),
            "min": [value if np.isfinite(value) else None for value in self.least_C.tolist()],
            "max": [value if np.isfinite(value) else None for value in self.most_C.tolist()],
            "missing": self.missing_C.tolist(),
        }  # fmt: skip

    @classmethod
    def from_json(cls, value: dict[str, list[float]]) -> "ColumnFigures":
        """Read back what ``to_json`` wrote."""
        count_C = np.array(value["count"], np.int64)
        least, most = ([np.nan if v is None else v for v in value[key]] for key in ("min", "max"))
        return cls(
            count_C, np.array(value["mean"], np.float64), np.array(value["std"], np.float64) ** 2 * count_C,
            np.array(least, np.float64), np.array(most, np.float64), np.array(value["missing"], np.int64),
        )  # fmt: skip


@dataclass(slots=True)
class NameCounts:
    """Counts of each name in a categorical column, or of each label."""

    what: str
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, names: Sequence[str]) -> None:
        """Count names in.

        Raises:
            InvalidArgument: too many different ones.
        """
        for name in names:
            self.counts[name] = self.counts.get(name, 0) + 1
        if len(self.counts) > MAX_CATEGORIES:
            raise InvalidArgument(
                f"{self.what} has more than {MAX_CATEGORIES} different values; expected a column of categories, or "
                "leave it out with exclude"
            )


def encoding_of(
    request: RowPreprocessRequest, figures: ColumnFigures, categories: Sequence[tuple[str, ...]]
) -> FeatureEncoding:
    """Return the encoding that a request asks for, with the figures and categories of the training rows."""
    return FeatureEncoding(
        request.normalize, request.missing, request.encoding, figures.mean_C, figures.deviation_C, figures.least_C,
        figures.most_C, tuple(categories),
    )  # fmt: skip


def known_names(counts: Mapping[str, int], rare_below: int) -> tuple[str, ...]:
    """Return a column's categories, sorted; with ``rare_below``, rarer ones become one at the end, ``OTHER``."""
    common = sorted(name for name, count in counts.items() if count >= rare_below and name != OTHER)
    return (*common, OTHER) if len(common) < len(counts) else tuple(common)


def are_class_numbers(names: Iterable[str]) -> bool:
    """Return whether names are whole numbers from 0, each in its only form, so that none is that of another class."""
    return all(_NUMBERED_CLASS.fullmatch(name) for name in names)


def classes_of(labels: Sequence[str]) -> dict[str, int]:
    """Class of each label: whole numbers from 0 are their own classes, others are counted in their order.

    Numbers with leading zeros are names, so that ``01`` and ``1`` differ.

    Raises:
        InvalidArgument: there is no label.
    """
    if not labels:
        raise InvalidArgument("there is no label")
    if are_class_numbers(labels):
        return {label: int(label) for label in labels}
    return {label: index for index, label in enumerate(sorted(labels))}
