"""Anthropic's Messages API: a request becomes a chat; its text becomes blocks, complete or event by event.

Source: Anthropic's API reference, "Messages", "Count tokens", "Errors" and "Streaming"; what the ``anthropic`` client
reads of them.
"""

import secrets
from collections.abc import AsyncGenerator, Sequence
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
    check_template_values,
    choose_tool,
    declare_tool,
)
from rdukit_serving.text.form_values import schema_format
from rdukit_serving.text.openai_responses import frame
from rdukit_serving.text.openai_values import ChatBody, SamplingFields, StopTexts
from rdukit_serving.text.queue import Done, Piece, Thought
from rdukit_serving.text.request_fields import ServedFields
from rdukit_serving.text.tool_calls import ToolCall

#: Types of errors by status; of others by their hundreds.
_ERRORS: Final = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large",
    429: "rate_limit_error", 503: "overloaded_error", 504: "timeout_error",
}  # fmt: skip


class _Block(TextOnly):
    #: Prefixes are found without it.
    cache_control: dict[str, Any] | None = None


class TextBlock(_Block):
    """Text."""

    type: Literal["text"]
    text: str
    citations: None = None


class ThinkingBlock(RequestPart):
    """Thoughts of the model from an earlier answer; models ignore their signature."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


class RedactedBlock(RequestPart):
    """Unreadable thinking of another service; it is left out."""

    type: Literal["redacted_thinking"]
    data: str


class ToolUseBlock(_Block):
    """Call that the model made."""

    type: Literal["tool_use"]
    id: str
    name: FunctionName
    input: dict[str, Any]
    #: Parts of an answer that clients send back; models ignore them.
    caller: dict[str, Any] | None = None
    toolset_name: None = None


class ToolResultBlock(_Block):
    """Result of a called tool; what went wrong there the model reads in the content."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: str | list[TextBlock] | None = None
    is_error: bool | None = None


_BLOCKS: Final = frozenset({"text", "thinking", "redacted_thinking", "tool_use", "tool_result"})


def _kind_of_block(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", "")
    # A text type reports best that a part is not text.
    return f"one-of-{kind}" if kind in _BLOCKS else "one-of-text"


Block = Annotated[
    Annotated[TextBlock, Tag("one-of-text")]
    | Annotated[ThinkingBlock, Tag("one-of-thinking")]
    | Annotated[RedactedBlock, Tag("one-of-redacted_thinking")]
    | Annotated[ToolUseBlock, Tag("one-of-tool_use")]
    | Annotated[ToolResultBlock, Tag("one-of-tool_result")],
    Discriminator(_kind_of_block),
]


#: Kinds of blocks by role; other roles have only text.
_LEGAL: Final = {
    "user": frozenset({"text", "tool_result"}),
    "assistant": frozenset({"text", "thinking", "redacted_thinking", "tool_use"}),
}  # fmt: skip


class TurnMessage(RequestPart):
    """Message of a user or of the assistant."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]

    def for_chat(self) -> list[ChatMessage]:
        """Return the message as messages of a chat; each result of a tool becomes one.

        Raises:
            InvalidArgument: a block that this role does not have.
        """
        if isinstance(self.content, str):
            return [ChatMessage(role=self.role, content=self.content)]
        messages: list[ChatMessage] = []
        texts: list[str] = []
        thoughts: list[str] = []
        calls: list[MadeCall] = []
        for block in self.content:
            legal = _LEGAL.get(self.role, frozenset({"text"}))
            if block.type not in legal:
                raise InvalidArgument(
                    f"messages: a block {block.type} is not valid with the role {self.role}; expected "
                    f"{', '.join(sorted(legal))}", field="messages",
                )  # fmt: skip
            match block:
                case TextBlock():
                    texts.append(block.text)
                case ThinkingBlock():
                    thoughts.append(block.thinking)
                case ToolUseBlock():
                    arguments = orjson.dumps(block.input).decode()
                    calls.append(MadeCall(id=block.id, function=CalledFunction(name=block.name, arguments=arguments)))
                case ToolResultBlock():
                    content = _joined(block.content or "")
                    messages.append(ChatMessage(role="tool", tool_call_id=block.tool_use_id, content=content))
        if texts or calls or not messages:
            messages.append(ChatMessage(
                role=self.role, content="".join(texts), tool_calls=calls or None,
                reasoning_content="".join(thoughts) or None,
            ))  # fmt: skip
        return messages


def _joined(content: str | Sequence[TextBlock]) -> str:
    return content if isinstance(content, str) else "".join(block.text for block in content)


class MessagesTool(RequestPart):
    """Tool that the model may call; ``input_schema`` is a JSON schema of an object."""

    name: FunctionName
    description: str | None = None
    input_schema: dict[str, Any]
    type: Literal["custom"] | None = None
    strict: bool | None = None
    cache_control: dict[str, Any] | None = None


class MessagesToolChoice(RequestPart):
    """Choice of whether a tool must be called, and which."""

    type: Literal["auto", "any", "tool", "none"]
    name: FunctionName | None = None
    disable_parallel_tool_use: bool | None = None


class MessagesSchema(RequestPart):
    """JSON schema that the text keeps."""

    type: Literal["json_schema"]
    content: Annotated[dict[str, Any], Field(alias="schema")]


class OutputConfig(RequestPart):
    """Options of the answer."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: MessagesSchema | None = None


class ThinkingOptions(RequestPart):
    """Options of thinking: ``enable_thinking`` of the chat template. ``max_tokens`` bounds thinking, too."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Field(ge=1)] | None = None
    display: Literal["summarized", "omitted"] | None = None


class MessagesMetadata(RequestPart):
    """Caller's name for its user, which models ignore."""

    user_id: str | None = None


class _Told(ServedFields, SamplingFields):
    """Fields that both routes read."""

    NOT_USED = {
        "container": (None,),
        "mcp_servers": (None, []),
        "context_management": (None,),
        "inference_geo": (None,),
        "thread": (None,),
    }

    model: str
    messages: Annotated[list[TurnMessage], Field(min_length=1)]
    system: str | list[TextBlock] | None = None
    tools: list[MessagesTool] | None = None
    tool_choice: MessagesToolChoice | None = None
    thinking: ThinkingOptions | None = None
    output_config: OutputConfig | None = None
    cache_control: dict[str, Any] | None = None
    chat_template_kwargs: Annotated[dict[str, Any], AfterValidator(check_template_values)] | None = None

    @property
    def beginning(self) -> str:
        """Return the text that the answer continues: the last message, if it is the assistant's.

        Raises:
            InvalidArgument: that message has other blocks than text.
        """
        last = self.messages[-1]
        if last.role != "assistant":
            return ""
        others = [] if isinstance(last.content, str) else [each.type for each in last.content if each.type != "text"]
        if others:
            follows = " with its tool_result" if "tool_use" in others else ""
            raise InvalidArgument(
                f"messages: the answer continues the last message, which has a block {others[0]}; expected only text "
                f"there, or a user message{follows} after it",
                field="messages",
            )
        return "".join(str(each.content or "") for each in last.for_chat())

    def chat(self, most: int | None = None, stops: Sequence[str] = ()) -> ChatBody:
        """Return the chat that this is, without ``beginning``.

        Raises:
            InvalidArgument: fields that are not valid together.
        """
        messages = [] if self.system is None else [ChatMessage(role="system", content=_joined(self.system))]
        for message in self.messages[:-1] if self.messages[-1].role == "assistant" else self.messages:
            messages += message.for_chat()
        if not messages:
            raise InvalidArgument(
                "messages: the assistant's message answers no user; put a user message before it",
                field="messages",
            )
        values = dict(self.chat_template_kwargs or {})
        if self.thinking is not None:
            values.setdefault("enable_thinking", self.thinking.type != "disabled")
        choice, parallel = self._choice()
        config = self.output_config or OutputConfig()
        schema = None if config.format is None else schema_format("text", config.format.content)
        return ChatBody(
            model=self.model, messages=messages, max_tokens=most, stop=list(stops) or None,
            tools=[declare_tool(tool.name, tool.description, tool.input_schema) for tool in self.tools or ()] or None,
            tool_choice=choice, parallel_tool_calls=parallel,
            reasoning_effort="xhigh" if config.effort == "max" else config.effort,
            response_format=schema, chat_template_kwargs=values or None, **self.sampling_fields(),
        )  # fmt: skip

    def _choice(self) -> tuple[Any, bool | None]:
        """Return ``tool_choice`` and ``parallel_tool_calls`` of a chat."""
        choice = self.tool_choice
        if choice is None:
            return None, None
        if (choice.type == "tool") != (choice.name is not None):
            raise InvalidArgument(
                "tool_choice: name is required with type tool, and not valid otherwise", field="tool_choice"
            )
        if choice.type in {"any", "tool"} and self.messages[-1].role == "assistant":
            raise InvalidArgument(
                "tool_choice: a call cannot continue an assistant's text; leave out that message", field="tool_choice"
            )
        kinds: dict[str, Any] = {"auto": "auto", "any": "required", "none": "none"}
        return kinds.get(choice.type) or choose_tool(choice.name or ""), not choice.disable_parallel_tool_use


class MessagesBody(_Told):
    """Body of ``POST /v1/messages``."""

    max_tokens: Annotated[int, Field(ge=1)]
    stop_sequences: StopTexts | None = None
    stream: bool = False
    metadata: MessagesMetadata | None = None
    service_tier: str | None = None


class CountBody(_Told):
    """Body of ``POST /v1/messages/count_tokens``."""


class MessageAnswer:
    """Answer of one request: a message, block by block."""

    def __init__(self, name: str, most: int, turn: Turn, shows_thoughts: bool = True) -> None:
        self._turn = turn
        self._most = most
        self._shows_thoughts = shows_thoughts
        self._message: dict[str, Any] = {
            "id": f"msg_{secrets.token_hex(12)}", "type": "message", "role": "assistant", "model": name, "content": [],
            "stop_reason": None, "stop_sequence": None, "usage": _usage(0, 0, 0),
        }  # fmt: skip
        self._blocks: list[dict[str, Any]] = self._message["content"]
        #: Kind of the block that is open: ``text`` or ``thinking``; empty if none is.
        self._open = ""

    async def respond(self, request: Request, is_stream: bool) -> Response:
        """Respond whole, or with events."""
        if is_stream:
            return await stream_response(request, self._frames(), lambda error: frame(messages_error(error)))
        done = await unless_gone(request, self._turn.finish(self._events))
        return JSONResponse(self._message, headers=server_timing(self._turn.version, done.queue_us, done.compute_us))

    async def _frames(self) -> AsyncGenerator[bytes]:
        is_first = True
        async for event in self._turn.events():
            if is_first:
                yield frame({"type": "message_start", "message": self._message})
                is_first = False
            for each in self._events(event):
                yield frame(each)

    def _events(self, event: Step) -> list[dict[str, Any]]:
        """Process a step of the turn; returns its events."""
        match event:
            case Piece():
                return self._say("text", event.text)
            case Thought():
                return self._say("thinking", event.text) if self._shows_thoughts else []
            case ToolCall():
                return [*self._close(), *self._call(event)]
        tally = self._turn.tally
        usage = _usage(tally.prompt_tokens, tally.cached_tokens, tally.completion_tokens)
        reason = {"stop_reason": self._reason(event), "stop_sequence": event.stop_sequence}
        self._message |= {**reason, "usage": usage}
        return [
            *self._close(), {"type": "message_delta", "delta": reason, "usage": usage}, {"type": "message_stop"}
        ]  # fmt: skip

    def _reason(self, done: Done) -> str:
        if done.reason == "tool_calls":
            return "tool_use"
        if done.reason == "length":
            # The context's end also ends a text.
            return "max_tokens" if done.completion_tokens >= self._most else "model_context_window_exceeded"
        return "end_turn" if done.stop_sequence is None else "stop_sequence"

    def _say(self, kind: str, text: str) -> list[dict[str, Any]]:
        if not text:
            return []
        events = []
        if self._open != kind:
            events = self._close()
            self._open = kind
            signed = {"signature": ""} if kind == "thinking" else {}
            events.append(self._start({"type": kind, kind: "", **signed}))
        self._blocks[-1][kind] += text
        return [*events, self._delta({"type": f"{kind}_delta", kind: text})]

    def _call(self, call: ToolCall) -> list[dict[str, Any]]:
        block = {"type": "tool_use", "id": call.id.replace("call_", "toolu_", 1), "name": call.name, "input": {}}
        events = [self._start(block)]
        block["input"] = _arguments(call.arguments)
        events.append(self._delta({"type": "input_json_delta", "partial_json": orjson.dumps(block["input"]).decode()}))
        return [*events, self._stop()]

    def _close(self) -> list[dict[str, Any]]:
        """Close the block that is open, if one is."""
        kind, self._open = self._open, ""
        signed = [self._delta({"type": "signature_delta", "signature": ""})] if kind == "thinking" else []
        return [*signed, self._stop()] if kind else []

    def _start(self, block: dict[str, Any]) -> dict[str, Any]:
        self._blocks.append(block)
        return {"type": "content_block_start", "index": len(self._blocks) - 1, "content_block": {**block}}

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": len(self._blocks) - 1, "delta": delta}

    def _stop(self) -> dict[str, Any]:
        return {"type": "content_block_stop", "index": len(self._blocks) - 1}


def _arguments(text: str) -> dict[str, Any]:
    """Return arguments as this API's object; a model's arguments that are not an object become a text."""
    try:
        value = orjson.loads(text)
    except ValueError:
        value = text
    return value if isinstance(value, dict) else {"arguments": value}


def _usage(prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> dict[str, int]:
    """Return the usage; tokens that were read from a cache count apart."""
    return {
        "input_tokens": prompt_tokens - cached_tokens, "output_tokens": completion_tokens,
        "cache_read_input_tokens": cached_tokens, "cache_creation_input_tokens": 0,
    }  # fmt: skip


def messages_error(error: RdukitError) -> dict[str, object]:
    """Return the error as Anthropic's clients read it."""
    kind = _ERRORS.get(error.http_status, "invalid_request_error" if error.http_status < 500 else "api_error")
    found: dict[str, object] = {"type": kind, "message": error.message}
    if error.detail.get("field") == "thread":  # tool runners of the official clients then send complete conversations
        found["details"] = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    return {"type": "error", "error": found}
