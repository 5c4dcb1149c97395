"""Vectors with fewer dimensions: only of models that state them, and with length 1 again."""

import json
from pathlib import Path
from typing import Any

import pytest

from rdukit.errors import InvalidArgument
from rdukit_serving.text.openai_values import EmbeddingBody, parse_body
from rdukit_serving.text.short_vectors import check_dimensions, shorten, stated_dimensions
from support import shows

pytestmark = shows("text-models", "hub-files")


@pytest.mark.parametrize(
    ("known", "valid", "refused", "words"),
    [
        ({}, [8], [4, 9], "expected 8, which this model's vectors have"),
        ({"is_matryoshka": False}, [8], [4], "states no shorter ones"),
        ({"is_matryoshka": True}, [1, 4, 8], [9], "expected 1 to 8"),
        ({"matryoshka_dimensions": [2, 4, 64]}, [2, 4, 8], [3, 64], "expected one of 2, 4, 8"),
        ({"matryoshka_dimensions": [64]}, [8], [4, 64], "expected one of 8"),
        ({"matryoshka_dimensions": [2], "is_matryoshka": True}, [2], [4], "expected one of 2, 8"),
    ],
)
def test_a_model_gives_the_dimensions_that_it_states(
    tmp_path: Path, known: dict[str, Any], valid: list[int], refused: list[int], words: str
) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps(known))
    for dimensions in valid:
        check_dimensions(tmp_path, dimensions, 8)
    for dimensions in refused:
        with pytest.raises(InvalidArgument, match=words) as caught:
            check_dimensions(tmp_path, dimensions, 8)
        assert caught.value.detail["field"] == "dimensions"
    check_dimensions(None, 8, 8)


@pytest.mark.parametrize(
    "known", [{"is_matryoshka": 1}, {"matryoshka_dimensions": 4}, {"matryoshka_dimensions": [True]},
              {"matryoshka_dimensions": [0]}],
)  # fmt: skip
def test_a_configuration_that_states_no_numbers_is_refused(known: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=r"config\.json: is_matryoshka is .*; expected true or false, and a list"):
        stated_dimensions(known, "config.json")


def test_the_beginning_of_a_vector_of_length_one_has_length_one() -> None:
    assert shorten([0.6, 0.0, 0.8], 2) == [1.0, 0.0]
    assert shorten([0.6, 0.0, 0.8], 3) == [0.6, 0.0, 0.8]
    assert shorten([3.0, 4.0, 5.0], 2) == [3.0, 4.0]
    assert shorten([0.0, 0.0, 1.0], 2) == [0.0, 0.0]


def test_fields_that_clients_send_without_a_wish_are_taken() -> None:
    sent = {"model": "m", "input": "x", "encoding_format": None, "dimensions": None, "user": None}
    assert parse_body(EmbeddingBody, json.dumps({**sent, "truncate_prompt_tokens": None}).encode()).inputs() == ["x"]
    with pytest.raises(InvalidArgument, match="truncate_prompt_tokens is not served here"):
        parse_body(EmbeddingBody, json.dumps({**sent, "truncate_prompt_tokens": 3}).encode())
