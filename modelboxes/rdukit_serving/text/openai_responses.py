"""OpenAI's Responses API without a memory: a request becomes a chat; its text becomes items, complete or event by
event.

Source: OpenAI's API reference, "Responses" and its streaming events; fields that the ``openai`` client reads.
"""

import secrets
import time
from collections.abc import AsyncGenerator, Mapping
from typing import Annotated, Any, Final, Literal

import orjson
from fastapi import Request
from fastapi.responses import JSONResponse, Response
from pydantic import AfterValidator, Discriminator, Field, Tag

from rdukit.errors import InvalidArgument, RdukitError
from rdukit_serving.text.answers import Step, Turn, server_timing, stream_response, unless_gone
from rdukit_serving.text.chat_messages import (
    CalledFunction,
    ChatMessage,
    FunctionName,
    MadeCall,
    RequestPart,
    TextOnly,
    TextPart,
    check_template_values,
    choose_tool,
    declare_tool,
)
from rdukit_serving.text.form_values import ObjectFormat, PlainFormat, ResponseFormat, SchemaOfFormat, schema_format
from rdukit_serving.text.generation_config import sampling_defaults
from rdukit_serving.text.openai_answers import token_chances
from rdukit_serving.text.openai_values import ChatBody, SamplingFields
from rdukit_serving.text.queue import Piece, Thought
from rdukit_serving.text.request_fields import AcceptedFields, Verbosity
from rdukit_serving.text.tool_calls import ToolCall

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class ItemText(TextOnly):
    """Part of an item's content: a caller's text, or one of an earlier answer."""

    type: Literal["input_text", "output_text", "text"]
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


class MessageItem(RequestPart):
    """Message from a caller or from an earlier answer."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[ItemText]
    id: str | None = None
    status: ItemStatus | None = None
    phase: str | None = None


class CallItem(RequestPart):
    """Call that the model made."""

    type: Literal["function_call"]
    call_id: str
    name: FunctionName
    arguments: str
    id: str | None = None
    status: ItemStatus | None = None


class CallOutputItem(RequestPart):
    """Result of a called function."""

    type: Literal["function_call_output"]
    call_id: str
    output: str | list[ItemText]
    id: str | None = None
    status: ItemStatus | None = None


class ThoughtText(RequestPart):
    """Part of the thoughts of the model."""

    type: Literal["reasoning_text", "summary_text", "text"]
    text: str


class ReasoningItem(RequestPart):
    """Thoughts of the model from an earlier answer; models ignore summaries."""

    type: Literal["reasoning"]
    id: str | None = None
    summary: list[ThoughtText] | None = None
    content: list[ThoughtText] | None = None
    encrypted_content: str | None = None
    status: ItemStatus | None = None


def _kind_of_item(value: Any) -> str:
    kind = value.get("type", "message") if isinstance(value, dict) else getattr(value, "type", "")
    return f"one-of-{kind}"


Item = Annotated[
    Annotated[MessageItem, Tag("one-of-message")]
    | Annotated[ReasoningItem, Tag("one-of-reasoning")]
    | Annotated[CallItem, Tag("one-of-function_call")]
    | Annotated[CallOutputItem, Tag("one-of-function_call_output")],
    Discriminator(
        _kind_of_item, custom_error_type="item_kind",
        custom_error_message="items of this type are not served; expected message, reasoning, function_call, "
        "function_call_output",
    ),
]  # fmt: skip


class ResponseTool(RequestPart):
    """Function that the model may call."""

    type: Literal["function"]
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ChosenResponseTool(RequestPart):
    """Function that must be called."""

    type: Literal["function"]
    name: FunctionName


class FlatSchemaFormat(SchemaOfFormat):
    """JSON text that a schema describes."""

    type: Literal["json_schema"]


class TextOptions(RequestPart):
    """Options of the text."""

    format: Annotated[PlainFormat | ObjectFormat | FlatSchemaFormat, Field(discriminator="type")] | None = None
    #: Without effect.
    verbosity: Verbosity | None = None


class ReasoningOptions(RequestPart):
    """Options of thinking. Thoughts are not reported, so there are no summaries of them."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class ResponseStreamOptions(RequestPart):
    """Options of a stream."""

    include_obfuscation: bool | None = None


_LOGPROBS: Final = "message.output_text.logprobs"


class ResponseBody(AcceptedFields, SamplingFields):
    """Body of ``POST /v1/responses``. Answers are not stored, so later requests cannot refer to them."""

    NOT_USED = {
        "previous_response_id": (None,), "conversation": (None,), "prompt": (None,), "max_tool_calls": (None,),
        "context_management": (None,),
    }  # fmt: skip

    model: str
    input: str | Annotated[list[Item], Field(min_length=1)]
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    store: Literal[False] | None = None
    background: Literal[False] | None = None
    truncation: Literal["disabled"] | None = None
    text: TextOptions | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChosenResponseTool | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningOptions | None = None
    include: list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    chat_template_kwargs: Annotated[dict[str, Any], AfterValidator(check_template_values)] | None = None

    def chat(self) -> ChatBody:
        """Return the chat that this is.

        Raises:
            InvalidArgument: ``top_logprobs`` without the request for probabilities.
        """
        has_logprobs = _LOGPROBS in (self.include or ())
        if self.top_logprobs and not has_logprobs:
            raise InvalidArgument(f"top_logprobs needs include: [{_LOGPROBS!r}]", field="top_logprobs")
        chosen = self.tool_choice
        return ChatBody(
            model=self.model, messages=self._messages(), max_completion_tokens=self.max_output_tokens,
            tools=[declare_tool(tool.name, tool.description, tool.parameters) for tool in self.tools or ()] or None,
            tool_choice=choose_tool(chosen.name) if isinstance(chosen, ChosenResponseTool) else chosen,
            parallel_tool_calls=self.parallel_tool_calls, response_format=self._format(), logprobs=has_logprobs or None,
            top_logprobs=self.top_logprobs if has_logprobs else None, chat_template_kwargs=self.chat_template_kwargs,
            reasoning_effort=None if self.reasoning is None else self.reasoning.effort, **self.sampling_fields(),
        )  # fmt: skip

    def _messages(self) -> list[ChatMessage]:
        messages = [] if self.instructions is None else [ChatMessage(role="system", content=self.instructions)]
        if isinstance(self.input, str):
            return [*messages, ChatMessage(role="user", content=self.input)]
        for item in self.input:
            # For a template, an assistant's thoughts, text and calls are one message.
            is_new = not messages or messages[-1].role != "assistant"
            match item:
                case ReasoningItem():
                    if thought := "".join(part.text for part in item.content or ()):
                        messages.append(ChatMessage(role="assistant", reasoning_content=thought))
                case MessageItem(role="assistant") if not is_new and _only_thought(messages[-1]):
                    messages[-1].content = _joined(item.content)
                case CallItem():
                    if is_new:
                        messages.append(ChatMessage(role="assistant"))
                    function = CalledFunction(name=item.name, arguments=item.arguments)
                    said = messages[-1]
                    said.tool_calls = [*(said.tool_calls or ()), MadeCall(id=item.call_id, function=function)]
                case CallOutputItem():
                    messages.append(
                        ChatMessage(role="tool", tool_call_id=item.call_id, content=_joined(item.output))
                    )  # fmt: skip
                case _:
                    messages.append(ChatMessage(role=item.role, content=_joined(item.content)))
        return messages

    def _format(self) -> ResponseFormat | None:
        form = None if self.text is None else self.text.format
        if not isinstance(form, FlatSchemaFormat):
            return form
        return schema_format(form.name, form.content)

    def echoed(self, defaults: Mapping[str, object]) -> dict[str, object]:
        """Return the fields of the request that an answer repeats; ``defaults`` are the model's own options of
        sampling.
        """
        sampling = {"temperature": 1.0, "top_p": 1.0, **defaults, **self.sampling(0)}
        text = {"format": {"type": "text"}} if self.text is None else _plain(self.text)
        return {
            "instructions": self.instructions, "max_output_tokens": self.max_output_tokens,
            "parallel_tool_calls": self.parallel_tool_calls is not False,
            "tool_choice": "auto" if self.tool_choice is None else _plain(self.tool_choice),
            "tools": [_plain(tool) for tool in self.tools or ()], "text": text,
            "temperature": sampling["temperature"], "top_p": sampling["top_p"],
            "reasoning": {"effort": None, "summary": None} if self.reasoning is None else _plain(self.reasoning),
            "metadata": self.metadata or {}, "user": self.user, "top_logprobs": self.top_logprobs or 0,
            "truncation": "disabled", "store": False, "background": False, "previous_response_id": None,
        }  # fmt: skip


def _only_thought(message: ChatMessage) -> bool:
    return message.reasoning_content is not None and message.content is None and not message.tool_calls


def _plain(value: object) -> object:
    return value.model_dump(by_alias=True, exclude_none=True) if isinstance(value, RequestPart) else value


def _joined(content: str | list[ItemText]) -> str | list[TextPart]:
    return content if isinstance(content, str) else "".join(part.text for part in content)


class ResponseAnswer:
    """Answer of one request: events in OpenAI's order; the last one has the complete answer."""

    def __init__(self, name: str, body: ResponseBody, turn: Turn) -> None:
        self._turn = turn
        self._number = -1
        self._response: dict[str, Any] = {
            "id": f"resp_{secrets.token_hex(16)}", "object": "response", "created_at": int(time.time()),
            "status": "in_progress", "model": name, "output": [], "error": None, "incomplete_details": None,
            **body.echoed(sampling_defaults(turn.version.files.checkpoint)), "usage": None,
        }  # fmt: skip
        #: Items so far, and the type of the open one, which is the last; empty: none is open.
        self._items: list[dict[str, Any]] = self._response["output"]
        self._open_type = ""

    async def respond(self, request: Request, is_stream: bool) -> Response:
        """Respond whole, or with events."""
        if is_stream:
            return await stream_response(request, self._frames(), self._last_words)
        done = await unless_gone(request, self._turn.finish(self._events))
        return JSONResponse(self._response, headers=server_timing(self._turn.version, done.queue_us, done.compute_us))

    async def _frames(self) -> AsyncGenerator[bytes]:
        is_first = True
        async for event in self._turn.events():
            if is_first:
                yield self._frame({"type": "response.created", "response": self._response})
                yield self._frame({"type": "response.in_progress", "response": self._response})
                is_first = False
            for each in self._events(event):
                yield self._frame(each)

    def _events(self, event: Step) -> list[dict[str, Any]]:
        """Process a step of the turn; return its events."""
        match event:
            case Piece():
                # Tokens of thoughts have no text here.
                return [*self._open(), self._say(event)] if event.text or self._open_type != "reasoning" else []
            case Thought():
                return [*self._begin_thought(), self._think(event.text)]
            case ToolCall():
                return [*self._close("completed"), *self._call(event)]
        is_whole = event.reason != "length"
        status = "completed" if is_whole else "incomplete"
        # An empty text is also a message.
        is_silent = not any(item["type"] != "reasoning" for item in self._items)
        events = [*(self._open() if (is_silent and is_whole) or not self._items else []), *self._close(status)]
        now = time.time()
        usage: Any = self._turn.tally.usage(now)
        self._response |= {
            "status": status, "completed_at": int(now) if is_whole else None,
            "incomplete_details": None if is_whole else {"reason": "max_output_tokens"},
            "usage": {
                "input_tokens": usage["prompt_tokens"],
                "input_tokens_details": {**usage["prompt_tokens_details"], "cache_write_tokens": 0},
                "output_tokens": usage["completion_tokens"],
                "output_tokens_details": usage["completion_tokens_details"], "total_tokens": usage["total_tokens"],
            },
        }  # fmt: skip
        return [*events, {"type": f"response.{status}", "response": self._response}]

    def _open(self) -> list[dict[str, Any]]:
        """Open a message unless one is."""
        if self._open_type == "message":
            return []
        closed = self._close("completed")
        self._open_type = "message"
        part: dict[str, Any] = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        item: dict[str, Any] = {
            "id": f"msg_{secrets.token_hex(16)}", "type": "message", "role": "assistant", "status": "in_progress",
            "content": [],
        }  # fmt: skip
        added = self._add(item)
        item["content"] = [part]
        shown = {**part, "logprobs": []}
        return [*closed, added, {"type": "response.content_part.added", **self._place(), "part": shown}]

    def _begin_thought(self) -> list[dict[str, Any]]:
        """Begin an item of thoughts unless one is open."""
        if self._open_type == "reasoning":
            return []
        closed = self._close("completed")
        self._open_type = "reasoning"
        item: dict[str, Any] = {
            "id": f"rs_{secrets.token_hex(16)}", "type": "reasoning", "summary": [], "content": [],
            "status": "in_progress",
        }  # fmt: skip
        added = self._add(item)
        item["content"] = [{"type": "reasoning_text", "text": ""}]
        part = {"type": "reasoning_text", "text": ""}
        return [*closed, added, {"type": "response.content_part.added", **self._place(), "part": part}]

    def _think(self, text: str) -> dict[str, Any]:
        self._items[-1]["content"][0]["text"] += text
        return {"type": "response.reasoning_text.delta", **self._place(), "delta": text}

    def _say(self, piece: Piece) -> dict[str, Any]:
        part = self._items[-1]["content"][0]
        logprobs = [] if piece.token is None else [token_chances(piece)]
        part["text"] += piece.text
        part["logprobs"] += logprobs
        return {"type": "response.output_text.delta", **self._place(), "delta": piece.text, "logprobs": logprobs}

    def _close(self, status: str) -> list[dict[str, Any]]:
        """Close the message or the thoughts that are open, if any are."""
        if not self._open_type:
            return []
        kind, self._open_type = self._open_type, ""
        item = self._items[-1]
        item["status"] = status
        part, place = item["content"][0], self._place()
        if kind == "reasoning":
            done = {"type": "response.reasoning_text.done", **place, "text": part["text"]}
            return [done, {"type": "response.content_part.done", **place, "part": part}, self._item_done()]
        return [
            {"type": "response.output_text.done", **place, "text": part["text"], "logprobs": part["logprobs"]},
            {"type": "response.content_part.done", **place, "part": part},
            self._item_done(),
        ]

    def _call(self, call: ToolCall) -> list[dict[str, Any]]:
        item = {
            "id": f"fc_{secrets.token_hex(16)}", "type": "function_call", "call_id": call.id, "name": call.name,
            "arguments": "", "status": "in_progress",
        }  # fmt: skip
        added = self._add(item)
        item |= {"arguments": call.arguments, "status": "completed"}
        place = {"item_id": item["id"], "output_index": len(self._items) - 1}
        return [
            added,
            {"type": "response.function_call_arguments.delta", **place, "delta": call.arguments},
            {"type": "response.function_call_arguments.done", **place, "name": call.name, "arguments": call.arguments},
            self._item_done(),
        ]

    def _add(self, item: dict[str, Any]) -> dict[str, Any]:
        self._items.append(item)
        return {"type": "response.output_item.added", "output_index": len(self._items) - 1, "item": {**item}}

    def _item_done(self) -> dict[str, Any]:
        return {"type": "response.output_item.done", "output_index": len(self._items) - 1, "item": self._items[-1]}

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._items[-1]["id"], "output_index": len(self._items) - 1, "content_index": 0}

    def _frame(self, event: Mapping[str, Any]) -> bytes:
        self._number += 1
        return frame({**event, "sequence_number": self._number})

    def _last_words(self, error: RdukitError) -> bytes:
        self._response |= {"status": "failed", "error": {"code": "server_error", "message": error.message}}
        return self._frame({"type": "response.failed", "response": self._response})


def frame(event: Mapping[str, Any]) -> bytes:
    """Return an event of a stream whose events have names."""
    return b"event: %s\ndata: %s\n\n" % (event["type"].encode(), orjson.dumps(event))
