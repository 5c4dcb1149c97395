"""Data are held to the model: sizes by name, and integers by what they choose from."""

from typing import Any

import numpy as np
import pytest

from rdukit.errors import InvalidArgument
from rdukit_modelbox.preprocessing.arrays import array_forms, sizes_made_for
from rdukit_modelbox.preprocessing.data_rules import ValueLimit, check_sizes, check_values
from rdukit_zoo.registry import ModelEntry, get_model, model_names
from support import shows

pytestmark = shows("training", "preprocess")

ARRAY_MODELS = [
    name
    for name in model_names()
    if get_model(name).task not in {"classification", "language-modelling", "text-to-text", "speech-to-text"}
]


def test_each_size_that_differs_is_named_with_both_values() -> None:
    check_sizes({"image_size": 28, "num_classes": 3, "samples": 9}, {"image_size": 28, "num_classes": 3})
    words = "image_size: 32 in the data set, 28 in the PEF; num_classes: 3 in the data set, 4 in the PEF; compile with"
    with pytest.raises(InvalidArgument, match=words):
        check_sizes({"image_size": 32, "num_classes": 3}, {"image_size": 28, "num_classes": 4})


@pytest.mark.parametrize("wrong", [3, -1, -100])
def test_a_value_that_nothing_stands_for_is_named_with_its_place(wrong: int) -> None:
    limit = ValueLimit(3, "num_classes")
    check_values("the train split's label", np.array([0, 2]), limit)
    with pytest.raises(
        InvalidArgument, match=f"train split's label has the value {wrong}; expected 0 to 2, as num_classes"
    ):
        check_values("the train split's label", np.array([0, wrong, 2]), limit)


def test_only_targets_may_say_that_they_do_not_count_and_floats_choose_nothing() -> None:
    check_values("label", np.array([0, -100, 2]), ValueLimit(3, allows_ignored=True))
    check_values("label", np.array([9.5]), ValueLimit(3))
    check_values("label", np.zeros(0, np.int64), ValueLimit(3))
    with pytest.raises(InvalidArgument, match="has the value 7; expected 0 to 2, because there are 3 choices"):
        check_values("label", np.array([-100, 7]), ValueLimit(3, allows_ignored=True))


@pytest.mark.parametrize("model", ARRAY_MODELS)
def test_each_array_of_integers_has_a_limit_but_a_mask_of_tokens(model: str) -> None:
    entry = get_model(model)
    forms = array_forms(entry, entry.sizes)
    assert [form.name for form in forms if form.dtype == "int64" and form.limit is None] in ([], ["mask"])
    assert not [form.name for form in forms if form.dtype != "int64" and form.limit is not None]


def test_of_an_own_model_targets_are_classes_and_indices_have_the_rows_of_their_table() -> None:
    def make_inputs(batch_size: int, **sizes: Any) -> tuple[Any, ...]:
        return get_model("bert_classifier").make_inputs(batch_size, **get_model("bert_classifier").sizes)

    entry = ModelEntry("own", "", "sequence-classification", "", "", {"num_classes": 4}, object, make_inputs)  # type: ignore[arg-type]
    tokens, types, mask, label = array_forms(entry, {"num_classes": 4}, {"tokens": 50})
    assert tokens.limit == ValueLimit(50) and types.limit is mask.limit is None
    assert label.limit == ValueLimit(4, "num_classes", allows_ignored=True)


def test_a_data_set_depends_on_the_sizes_that_its_arrays_or_classes_have() -> None:
    entry = get_model("vit")
    said = {"sizes": {**entry.sizes, "width": 8, "channels": 3, "num_classes": 2}}
    assert sizes_made_for(said, entry, entry.sizes) == {"channels": 3, "num_classes": 2}
    assert sizes_made_for({}, entry, entry.sizes) == {}
