"""Requests of the OpenAI-style routes: which fields are legal, what they become, and which field an error names."""

import json
from typing import Any

import pytest

from rdukit.errors import InvalidArgument
from rdukit_serving.device.messages import MAX_PACKET_BYTES, PART, LongPrompt, cut, cut_options, encode
from rdukit_serving.text.answers import Tally
from rdukit_serving.text.chat_template import PLAIN, ChatTemplate
from rdukit_serving.text.openai_values import ChatBody, CompletionBody, parse_body
from rdukit_serving.text.queue import Done
from support import shows

pytestmark = shows("inference", "text-models", "text-apis")


def completion(**fields: Any) -> CompletionBody:
    return parse_body(CompletionBody, json.dumps({"model": "m", "prompt": "one", **fields}).encode())


def test_each_prompt_has_its_choices_with_seeds_of_their_own() -> None:
    requests = completion(prompt=["a", "b"], n=2, best_of=2, seed=7, logit_bias={"5": -1}).requests()
    assert [request.prompt for request in requests] == ["a", "a", "b", "b"]
    assert [request.sampling["seed"] for request in requests] == [7, 8, 7, 8]
    assert requests[0].sampling["bias"] == [(5, -1.0)]
    assert (requests[0].max_tokens, requests[0].echo) == (16, False)
    assert completion(max_tokens=0, echo=True).requests()[0].max_tokens == 0


def test_a_stop_is_a_text_or_as_many_as_are_short_enough_together() -> None:
    assert completion(stop="longer than four").stops() == ["longer than four"]
    assert completion(stop=["\n\nHuman:", "b"]).stops() == ["\n\nHuman:", "b"]
    assert len(completion(stop=["\n"] * 1000).stops()) == 1000
    assert completion(stop=[]).stops() == completion().stops() or not completion(stop=[]).stops()


@pytest.mark.parametrize(
    ("fields", "place", "words"),
    [
        ({"stop": ["a" * 500] * 17}, "stop", "8500 characters together; expected at most 8192"),
        ({"stop": ""}, "stop", "at least 1"),
        ({"stop": 5}, "stop", "valid"),
        ({"stop": ["ok", 5]}, "stop.1", "valid string"),
        ({"logit_bias": {"a": 1}}, "logit_bias.a", "valid integer"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5", "less than or equal to 100"),
        ({"n": 1025}, "n", "less than or equal to 1024"),
        ({"frequency_penalty": 3}, "frequency_penalty", "less than or equal to 2"),
        ({"presence_penalty": -3}, "presence_penalty", "greater than or equal to -2"),
        ({"min_p": 1.5}, "min_p", "less than or equal to 1"),
        ({"repetition_penalty": 0}, "repetition_penalty", "greater than 0"),
        ({"reasoning_effort": "low"}, "reasoning_effort", "it is not a field of this request; leave it out"),
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
        ({"best_of": 3, "n": 2}, "best_of", "3 is not valid; expected 2, the value of n"),
        ({"max_tokens": 0}, "max_tokens", "valid only with echo"),
        ({"prompt": ["a"] * 100, "n": 101}, "prompt", "10100 texts are requested; expected at most 10000"),
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


def test_options_of_a_stream_say_nothing_without_one() -> None:
    assert not completion(stream_options={"include_usage": True}).wants_usage()
    assert completion(stream_options={"include_usage": True}, stream=True).wants_usage()
    assert not completion(stream=True).wants_usage()


def test_a_chat_without_a_limit_fills_the_context_and_the_newer_name_of_the_limit_wins() -> None:
    def limit(**fields: int) -> int | None:
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
        return parse_body(ChatBody, json.dumps(body).encode()).requests("hi", PLAIN)[0].max_tokens

    assert limit() is None
    assert limit(max_tokens=3) == 3
    assert limit(max_tokens=3, max_completion_tokens=4) == 4


def chat(*messages: dict[str, Any], **fields: Any) -> ChatBody:
    return parse_body(ChatBody, json.dumps({"model": "m", "messages": messages, **fields}).encode())


CALL = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"word": "x"}'}}


def test_a_chat_with_calls_and_their_answers_comes_to_a_template_as_templates_read_it() -> None:
    body = chat(
        {"role": "developer", "content": [{"type": "text", "text": "be "}, {"type": "text", "text": "short"}]},
        {"role": "user", "content": "hi"},
        # What a client sends back of an answer.
        {"role": "assistant", "content": None, "refusal": None, "annotations": [], "audio": None,
         "function_call": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "found", "tool_call_id": "c1"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        chat_template_kwargs={"enable_thinking": False}, reasoning_effort="low",
    )  # fmt: skip
    messages, values = body.for_template(ChatTemplate("{{ messages }}"))
    call = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": {"word": "x"}}}
    assert messages == [
        {"role": "system", "content": "be short"},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "found", "tool_call_id": "c1"},
        {"role": "assistant", "content": "no"},
    ]
    assert values == {"enable_thinking": False, "reasoning_effort": "low"}


@pytest.mark.parametrize(
    ("message", "fields", "place", "words"),
    [
        ({"role": "user", "content": None}, {}, "messages.0", "content is missing"),
        ({"role": "user", "content": "x", "tool_calls": [CALL]}, {}, "messages.0", "only with the role assistant"),
        ({"role": "tool", "content": "x"}, {}, "messages.0", "needs tool_call_id"),
        ({"role": "user", "content": [{"type": "image_url"}]}, {}, "messages.0.content.0", "image_url"),
        ({"role": "user", "content": "x"}, {"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs",
         "messages is reserved for the chat"),
        ({"role": "user", "content": "x"}, {"reasoning_effort": "huge"}, "reasoning_effort", "'low'"),
    ],
)  # fmt: skip
def test_a_chat_that_is_wrong_is_refused_by_its_place(
    message: dict[str, Any], fields: dict[str, Any], place: str, words: str
) -> None:
    with pytest.raises(InvalidArgument, match=words) as caught:
        chat(message, **fields)
    assert caught.value.detail["field"] == place


def test_the_vendors_sampling_fields_become_options() -> None:
    def sampling(**fields: Any) -> Any:
        return completion(**fields).requests()[0].sampling

    assert sampling(do_sample=False, temperature=1.5)["temperature"] == 0.0
    assert sampling(do_sample=True, temperature=1.5)["temperature"] == 1.5
    assert sampling(top_k=-1)["top_k"] == 0
    found = sampling(min_p=0.1, repetition_penalty=1.2, ignore_eos=True)
    assert (found["min_p"], found["repetition_penalty"], found["ignore_eos"]) == (0.1, 1.2, True)


def test_usage_tells_tokens_seconds_and_tokens_a_second() -> None:
    tally = Tally(began_s=100.0, first_s=101.0)
    tally.count(Done("", "length", 8, 5), is_new_prompt=True)
    tally.count(Done("", "stop", 8, 6), is_new_prompt=False)
    usage = tally.usage(105.0)
    assert [usage[key] for key in ("prompt_tokens", "completion_tokens", "total_tokens")] == [8, 11, 19]
    assert (usage["start_time"], usage["end_time"], usage["stop_reason"]) == (100.0, 105.0, "stop")
    assert (usage["time_to_first_token"], usage["total_latency"]) == (1.0, 5.0)
    assert usage["completion_tokens_per_sec"] == pytest.approx(11 / 5)
    assert usage["completion_tokens_after_first_per_sec"] == pytest.approx(10 / 4)
    assert usage["total_tokens_per_sec"] == pytest.approx(19 / 5)
    assert Tally(began_s=1.0).usage(1.0)["completion_tokens_per_sec"] == 0.0


def test_biases_and_tools_are_as_many_as_a_body_holds() -> None:
    (request,) = completion(logit_bias={str(token): 1 for token in range(50_000)}).requests()
    assert len(request.message()["sampling"]["bias"]) == 50_000
    tools = [{"type": "function", "function": {"name": f"tool_{number}"}} for number in range(500)]
    assert len(chat({"role": "user", "content": "x"}, tools=tools).tools or ()) == 500


def test_long_options_are_put_together_from_parts_that_fit_into_packets() -> None:
    options = json.dumps({"form": ["json", '{"enum": ["\\é"]}' * 9000, "f"]})
    together = LongPrompt()
    for at, part in cut_options(options):
        assert len(encode(kind="options", number=2**31, at=at, part=part)) < MAX_PACKET_BYTES
        together.add(at, part)
    assert together.take() == options


@pytest.mark.parametrize("prompt", ["é" * (2 * PART + 1), list(range(PART)), "a"])
def test_a_prompt_that_was_cut_is_put_together_again(prompt: Any) -> None:
    together = LongPrompt()
    together.add(0, "of a caller that went away")
    for at, part in cut(prompt):
        assert len(part) <= PART
        together.add(at, part)
    assert together.take() == prompt
    assert not together.take()
