"""Requests of the OpenAI-style routes: which fields are legal, what they become, and which field an error names."""

import json
from typing import Any

import pytest

from rdukit.errors import InvalidArgument
from rdukit_serving.device.messages import PART, LongPrompt, cut
from rdukit_serving.text.openai_values import ChatBody, CompletionBody, parse_body


def completion(**fields: Any) -> CompletionBody:
    return parse_body(CompletionBody, json.dumps({"model": "m", "prompt": "one", **fields}).encode())


def test_each_prompt_has_its_choices_with_seeds_of_their_own() -> None:
    requests = completion(prompt=["a", "b"], n=2, best_of=2, seed=7, logit_bias={"5": -1}).requests()
    assert [request.prompt for request in requests] == ["a", "a", "b", "b"]
    assert [request.sampling["seed"] for request in requests] == [7, 8, 7, 8]
    assert requests[0].sampling["bias"] == [(5, -1.0)]
    assert (requests[0].max_tokens, requests[0].echo) == (16, False)
    assert completion(max_tokens=0, echo=True).requests()[0].max_tokens == 0


def test_a_stop_is_a_text_or_up_to_four_of_any_length_to_a_limit() -> None:
    assert completion(stop="longer than four").stops() == ["longer than four"]
    assert completion(stop=["\n\nHuman:", "b"]).stops() == ["\n\nHuman:", "b"]
    assert completion(stop=[]).stops() == completion().stops() or not completion(stop=[]).stops()


@pytest.mark.parametrize(
    ("fields", "place", "words"),
    [
        ({"stop": ["a"] * 5}, "stop", "at most 4"),
        ({"stop": ""}, "stop", "at least 1"),
        ({"stop": 5}, "stop", "valid"),
        ({"stop": ["ok", 5]}, "stop.1", "valid string"),
        ({"logit_bias": {"a": 1}}, "logit_bias.a", "valid integer"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5", "less than or equal to 100"),
        ({"logit_bias": {str(token): 0 for token in range(301)}}, "logit_bias", "at most 300"),
        ({"frequency_penalty": 3}, "frequency_penalty", "less than or equal to 2"),
        ({"presence_penalty": -3}, "presence_penalty", "greater than or equal to -2"),
        ({"reasoning_effort": "low"}, "reasoning_effort", "it is no field of this request; leave it out"),
        ({"suffix": "x"}, "suffix", "is not served here; leave it out"),
        ({"prompt": []}, "prompt", "at least 1"),
        ({"prompt": [2**31]}, "prompt.0", "less than"),
        ({"max_tokens": -1}, "max_tokens", "greater than or equal to 0"),
    ],
)
def test_an_error_names_the_field_as_the_caller_wrote_it(fields: dict[str, Any], place: str, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words) as caught:
        completion(**fields)
    assert caught.value.detail["field"] == place


@pytest.mark.parametrize(
    ("fields", "place", "words"),
    [
        ({"best_of": 3, "n": 2}, "best_of", "3 is not legal; legal: 2, as n"),
        ({"max_tokens": 0}, "max_tokens", "legal only with echo"),
    ],
)
def test_fields_that_do_not_go_together_are_refused(fields: dict[str, Any], place: str, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words) as caught:
        completion(**fields).requests()
    assert caught.value.detail["field"] == place


@pytest.mark.parametrize(
    "body",
    ['{"model": "m", "prompt": "a", "seed": 1, "seed": 2}', '{"model": "m", "seed": 1, "prompt": "b", "seed": 1}'],
)
def test_a_field_that_comes_twice_is_refused_by_its_name(body: str) -> None:
    with pytest.raises(InvalidArgument, match="the key 'seed' twice") as caught:
        parse_body(CompletionBody, body.encode())
    assert caught.value.detail["field"] == "seed"


def test_options_of_a_stream_need_a_stream() -> None:
    with pytest.raises(InvalidArgument, match="stream_options is legal only with stream"):
        completion(stream_options={"include_usage": True}).wants_usage()
    assert completion(stream_options={"include_usage": True}, stream=True).wants_usage()
    assert not completion(stream=True).wants_usage()


def test_a_chat_without_a_limit_fills_the_context_and_the_newer_name_of_the_limit_wins() -> None:
    def limit(**fields: int) -> int | None:
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
        return parse_body(ChatBody, json.dumps(body).encode()).requests("hi")[0].max_tokens

    assert limit() is None
    assert limit(max_tokens=3) == 3
    assert limit(max_tokens=3, max_completion_tokens=4) == 4


@pytest.mark.parametrize("prompt", ["é" * (2 * PART + 1), list(range(PART)), "a"])
def test_a_prompt_that_was_cut_is_put_together_again(prompt: Any) -> None:
    together = LongPrompt()
    together.add(0, "of a caller that went away")
    for at, part in cut(prompt):
        assert len(part) <= PART
        together.add(at, part)
    assert together.take() == prompt
    assert not together.take()
