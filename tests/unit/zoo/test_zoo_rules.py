"""The default fusion rules take nine tenths and more of the operators with arithmetic of each language model."""

import pytest

from support import shows
from support.zoo_rules import LANGUAGE, unmatched_operators

pytestmark = shows(
    "zoo", "o1", "bert", "bert-classifier", "bert-embedder", "bloom", "falcon", "genslm", "gpt2", "llama"
)


def test_the_language_models_are_those_of_the_zoo() -> None:
    assert set(LANGUAGE) == {
        "bert", "bert_classifier", "bert_embedder", "bloom", "decoder", "falcon", "gpt2", "llama", "neox",
    }  # fmt: skip


@pytest.mark.parametrize("name", LANGUAGE)
def test_the_rules_leave_less_than_a_tenth_of_a_language_model(name: str) -> None:
    left, carrying = unmatched_operators(name)
    assert carrying > 80
    assert left.total() < 0.1 * carrying, left
