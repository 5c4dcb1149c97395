"""Classes of a classifier's data and of its folder, and the conversion of the data to arrays.

A head with other classes than the data's is replaced; the rest of the model keeps its weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from rdukit.errors import InvalidArgument
from rdukit_modelbox.preprocessing.columns import MAX_CATEGORIES, are_class_numbers
from rdukit_modelbox.preprocessing.passages import read_cell, read_class
from rdukit_modelbox.preprocessing.picture_rows import classes_of_pictures
from rdukit_modelbox.preprocessing.row_run import TABLES
from rdukit_modelbox.preprocessing.sources import RowErrors, find_sources
from rdukit_modelbox.preprocessing.table_rows import rows_of
from rdukit_zoo.checkpoints.folder import HubFolder, identity_of
from rdukit_zoo.registry import SizeValue

TEXTS: Final = "sequence-classification"
PICTURES: Final = "image-classification"
CLASSES: Final = "num_classes"
TEXT_COLUMN, LABEL_COLUMN = "text", "label"
#: Value of ``problem_type`` in ``config.json`` that is trained.
_ONE_CLASS: Final = "single_label_classification"


@dataclass(frozen=True, slots=True)
class ChosenClasses:
    """Classes of the data: their number, their ordered names (empty for numbers), and whether the head is new."""

    count: int
    names: tuple[str, ...]
    replaces_head: bool


def choose_classes(hub: HubFolder, data: Path) -> ChosenClasses:
    """Compare the classes of the data with those of a classifier's folder.

    Raises:
        NotFound, InvalidArgument: there are no data, a row has no class (names file and line), all rows have the same
            class, or the folder's model predicts several classes or a number.
    """
    problem = hub.config.get("problem_type")
    if problem not in (None, _ONE_CLASS):
        raise InvalidArgument(
            f"{hub.path}/config.json: problem_type is {problem!r}; expected {_ONE_CLASS!r} or none, because each "
            "sample has one class"
        )
    known = identity_of(hub).classes
    if hub.entry.task == PICTURES:  # the names of folders count, also if they are numbers
        found = classes_of_pictures(data)
        is_numbered = not known and found == tuple(map(str, range(len(found))))
    else:
        found = _text_classes(data)
        is_numbered = are_class_numbers(found)
    count = int(max(found, key=int)) + 1 if is_numbered else len(found)
    names = () if is_numbered else found
    is_same = count == hub.sizes[CLASSES] and (not names or not known or names == known)
    if count < 2:
        raise InvalidArgument(f"{data.name} has only the class {found[0]}; expected two or more classes")
    return ChosenClasses(count, names or (known if is_same else ()), not is_same)


def _text_classes(data: Path) -> tuple[str, ...]:
    found: set[str] = set()
    for source in find_sources(data, "**/*", "auto", TABLES):
        for line, row in rows_of(source, RowErrors(skips=False, may_skip=False), [0]):
            for column in (TEXT_COLUMN, LABEL_COLUMN):
                value = row.get(column)
                if value is None or not str(value).strip():
                    raise InvalidArgument(
                        f"{source.name}:{line}: no {column}; expected {TEXT_COLUMN} and {LABEL_COLUMN} in each row",
                        file=source.name, line=line, column=column,
                    )  # fmt: skip
            read_cell(source, line, TEXT_COLUMN, row[TEXT_COLUMN])
            found.add(read_class(source, line, LABEL_COLUMN, row[LABEL_COLUMN]))
            if len(found) > MAX_CATEGORIES:
                raise InvalidArgument(
                    f"{source.name}:{line}: over {MAX_CATEGORIES} different labels; expected a class in {LABEL_COLUMN}",
                    file=source.name, line=line, column=LABEL_COLUMN,
                )  # fmt: skip
    if not found:
        raise InvalidArgument(f"{data.name} has no rows; expected rows with {TEXT_COLUMN} and {LABEL_COLUMN}")
    return tuple(sorted(found))


def new_head(hub: HubFolder, sizes: Mapping[str, SizeValue], seed: int) -> dict[str, torch.Tensor]:
    """Return the tensors of a model that depend on the number of classes, newly drawn."""
    other = {**sizes, CLASSES: int(sizes[CLASSES]) + 1}
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in hub.entry.build(**other).state_dict().items()}
    torch.manual_seed(seed)
    made = hub.entry.build(**sizes).state_dict()
    return {name: tensor.clone() for name, tensor in made.items() if tensor.shape != shapes[name]}
