"""``generation_config.json`` beside a checkpoint gives the options of sampling that a request leaves out."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models

from rdukit.errors import InvalidArgument
from rdukit_serving.shape import TextSizes
from rdukit_serving.text.constraints import Constraints
from rdukit_serving.text.generation import Generation, ModelTokens
from rdukit_serving.text.generation_config import sampling_defaults
from rdukit_serving.text.openai_values import CompletionBody
from rdukit_serving.text.sampling import SamplingOptions
from rdukit_serving.text.token_bytes import TokenBytes
from support import shows

pytestmark = shows("huggingface", "inference")


def write(folder: Path, **values: object) -> Path:
    (folder / "generation_config.json").write_text(json.dumps(values))
    return folder


def options_of(folder: Path, **fields: object) -> SamplingOptions:
    """Return the options of a text that a request with these fields asks for."""
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    constraints = Constraints(tokenizer.to_str(), 2, frozenset())
    tokens = ModelTokens(tokenizer, TokenBytes(tokenizer), constraints, frozenset(), sampling_defaults(folder))
    body = CompletionBody.model_validate({"model": "m", "prompt": [0, 1], **fields})
    (request,) = body.requests()
    message = {"number": 1, **request.message()}
    made = Generation([0, 1], message, tokens, TextSizes(8, 4, 2, 2), lambda number, **event: None)
    return made._sampler._options


def test_a_request_wins_over_the_file_and_the_file_over_the_api(tmp_path: Path) -> None:
    folder = write(tmp_path, temperature=0.6, top_p=0.8, top_k=20, repetition_penalty=1.05, do_sample=True)
    found = options_of(folder, temperature=1.5, top_k=-1)
    assert (found.temperature, found.top_p, found.top_k, found.repetition_penalty) == (1.5, 0.8, 0, 1.05)
    found = options_of(folder, do_sample=False)
    assert (found.temperature, found.top_k) == (0.0, 20)


def test_a_file_that_does_not_sample_is_greedy_and_without_one_the_apis_defaults_hold(tmp_path: Path) -> None:
    assert options_of(tmp_path) == SamplingOptions(bias=[])
    folder = write(tmp_path, do_sample=False, temperature=0.7, eos_token_id=1)
    assert options_of(folder).temperature == 0.0
    assert options_of(folder, temperature=0.4).temperature == 0.4
    assert options_of(folder, do_sample=True).temperature == 1.0


@pytest.mark.parametrize(
    ("values", "words"),
    [({"temperature": 3.0}, "temperature is 3.0; expected 0 <= x <= 2"), ({"top_k": "many"}, "is damaged")],
)
def test_a_value_that_is_none_is_refused_with_the_file(tmp_path: Path, values: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"generation_config\.json.*{words}"):
        sampling_defaults(write(tmp_path, **values))
