"""Answers with thoughts, as the clients of OpenAI's and Anthropic's read them, whole and streamed."""

import asyncio
import time
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import orjson
import pytest

from rdukit_serving.text.answers import Step, Tally
from rdukit_serving.text.anthropic_messages import MessageAnswer
from rdukit_serving.text.openai_responses import ResponseAnswer, ResponseBody
from rdukit_serving.text.queue import Done, Piece, Thought
from rdukit_serving.text.tool_calls import ToolCall
from support import shows

pytestmark = shows("text-models")

CALL = ToolCall("wait", '{"s": 1}', "call_1")
STEPS = [Thought("hm"), Thought(" so"), Piece("A"), Piece("b"), Thought("more"), CALL, Done("", "tool_calls", 3, 6)]


class Written:
    """Turn whose steps are known."""

    def __init__(self, steps: list[Step]) -> None:
        self._steps = steps
        self.tally = Tally(began_s=time.time())
        self.version: Any = SimpleNamespace(files=SimpleNamespace(checkpoint=None), load_seconds=0.0)

    async def events(self) -> AsyncGenerator[Step]:
        for step in self._steps:
            yield step


def frames(answer: Any) -> bytes:
    async def collect() -> bytes:
        return b"".join([frame async for frame in answer._frames()])

    return asyncio.run(collect())


def answering(body: bytes, kind: str) -> httpx.MockTransport:
    return httpx.MockTransport(lambda _: httpx.Response(200, content=body, headers={"content-type": kind}))


def claude(body: bytes, kind: str) -> anthropic.Anthropic:
    answer = httpx2.Response(200, content=body, headers={"content-type": kind})
    http = httpx2.Client(transport=httpx2.MockTransport(lambda _: answer))
    return anthropic.Anthropic(base_url="http://box", api_key="none", max_retries=0, http_client=http)


ASKED: Any = {"model": "llama", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}


@pytest.mark.parametrize("is_stream", [True, False])
def test_a_message_has_thinking_blocks_before_texts_and_calls(is_stream: bool) -> None:
    answer = MessageAnswer("llama", 9, Written(STEPS))  # type: ignore[arg-type]
    written = frames(answer)
    if is_stream:
        with claude(written, "text/event-stream").messages.stream(**ASKED) as stream:
            message = stream.get_final_message()
    else:
        message = claude(orjson.dumps(answer._message), "application/json").messages.create(**ASKED)
    kinds = [block.type for block in message.content]
    assert kinds == ["thinking", "text", "thinking", "tool_use"] and message.stop_reason == "tool_use"
    first, said, second, call = message.content
    assert first.type == "thinking" and (first.thinking, first.signature) == ("hm so", "")
    assert said.type == "text" and said.text == "Ab"
    assert second.type == "thinking" and second.thinking == "more"
    assert call.type == "tool_use" and call.input == {"s": 1}


def test_a_message_that_was_asked_not_to_think_has_no_such_blocks() -> None:
    answer = MessageAnswer("llama", 9, Written(STEPS), shows_thoughts=False)  # type: ignore[arg-type]
    frames(answer)
    assert [block["type"] for block in answer._message["content"]] == ["text", "tool_use"]


@pytest.mark.parametrize("is_stream", [True, False])
def test_a_response_has_items_of_reasoning(is_stream: bool) -> None:
    body = ResponseBody(model="llama", input="x")
    answer = ResponseAnswer("llama", body, Written(STEPS))  # type: ignore[arg-type]
    written = frames(answer)
    content, kind = (
        (written, "text/event-stream") if is_stream else (orjson.dumps(answer._response), "application/json")
    )
    http = httpx.Client(transport=answering(content, kind))
    client = openai.OpenAI(base_url="http://box/v1", api_key="none", max_retries=0, http_client=http)
    if is_stream:
        events = list(client.responses.create(model="llama", input="x", stream=True))
        thought = "".join(event.delta for event in events if event.type == "response.reasoning_text.delta")
        assert thought == "hm somore"
        assert events[-1].type == "response.completed"
        response = events[-1].response
    else:
        response = client.responses.create(model="llama", input="x")
    assert [item.type for item in response.output] == ["reasoning", "message", "reasoning", "function_call"]
    first = response.output[0]
    assert first.type == "reasoning" and first.content is not None and first.content[0].text == "hm so"
    assert response.output_text == "Ab"


def test_a_response_of_thoughts_that_was_cut_off_has_no_message() -> None:
    answer = ResponseAnswer("m", ResponseBody(model="m", input="x"), Written([Thought("hm"), Done("", "length", 3, 6)]))  # type: ignore[arg-type]
    frames(answer)
    assert [item["type"] for item in answer._response["output"]] == ["reasoning"]
    assert answer._response["status"] == "incomplete"
