"""Bodies of text APIs that are damaged or extreme: obeyed, or refused by the field that is wrong."""

import json
from typing import Any

import pytest

from rdukit.errors import InvalidArgument
from rdukit_serving.text.anthropic_messages import MessagesBody
from rdukit_serving.text.chat_template import PLAIN, ChatTemplate
from rdukit_serving.text.openai_responses import ResponseBody
from rdukit_serving.text.openai_values import ChatBody, CompletionBody, EmbeddingBody, parse_body
from support import shows

pytestmark = shows("text-apis", "text-fields")

SAID: Any = [{"role": "user", "content": "x"}]


@pytest.mark.parametrize(
    ("kind", "body", "place", "words"),
    [
        (CompletionBody, b'{"model": "m", "prompt": "\xff\xfe"}', None, "invalid unicode code point"),
        (CompletionBody, rb'{"model": "m", "prompt": "\ud800"}', None, "hex escape"),
        (ChatBody, rb'{"model": "m", "messages": [{"role": "user", "content": "\udc00a"}]}', None, "surrogate"),
        (EmbeddingBody, rb'{"model": "m", "input": "\ud800"}', None, "hex escape"),
        (CompletionBody, b'{"model": "m", "prompt": "a", "temperature": NaN}', "temperature", "equal to 2"),
        (CompletionBody, b'{"model": "m", "prompt": "a", "top_p": 1e999}', "top_p", "less than or equal to 1"),
        (CompletionBody, b'{"model": "m", "prompt": "a", "logit_bias": {"1": NaN}}', "logit_bias.1", "equal to 100"),
        (CompletionBody, b'{"model": "m", "prompt": "a", "logit_bias": {"-1": 1}}', "logit_bias.-1", "equal to 0"),
        (CompletionBody, b'{"model": "m", "prompt": "a", "n": 1000000000000000000000}', "n", "equal to 1024"),
        (CompletionBody, b"[" * 100_000, None, "recursion limit"),
        (CompletionBody, b'{"model": "m", "prompt": "a"} x', None, "trailing characters"),
        (CompletionBody, b"", None, "Invalid JSON"),
        (ChatBody, b'{"model": "m", "messages": []}', "messages", "at least 1 item"),
        (ChatBody, b'{"model": "m", "messages": [null]}', "messages.0", "should be an object"),
        (ChatBody, b'{"model": "m", "messages": [{"role": "user", "content": "x"}], "tool_choice": "any"}',
         "tool_choice", "'none', 'auto' or 'required'"),
        (MessagesBody, b'{"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": [{"type":'
         b' "tool_result", "tool_use_id": "t", "content": [{"type": "image", "source": {}}]}]}]}',
         "messages.0.content.0.content.0", "image are not supported, because the model reads only text"),
        (ResponseBody, b'{"model": "m", "input": [{"type": "item_reference", "id": "x"}]}', "input.0", "not served"),
        (EmbeddingBody, b'{"model": "m", "input": [1, "a"]}', "input.1", "valid integer"),
    ],
)  # fmt: skip
def test_what_is_damaged_is_refused_by_its_field(kind: Any, body: bytes, place: str | None, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words) as caught:
        parse_body(kind, body)
    assert caught.value.detail["field"] == place


@pytest.mark.parametrize(
    ("kind", "fields", "place"),
    [
        (ChatBody, {"messages": SAID, "n": True}, "n"),
        (ChatBody, {"messages": SAID, "stream": True, "temperature": False}, "temperature"),
        (ChatBody, {"messages": SAID, "logit_bias": {"5": True}}, "logit_bias.5"),
        (CompletionBody, {"prompt": [[1, 2], [3, True]]}, "prompt.1.1"),
        (CompletionBody, {"prompt": "x", "logprobs": True}, "logprobs"),
        (EmbeddingBody, {"input": [False], "dimensions": 1}, "input.0"),
        (ResponseBody, {"input": "x", "max_output_tokens": True}, "max_output_tokens"),
        (MessagesBody, {"messages": SAID, "max_tokens": 9, "thinking": {"type": "enabled", "budget_tokens": True}},
         "thinking.budget_tokens"),
    ],
)  # fmt: skip
def test_a_boolean_is_not_read_as_a_number(kind: Any, fields: dict[str, Any], place: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^{place}: (true|false) is not a number; expected a number") as caught:
        parse_body(kind, json.dumps({"model": "m", **fields}).encode())
    assert caught.value.detail["field"] == place


def test_booleans_of_flags_and_of_schemas_are_read() -> None:
    schema = {"additionalProperties": False, "properties": {"x": {"minimum": 0, "exclusiveMinimum": True}}}
    tool = {"type": "function", "function": {"name": "f", "strict": True, "parameters": schema}}
    asked = {"messages": SAID, "logprobs": True, "tools": [tool], "chat_template_kwargs": {"enable_thinking": False}}
    assert parse_body(ChatBody, json.dumps({"model": "m", **asked}).encode()).logprobs is True


def test_two_tools_of_one_name_are_refused() -> None:
    one: dict[str, Any] = {"name": "f"}
    for fields, field in (
        ({"tools": [{"type": "function", "function": one}] * 2}, "tools"),
        ({"functions": [one, {"name": "g"}, one]}, "functions"),
    ):
        with pytest.raises(InvalidArgument, match=f"{field}: two have the name f; expected another") as caught:
            parse_body(ChatBody, json.dumps({"model": "m", "messages": SAID, **fields}).encode())
        assert caught.value.detail["field"] == field


def test_the_schema_of_a_chosen_tool_is_refused_by_the_tools_number() -> None:
    tools = [{"type": "function", "function": {"name": name, "parameters": {"if": {}}}} for name in "fgh"]
    choice = {"type": "function", "function": {"name": "g"}}
    asked = {"model": "m", "messages": SAID, "tools": tools, "tool_choice": choice}
    with pytest.raises(InvalidArgument, match=r"tools\.1\.function\.parameters: the schema: if cannot"):
        parse_body(ChatBody, json.dumps(asked).encode()).requests("x", PLAIN)


def test_what_is_extreme_but_valid_is_obeyed() -> None:
    asked: dict[str, Any] = {"model": "m", "prompt": "😀\x00", "n": 1024, "stop": [f"s{at}" for at in range(500)]}
    asked |= {"logit_bias": {str(2**31 - 1): -100}, "seed": -(2**63), "max_tokens": 10**15, "top_k": 10**30}
    requests = parse_body(CompletionBody, json.dumps(asked).encode()).requests()
    assert len(requests) == 1024 and len(requests[0].stop) == 500 and requests[0].prompt == "😀\x00"
    assert requests[0].sampling["bias"] == [(2**31 - 1, -100.0)]


def test_results_of_parallel_calls_reach_the_template_in_the_callers_order() -> None:
    calls = [{"id": name, "type": "function", "function": {"name": "f", "arguments": "{}"}} for name in ("a", "b", "a")]
    results = [{"role": "tool", "tool_call_id": name, "content": f"of {name}"} for name in ("b", "a", "unknown")]
    messages = [*SAID, {"role": "assistant", "content": "", "tool_calls": calls}, *results]
    body = parse_body(ChatBody, json.dumps({"model": "m", "messages": messages}).encode())
    told, _ = body.for_template(ChatTemplate("{{ messages }}"))
    assert [each["id"] for each in told[1]["tool_calls"]] == ["a", "b", "a"] and told[2:] == results


@pytest.mark.parametrize(
    ("blocks", "words"),
    [
        ([{"type": "thinking", "thinking": "h"}, {"type": "text", "text": "A"}], "has a block thinking; expected only"),
        ([{"type": "tool_use", "id": "1", "name": "f", "input": {}}], "a user message with its tool_result after it"),
    ],
)
def test_a_last_message_of_the_assistant_has_only_text_and_others_may_have_thoughts(blocks: Any, words: str) -> None:
    def read(*messages: Any) -> MessagesBody:
        return parse_body(MessagesBody, json.dumps({"model": "m", "max_tokens": 1, "messages": messages}).encode())

    said: Any = {"role": "assistant", "content": [*blocks, {"type": "redacted_thinking", "data": "x"}]}
    assert read(*SAID, said, *SAID).chat().for_template(PLAIN)[0][1]["role"] == "assistant"
    with pytest.raises(InvalidArgument, match=words):
        read(*SAID, {"role": "assistant", "content": blocks}).beginning  # noqa: B018
    assert read(*SAID, {"role": "assistant", "content": "So"}).beginning == "So"
