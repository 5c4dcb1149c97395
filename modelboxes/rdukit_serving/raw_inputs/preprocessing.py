"""The preprocessing of a table as its own file next to the checkpoint: columns, figures, categories and classes.

One function turns rows into features, for training, batches and requests. Axes: N rows, F features, C classes.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rdukit.errors import InvalidArgument, NotFound, PefMismatch
from rdukit.files.atomic import write_json_atomic
from rdukit.pef.checkpoint_files import TABLE_FILE, read_identity, table_file
from rdukit.pef.identity import ModelIdentity
from rdukit_serving.raw_inputs.answers import NumberPrediction, NumberTarget, Prediction, predictions_of
from rdukit_serving.raw_inputs.encoding import OTHER, FeatureEncoding, Floats
from rdukit_serving.raw_inputs.layout import CATEGORY, DATE, NUMBER, UNFILLED, ColumnFault, TableLayout, TableRow

#: Version of the file's form; another one is refused.
VERSION: Final = 1


@dataclass(frozen=True, slots=True, eq=False)
class TablePreprocessing:
    """Everything between a row by column name and a model, and between the model and the name of a class."""

    layout: TableLayout
    encoding: FeatureEncoding
    #: Names of the classes, in the order of the model's outputs; empty if it predicts a number.
    classes: tuple[str, ...]
    #: For a numeric label.
    target: NumberTarget | None = None

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Return the features' names, in their order."""
        return self.encoding.feature_names(self.layout.numbers, self.layout.categorical)

    def features_of(self, rows: Sequence[TableRow]) -> Floats:
        """Return the features [N, F] of rows that ``check_columns`` accepts.

        Raises:
            ColumnFault: a value cannot be used; the error has the row's number, the column, and the expected values.
        """
        numbers: list[list[float]] = []
        names: list[list[str]] = []
        for index, row in enumerate(rows):
            try:
                found = self.layout.read(row, self.encoding.missing)
            except ColumnFault as fault:
                fault.row = index
                if fault.is_missing:
                    fault.legal = f"a value, as the model was trained with missing={self.encoding.missing}"
                raise
            numbers.append(found[0])
            names.append(found[1])
        numbers_NC: NDArray[np.float64] = np.array(numbers, np.float64).reshape(len(rows), len(self.layout.numbers))
        names_KN = [[name[index] for name in names] for index in range(len(self.layout.categorical))]
        return self.encoding.encode(numbers_NC, names_KN, self.layout.categorical)

    def check_columns(self, names: Sequence[str], *, allows_others: bool = False) -> None:
        """Compare a row's columns with those of the training table.

        Raises:
            InvalidArgument: a column is missing, or was absent in training and ``allows_others`` is off.
        """
        missing = [name for name in self.layout.columns if name not in names]
        if missing:
            raise InvalidArgument(
                f"column {missing[0]!r} is missing; expected {self._expected()} (null for unknown values)",
                column=missing[0],
            )
        known = {*self.layout.columns, *self.layout.others, self.layout.label}
        others = [name for name in names if name not in known]
        if others and not allows_others:
            raise InvalidArgument(
                f"column {others[0]!r} was not in the training table; expected {self._expected()}", column=others[0]
            )

    def predictions(self, logits_NC: NDArray[Any]) -> Sequence[Prediction]:
        """Return the answer for each row of a model's outputs [N, C], before a classifier's softmax."""
        if self.target is not None:
            return [NumberPrediction(value) for value in self.target.values(logits_NC[:, 0]).tolist()]
        return predictions_of(self.classes, logits_NC)

    def check_model(self, features: int, classes: int, identity: ModelIdentity | None, where: str) -> None:
        """Compare with a model's widths, and with the columns and classes that a checkpoint says.

        Raises:
            PefMismatch: they differ; names both values.
        """
        pairs: list[tuple[str, object, object]] = [
            ("features", self.encoding.features, features),
            ("classes", 1 if self.target else len(self.classes), classes),
        ]
        if identity is not None and identity.columns:
            pairs.append(("columns", list(self.feature_names), list(identity.columns)))
        if identity is not None and identity.classes:
            pairs.append(("class names", list(self.classes), list(identity.classes)))
        for name, own, other in pairs:
            if own != other:
                name, own, other = _first_difference(name, own, other)
                raise PefMismatch(
                    f"{where} belongs to another model: {name} is {own}, but {other} in the PEF or checkpoint; use the "
                    f"{TABLE_FILE} of the data set that the checkpoint was trained on"
                )

    def describe(self) -> dict[str, Any]:
        """Return the columns that a row has, for people and forms, and the classes."""
        categories = dict(zip(self.layout.categorical, self.encoding.categories, strict=True))
        is_filled = self.encoding.missing not in UNFILLED
        columns = []
        for name in self.layout.columns:
            kind = self.layout.kind_of(name)
            known = categories.get(name, ())
            may_miss = is_filled and (kind != CATEGORY or "" in known or OTHER in known)
            found: dict[str, Any] = {"name": name, "kind": kind, "may_be_null": may_miss}
            columns.append(found | ({"categories": [each for each in known if each]} if kind == CATEGORY else {}))
        predicts = NUMBER if self.target else "class"
        return {
            "columns": columns, "label": self.layout.label, "predicts": predicts, "classes": list(self.classes)
        }  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """Return the file's document."""
        layout = self.layout
        scale = {"mean": self.target.mean, "deviation": self.target.deviation} if self.target else {}
        return {
            "version": VERSION, "features": self.encoding.features,
            "columns": {NUMBER: layout.numeric, CATEGORY: layout.categorical, DATE: layout.dates},
            "others": layout.others, "label": {"column": layout.label, "classes": self.classes, **scale},
            "encoding": self.encoding.to_json(),
        }  # fmt: skip

    @classmethod
    def from_json(cls, value: object, where: str) -> "TablePreprocessing":
        """Read back what ``to_json`` wrote; ``where`` is for messages.

        Raises:
            InvalidArgument: the file is damaged, or of another version.
        """
        try:
            if not isinstance(value, Mapping):
                raise TypeError("it is not an object")
            if value["version"] != VERSION:
                raise InvalidArgument(
                    f"{where} has version {value['version']}; expected {VERSION}; preprocess and train again"
                )
            columns, label = value["columns"], value["label"]
            numeric, categorical, dates = (tuple(map(str, columns[kind])) for kind in (NUMBER, CATEGORY, DATE))
            others = tuple(map(str, value["others"]))
            layout = TableLayout(numeric, categorical, dates, str(label["column"]), others)
            classes = tuple(map(str, label["classes"]))
            target = NumberTarget(float(label["mean"]), float(label["deviation"])) if not classes else None
            found = cls(layout, FeatureEncoding.from_json(value["encoding"]), classes, target)
            if found.encoding.features != value["features"] or len(found.encoding.mean_C) != len(layout.numbers):
                raise ValueError("its figures belong to other columns")
            if len(found.encoding.categories) != len(layout.categorical):
                raise ValueError("its categories belong to other columns")
        except InvalidArgument:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as cause:
            raise InvalidArgument(f"{where} is damaged: {cause!r}; preprocess and train again") from cause
        return found

    def _expected(self) -> str:
        return ", ".join(f"{name} ({self.layout.kind_of(name)})" for name in self.layout.columns)


def _first_difference(name: str, own: object, other: object) -> tuple[str, object, object]:
    """Return what differs in two values that are compared, and both: of lists of equal length the first entry."""
    if isinstance(own, list) and isinstance(other, list) and len(own) == len(other):
        index = next(index for index, (one, two) in enumerate(zip(own, other, strict=True)) if one != two)
        return f"entry {index} of the {name}", repr(own[index]), repr(other[index])
    if isinstance(own, list) and isinstance(other, list):
        return f"number of {name}", len(own), len(other)
    return name, own, other


def write_preprocessing(folder: Path, preprocessing: TablePreprocessing) -> None:
    """Write the file into a folder, atomically."""
    write_json_atomic(folder / TABLE_FILE, preprocessing.to_json())


def find_preprocessing(checkpoint: Path) -> TablePreprocessing | None:
    """Read the preprocessing of a checkpoint; None if the model takes no table.

    Raises:
        InvalidArgument: the file is damaged, or of another version.
    """
    path = table_file(checkpoint)
    try:
        text = path.read_text()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as cause:
        raise InvalidArgument(f"{path} cannot be read: {cause}") from cause
    try:
        value = json.loads(text)
    except ValueError as cause:
        raise InvalidArgument(f"{path} is damaged: {cause}; preprocess and train again") from cause
    return TablePreprocessing.from_json(value, str(path))


def open_preprocessing(checkpoint: Path, features: int, classes: int) -> TablePreprocessing:
    """Read the preprocessing of a checkpoint for a model of these widths.

    Raises:
        NotFound: the checkpoint has none.
        InvalidArgument: the file is damaged, or of another version. PefMismatch: the file belongs to another model.
    """
    found = find_preprocessing(checkpoint)
    if found is None:
        raise NotFound(
            f"{checkpoint} has no {TABLE_FILE}, which rows by column name need; train on a table that "
            "preprocess read from CSV, JSON lines or Parquet"
        )
    found.check_model(features, classes, read_identity(checkpoint), str(table_file(checkpoint)))
    return found


def read_features(table: TablePreprocessing, rows: Sequence[TableRow]) -> Floats:
    """Return the features [N, F] of the rows of a request.

    Raises:
        InvalidArgument: a row is not an object, lacks a column, has an unknown one, or has an unusable value.
    """
    for index, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise InvalidArgument(
                f"row {index} is not an object; expected values by column name", row=index, field="rows"
            )
        try:
            table.check_columns(tuple(row))
        except InvalidArgument as error:
            raise InvalidArgument(f"row {index}: {error.message}", **error.detail, row=index, field="rows") from None
    try:
        return table.features_of(rows)
    except ColumnFault as fault:
        raise InvalidArgument(
            f"row {fault.row}, column {fault.column!r}: {fault.reason}; expected {fault.legal}",
            row=fault.row, column=fault.column, field="rows",
        ) from None  # fmt: skip
