"""Deprecated functions of OpenAI's chats: they are tools to the model, and calls keep their older form."""

import asyncio
import json
from typing import Any

import orjson
import pytest

from rdukit.errors import InvalidArgument
from rdukit_serving.text.chat_template import PLAIN, ChatTemplate
from rdukit_serving.text.openai_answers import Completion
from rdukit_serving.text.openai_values import ChatBody, parse_body
from rdukit_serving.text.queue import Done, Piece
from support import shows

pytestmark = shows("text-models", "text-fields")

FIND = {"name": "find", "description": "Find.", "parameters": {"type": "object", "properties": {"w": {"const": "x"}}}}
WAIT = {"name": "wait"}
USER = {"role": "user", "content": "hi"}


def chat(*messages: dict[str, Any], **fields: Any) -> ChatBody:
    return parse_body(ChatBody, json.dumps({"model": "m", "messages": messages or [USER], **fields}).encode())


def test_functions_are_tools_of_which_one_may_be_called() -> None:
    older = chat(functions=[FIND, WAIT], function_call={"name": "wait"})
    tools = [{"type": "function", "function": each} for each in (FIND, WAIT)]
    choice = {"type": "function", "function": {"name": "wait"}}
    newer = chat(tools=tools, tool_choice=choice, parallel_tool_calls=False)
    assert older.for_template(PLAIN) == newer.for_template(PLAIN)
    (one,), (other,) = older.requests("x", PLAIN), newer.requests("x", PLAIN)
    assert one.form and other.form and (one.form.text, one.form.field) == (other.form.text, "functions")
    assert one.prompt == other.prompt
    reader = older.reader(PLAIN, "x")
    assert reader is not None and reader.most == 1 and older.uses_functions
    assert not chat(functions=[FIND], function_call="none").has_tools
    assert chat(functions=[FIND]).has_tools and chat(functions=[FIND], function_call="auto").tool_choice == "auto"
    assert not chat(functions=[], function_call="none").uses_functions


def test_calls_and_results_in_messages_are_those_of_tools() -> None:
    call = {"name": "find", "arguments": '{"w": "x"}'}
    body = chat(
        USER, {"role": "assistant", "content": None, "function_call": call, "tool_calls": None},
        {"role": "function", "name": "find", "content": "found"},
        {"role": "function", "name": "wait", "content": "of a call that was cut off"},
    )  # fmt: skip
    messages, _ = body.for_template(ChatTemplate("{{ messages }}"))
    made = {"id": "call00001", "type": "function", "function": {"name": "find", "arguments": {"w": "x"}}}
    assert messages[1:] == [
        {"role": "assistant", "content": None, "tool_calls": [made]},
        {"role": "tool", "content": "found", "name": "find", "tool_call_id": "call00001"},
        {"role": "tool", "content": "of a call that was cut off", "name": "wait", "tool_call_id": "call00003"},
    ]


@pytest.mark.parametrize(
    ("messages", "fields", "place", "words"),
    [
        ([USER], {"functions": [FIND], "tools": [{"type": "function", "function": WAIT}]}, "functions", "with tools"),
        ([USER], {"function_call": "auto", "tool_choice": "auto"}, "function_call", "with tools or tool_choice"),
        ([USER], {"functions": [FIND], "function_call": {"name": "wait"}}, "function_call", "wait is not valid"),
        ([USER], {"function_call": {"name": "wait"}}, "function_call", "because there are no tools"),
        ([USER], {"functions": [FIND], "function_call": "required"}, "function_call", "'none' or 'auto'"),
        ([USER], {"functions": [{**FIND, "parameters": {"not": {"type": "null"}}}], "function_call": {"name": "find"}},
         "functions.0.parameters", "not cannot be enforced"),
        ([{"role": "function", "content": "x"}], {}, "messages.0", "needs name"),
        ([{"role": "user", "content": "x", "function_call": WAIT | {"arguments": "{}"}}], {}, "messages.0",
         "only with the role assistant"),
    ],
)  # fmt: skip
def test_what_functions_cannot_be_is_refused_by_their_names(
    messages: Any, fields: dict[str, Any], place: str, words: str
) -> None:
    with pytest.raises(InvalidArgument, match=words) as caught:
        chat(*messages, **fields).requests("x", PLAIN)
    assert caught.value.detail["field"] == place


class _Texts:
    """Queue of texts whose steps are known."""

    def __init__(self, text: str) -> None:
        self.text = text

    async def generate(self, request: Any) -> Any:
        yield Piece(self.text)
        yield Done("", "stop", 3, 4)


class _Version:
    text = {"texts": 1}

    def __init__(self, text: str) -> None:
        self.texts = _Texts(text)


def test_an_answer_has_its_call_in_the_older_form_whole_and_streamed() -> None:
    body = chat(functions=[FIND, WAIT])
    said = '<tool_call>{"name": "find", "arguments": {"w": "x"}}</tool_call>'

    def completion() -> Completion:
        version: Any = _Version(f"So: {said}{said}")
        return Completion(
            "m", version, body.requests("x", PLAIN), 1, is_chat=True, with_logprobs=False,
            new_reader=lambda: body.reader(PLAIN, "x"), with_functions=body.uses_functions,
        )  # fmt: skip

    (choice,) = asyncio.run(completion()._whole())["choices"]  # type: ignore[misc]
    call = {"name": "find", "arguments": '{"w": "x"}'}
    assert choice["finish_reason"] == "function_call"
    assert choice["message"] == {"role": "assistant", "content": "So: ", "refusal": None, "function_call": call}

    async def frames() -> list[Any]:
        return [orjson.loads(each[6:]) async for each in completion()._stream(False) if each[6:7] == b"{"]

    deltas = [frame["choices"][0] for frame in asyncio.run(frames())]
    parts = [each["delta"]["function_call"] for each in deltas if "function_call" in each["delta"]]
    assert parts == [{"name": "find", "arguments": ""}, {"arguments": '{"w": "x"}'}]
    assert deltas[-1]["finish_reason"] == "function_call"
