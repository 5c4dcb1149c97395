"""Columns of a table that carry no information, or too much of it; they are found while the rows are read. Pure.

Memory is bounded: a column is followed only while it may still be such a column.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rdukit_modelbox.preprocessing.columns import ColumnFigures, RowBlock, as_name, classes_of
from rdukit_serving.raw_inputs.legal_values import DATE_FEATURES

#: A category with more names than this is reported.
MANY_NAMES: Final = 100
#: Values that are remembered of a column that may be the label under another name.
MAX_VALUES: Final = 200
#: Least number of rows with which a column may be an id.
MIN_ID_ROWS: Final = 20
#: Largest number of remembered values of a column that may be an id.
MAX_IDS: Final = 100_000
#: From here on floats of 64 bits have not all whole numbers.
EXACT: Final = 1 << 53
#: Least number of rows with a blank, and without, that may say the label.
MIN_BLANKS: Final = 10
#: A correlation above this says that a column is the label in another unit.
SAME: Final = 0.9999


class TableAudit:
    """Follows the columns of a table; derived columns, such as the year of a date, are not followed."""

    def __init__(
        self, numeric: Sequence[str], categorical: Sequence[str], dates: Sequence[str] = (), *, has_classes: bool = True
    ) -> None:
        self._numeric, self._categorical = tuple(numeric), tuple(categorical)
        self._rows = 0
        #: Columns in which each value so far had one label only: the label of each value.
        self._labels: dict[str, dict[object, str]] = {name: {} for name in (*numeric, *categorical) if has_classes}
        #: Columns whose values so far were all different, and whole numbers or names.
        self._seen: dict[str, set[object]] = {name: set() for name in (*numeric, *categorical)}
        #: Which numeric columns have numbers that only some whole numbers have in 64 bits of a float, and fractions.
        self._are_large_C, self._have_fractions_C = np.zeros((2, len(numeric)), np.bool_)
        #: Columns whose blank rows so far had other labels than the rest: blank rows of each label.
        self._blanks: dict[str, Counter[str]] = {
            name: Counter() for name in (*numeric, *categorical, *dates) if has_classes
        }
        #: Rows of each label.
        self._label_rows: Counter[str] = Counter()
        #: Place of each column in a block's numbers: of a date, that of its first feature.
        self._places = {name: index for index, name in enumerate(numeric)} | {
            name: len(numeric) + index * len(DATE_FEATURES) for index, name in enumerate(dates)
        }

    def add(self, block: RowBlock) -> None:
        """Count a block in."""
        self._rows += len(block)
        for index, name in enumerate(self._numeric):
            if name in self._labels or name in self._seen:
                # A NaN is no key.
                values: list[object] = [None if v != v else v for v in block.numbers_NC[:, index].tolist()]
                self._follow(name, values, block.labels_N, [isinstance(v, float) and v.is_integer() for v in values])
        for name, names in zip(self._categorical, block.names_KN, strict=True):
            if name in self._labels or name in self._seen:
                self._follow(name, names, block.labels_N, [bool(value) for value in names])
        numbers_NC = block.numbers_NC[:, : len(self._numeric)]
        sizes_NC = np.abs(numbers_NC)
        self._are_large_C |= ((sizes_NC >= EXACT) & (sizes_NC < 2.0**64)).any(axis=0)
        self._have_fractions_C |= (np.floor(numbers_NC) < numbers_NC).any(axis=0)
        if self._blanks:
            self._follow_blanks(block)

    def findings(
        self, figures: Mapping[str, Sequence[Any]], counts: Sequence[Mapping[str, int]], labels: Mapping[str, int]
    ) -> list[str]:
        """Return a sentence for each suspicious column.

        Args:
            figures: ``min`` and ``max`` of the numeric columns, in their order.
            counts: rows of each name, of the categorical columns in their order.
            labels: rows of each class.
        """
        found = []
        if len(labels) > MANY_NAMES:
            found.append(
                f"the label has {len(labels)} different values, each of which is a class; expected predict=number for "
                "numbers (box mlp), another label_column, or values grouped into a few ranges"
            )
        if len(labels) == 1:
            found.append(f"the label is {next(iter(labels))!r} in all rows; expected two or more classes to learn")
        classes = max(classes_of(list(labels)).values(), default=0) + 1 if labels else 0
        if classes > len(labels) + 1 > 2:
            found.append(
                f"the label's numbers are classes 0 to {classes - 1}, of which only {len(labels)} occur; write names "
                "in place of the numbers for a model of as many classes"
            )
        for index, name in enumerate(self._numeric):
            if figures["min"][index] is None:
                found.append(f"column {name!r} has no value in the training rows; {_leave_out(name)}")
            elif figures["min"][index] == figures["max"][index]:
                found.append(f"column {name!r} is constant in the training rows; {_leave_out(name)}")
        for name, names in zip(self._categorical, counts, strict=True):
            if len(names) == 1:
                found.append(f"column {name!r} is constant; {_leave_out(name)}")
            elif len(names) > MANY_NAMES and name not in self._ids():
                found.append(
                    f"column {name!r} has {len(names)} categories; join the rare ones with rare_below, or "
                    f"{_leave_out(name)}"
                )
        found += [
            f"column {name!r} has whole numbers from 2^53, of which neighbours become one number; {_leave_out(name)}, "
            "or name it in categorical"
            for name, is_large in zip(self._numeric, self._are_large_C & ~self._have_fractions_C, strict=True)
            if is_large and name not in self._ids()
        ]
        found += [
            f"column {name!r} differs in each of the {self._rows} rows, like an id; a model learns nothing from it "
            f"about other rows; {_leave_out(name)}"
            for name in self._ids()
        ]
        found += [
            f"column {name!r} reveals the label: each value has one label, and each label one value; "
            f"{_leave_out(name)} unless it is known before the label"
            for name in self._leaks()
        ]
        found += [
            f"column {name!r} reveals the label: rows without a value have other labels than rows with one; "
            f"{_leave_out(name)} unless it is known before the label"
            for name in self._telling_blanks()
        ]
        return found

    def _ids(self) -> list[str]:
        return list(self._seen) if self._rows >= MIN_ID_ROWS else []

    def _leaks(self) -> list[str]:
        return [
            name for name, labels in self._labels.items() if len(labels) > 1 and len(labels) == len({*labels.values()})
        ]

    def _telling_blanks(self) -> list[str]:
        """Return the columns; labels of one row say nothing, because each is on one side only."""
        found = []
        for name, blank in self._blanks.items():
            there = self._label_rows - blank
            rows = [sum(count for count in each.values() if count > 1) for each in (blank, there)]
            if min(rows) >= MIN_BLANKS and not blank.keys() & there.keys():
                found.append(name)
        return [name for name in found if name not in self._leaks()]

    def _follow_blanks(self, block: RowBlock) -> None:
        self._label_rows.update(block.labels_N)
        are_blank_NC = np.isnan(block.numbers_NC)
        have_blanks = set(np.flatnonzero(are_blank_NC.any(axis=0)).tolist())
        blank_rows: dict[str, list[int]] = {
            name: np.flatnonzero(are_blank_NC[:, place]).tolist()
            for name, place in self._places.items()
            if place in have_blanks and name in self._blanks
        } | {
            name: [row for row, value in enumerate(names) if not value]
            for name, names in zip(self._categorical, block.names_KN, strict=True)
            if name in self._blanks and not all(names)
        }
        for name, rows in blank_rows.items():
            blank = self._blanks[name]
            blank.update([block.labels_N[row] for row in rows])
            if any(count < self._label_rows[label] for label, count in blank.items()):
                del self._blanks[name]

    def _follow(self, name: str, values: Sequence[object], labels: Sequence[str], may_be_id: Sequence[bool]) -> None:
        known = self._labels.get(name)
        if known is not None:
            is_label = all(known.setdefault(value, label) == label for value, label in zip(values, labels, strict=True))
            if not is_label or len(known) > MAX_VALUES:
                del self._labels[name]
        seen = self._seen.get(name)
        if seen is not None:
            before = len(seen)
            if before < MAX_IDS:
                seen.update(values)
            is_id = all(may_be_id) and (before >= MAX_IDS or len(seen) == before + len(values))
            if not is_id:
                del self._seen[name]


def _leave_out(name: str) -> str:
    return f"leave it out with exclude={as_name(name)}"


class NumberLabels:
    """Figures of a label that is a number, and its correlation with each numeric column, over the training rows."""

    def __init__(self) -> None:
        self._label = ColumnFigures.of(1)
        #: For each column the number of rows, and the sums of x, y, x², y² and xy, each less the first row's values.
        self._sums: NDArray[np.float64] | None = None
        self._first: NDArray[np.float64] | None = None

    def add(self, block: RowBlock, is_training_N: NDArray[np.bool_]) -> None:
        """Count a block in."""
        y_N1 = np.array(block.labels_N, np.float64).reshape(-1, 1)[is_training_N]
        if not len(y_N1):
            return
        self._label.add(y_N1)
        x_NC = np.asarray(block.numbers_NC, np.float64)[is_training_N]
        if self._first is None or self._sums is None:
            self._first = np.concatenate([np.nan_to_num(x_NC[0]), y_N1[0]])
            self._sums = np.zeros((6, x_NC.shape[1]))
        there = ~np.isnan(x_NC)
        x_NC = np.where(there, x_NC - self._first[:-1], 0.0)
        y_NC = np.where(there, y_N1 - self._first[-1], 0.0)
        parts = (there.astype(np.float64), x_NC, y_NC, x_NC * x_NC, y_NC * y_NC, x_NC * y_NC)
        self._sums += np.stack([part.sum(0) for part in parts])

    def target(self) -> dict[str, float]:
        """Return mean and deviation of the label."""
        return {"mean": float(self._label.mean_C[0]), "deviation": float(self._label.deviation_C[0])}

    def findings(self, numeric: Sequence[str]) -> list[str]:
        """Return a sentence for each numeric column that says the label."""
        if self._sums is None:
            return []
        count, x, y, xx, yy, xy = self._sums[:, : len(numeric)]
        rows = np.maximum(count, 1)
        spread = np.sqrt(np.maximum((xx - x * x / rows) * (yy - y * y / rows), 0.0))
        together = np.divide(xy - x * y / rows, spread, out=np.zeros_like(spread), where=spread > 0)
        return [
            f"column {name!r} reveals the label: a linear fit explains it ({share:.6f}); {_leave_out(name)} unless "
            "it is known before the label"
            for name, share in zip(numeric, np.abs(together).tolist(), strict=True)
            if share > SAME
        ]
