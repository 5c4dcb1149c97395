"""Fields that clients send: obeyed, taken without effect, or refused with the nearest name; the table."""

import json
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel

from rdukit.errors import InvalidArgument
from rdukit_serving.text.anthropic_messages import CountBody, MessagesBody, messages_error
from rdukit_serving.text.chat_template import PLAIN
from rdukit_serving.text.constraints import FormKind, TextForm
from rdukit_serving.text.field_table import fields_of
from rdukit_serving.text.openai_responses import ResponseBody
from rdukit_serving.text.openai_values import ChatBody, CompletionBody, parse_body
from rdukit_serving.text.sampling import Sampler, SamplingOptions
from rdukit_serving.text.studio_generic import GenericParams
from support import shows

pytestmark = shows("text-fields")

SAID: Any = [{"role": "user", "content": "x"}]
ASKED: dict[type[BaseModel], dict[str, Any]] = {
    CompletionBody: {"model": "m", "prompt": "x"},
    ChatBody: {"model": "m", "messages": SAID},
    ResponseBody: {"model": "m", "input": "x"},
    MessagesBody: {"model": "m", "messages": SAID, "max_tokens": 5},
}


def read(kind: Any, **fields: Any) -> Any:
    return parse_body(kind, json.dumps({**ASKED[kind], **fields}).encode())


@pytest.mark.parametrize(
    ("api", "kind"),
    [("completions", CompletionBody), ("chat", ChatBody), ("responses", ResponseBody), ("messages", MessagesBody),
     ("studio", GenericParams)],
)  # fmt: skip
def test_the_manual_has_each_field_of_an_api_and_no_other(api: str, kind: type[BaseModel]) -> None:
    assert fields_of(api) == {each.alias or name for name, each in kind.model_fields.items()}


def test_a_thread_of_messages_is_refused_so_that_clients_go_on_without_it() -> None:
    assert read(MessagesBody, thread=None).messages
    with pytest.raises(InvalidArgument) as caught:
        read(MessagesBody, thread={"type": "create"})
    error: Any = messages_error(caught.value)["error"]
    assert error["details"] == {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    with pytest.raises(InvalidArgument) as other:
        read(MessagesBody, container="x")
    assert set(messages_error(other.value)["error"]) == {"type", "message"}  # type: ignore[call-overload]


def test_a_count_has_the_fields_of_a_message_that_say_nothing_of_its_answer() -> None:
    assert CountBody.model_fields.keys() < MessagesBody.model_fields.keys()


def test_vllms_fields_are_obeyed_by_each_api() -> None:
    fields = {
        "min_tokens": 2,
        "stop_token_ids": [7],
        "skip_special_tokens": False,
        "top_k": 3,
        "repetition_penalty": 1.1,
    }
    chats = [read(ChatBody, **fields), read(ResponseBody, **fields).chat(), read(MessagesBody, **fields).chat()]
    requests = [*(chat.requests("x", PLAIN)[0] for chat in chats), read(CompletionBody, **fields).requests()[0]]
    for request in requests:
        sampling = request.sampling
        assert (sampling["min_tokens"], sampling["stop_tokens"], sampling["top_k"]) == (2, [7], 3)
        assert sampling["repetition_penalty"] == 1.1 and request.keeps_special


@pytest.mark.parametrize(
    ("fields", "form"),
    [
        ({"guided_json": {"type": "integer"}}, (FormKind.JSON, '{"type": "integer"}')),
        ({"guided_json": '{"type": "integer"}'}, (FormKind.JSON, '{"type": "integer"}')),
        ({"guided_regex": "a+"}, (FormKind.REGEX, "a+")),
        ({"guided_choice": ["a", "b"], "guided_decoding_backend": "auto"}, (FormKind.GRAMMAR, 'start: "a" | "b"')),
        ({"guided_grammar": 'start: "x"'}, (FormKind.GRAMMAR, 'start: "x"')),
    ],
)
def test_vllms_older_names_of_forms_are_obeyed(fields: dict[str, Any], form: tuple[str, str]) -> None:
    assert read(ChatBody, **fields).form() == TextForm(*form, field=next(iter(fields)))


@pytest.mark.parametrize("kind", [ChatBody, CompletionBody, ResponseBody])
def test_fields_that_say_nothing_to_a_model_are_taken(kind: type[BaseModel]) -> None:
    fields = {
        "prompt_cache_key": "k", "prompt_cache_retention": "24h", "safety_identifier": "s", "service_tier": "auto",
        "metadata": {"a": "b"}, "user": "u", "store": False,
    }  # fmt: skip
    assert read(kind, **fields)


def test_fields_of_one_api_that_say_nothing_are_taken() -> None:
    prediction = {"type": "content", "content": "x"}
    assert read(ChatBody, verbosity="low", prediction=prediction, n=1, modalities=["text"], use_beam_search=False)
    assert read(ResponseBody, text={"verbosity": "high"}, previous_response_id=None, max_tool_calls=None)
    assert read(MessagesBody, service_tier="auto", container=None, mcp_servers=[], cache_control={"type": "ephemeral"})


@pytest.mark.parametrize(
    ("kind", "fields", "words"),
    [
        (
            ChatBody,
            {"temprature": 1},
            "temprature: it is not a field of this request; leave it out, or write temperature",
        ),
        (ChatBody, {"max_new_tokens": 1}, "or write max_tokens"),
        (ChatBody, {"stop_sequences": ["a"]}, "or write stop"),
        (CompletionBody, {"functions": [{}]}, "functions is not served here; leave it out"),
        (ChatBody, {"length_penalty": 2.0}, "length_penalty is not served here; leave it out"),
        (ChatBody, {"use_beam_search": True}, "use_beam_search is not served here; leave it out"),
        (ChatBody, {"entirely_unknown": 1}, "entirely_unknown: it is not a field of this request; leave it out"),
        (ResponseBody, {"max_tokens": 1}, "or write max_output_tokens"),
        (ResponseBody, {"previous_response_id": "r"}, "previous_response_id is not served here"),
        (MessagesBody, {"stop": ["a"]}, "or write stop_sequences"),
        (MessagesBody, {"container": "c"}, "container is not served here"),
        (CompletionBody, {"messages": []}, "or write prompt"),
    ],
)
def test_a_field_that_is_not_served_is_refused_with_the_nearest_name(
    kind: type[BaseModel], fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        read(kind, **fields)
    assert caught.value.message.endswith(words) or words in caught.value.message
    assert caught.value.detail["field"] == next(iter(fields))


@pytest.mark.parametrize(
    ("fields", "place", "words"),
    [
        ({"min_tokens": 9, "max_tokens": 3}, "min_tokens", "9 is above max_tokens, 3"),
        ({"guided_json": "{"}, "guided_json", "not a form of kind json"),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_regex", "a text has one form"),
        ({"guided_regex": "a", "structured_outputs": {"regex": "b"}}, "guided_regex", "a text has one form"),
    ],
)
def test_values_that_do_not_go_together_are_refused(fields: dict[str, Any], place: str, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words) as caught:
        read(ChatBody, **fields).requests("x", PLAIN)
    assert caught.value.detail["field"] == place


def test_no_token_that_ends_a_text_is_chosen_before_the_least() -> None:
    logits = np.array([0.0, 5.0, 3.0, 1.0], np.float32)
    sampler = Sampler(SamplingOptions(temperature=0.0, min_tokens=2), ends=[1, 2])
    assert [sampler.choose(logits) for _ in range(4)] == [3, 3, 1, 1]
    assert Sampler(SamplingOptions(temperature=0.0, min_tokens=2), ends=[0, 1, 2, 3]).choose(logits) == 1
