"""SambaStudio's generic API, version 2 (items) and 1 (instances): prompts or chats in, completions out.

Source: SambaStudio's documentation, "API V2" and "API V1"; what its public clients (langchain's ``SambaStudio``,
llama-index's ``SambaStudio``) send and read. The reason of a text's end is reported in its words.
"""

import ast
import contextlib
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Annotated, Any, Final, Literal, Self

import orjson
from fastapi import Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field, ValidationError, model_validator

from rdukit.errors import InvalidArgument, RdukitError
from rdukit_serving.text.answers import Turn, make_together, server_timing, stream_response, unless_gone
from rdukit_serving.text.chat_messages import ChatMessage, RequestPart
from rdukit_serving.text.openai_values import ChatBody, SamplingFields, Stop
from rdukit_serving.text.queue import Done, Piece

_REASONS: Final = {"length": "max_len_reached", "stop": "end_of_text"}
#: Longest list of stop sequences as version 1 writes it.
_MAX_LISTED: Final = 4096


class GenericParams(SamplingFields):
    """Parameters of version 2; greedy unless ``do_sample`` is true. ``select_expert`` wins over the path's model."""

    select_expert: str | None = None
    process_prompt: bool = False
    max_tokens_to_generate: Annotated[int, Field(ge=1)] | None = None
    stop_sequences: Stop = None

    @model_validator(mode="before")
    @classmethod
    def _take_off_types(cls, value: Any) -> Any:
        """Also accept version 1's parameters: each has a type's name and a text."""
        return {key: _untyped(each) for key, each in value.items()} if isinstance(value, dict) else value

    def sampling(self, choice: int) -> dict[str, object]:
        """Return values for ``SamplingOptions``."""
        found = super().sampling(choice)
        return found if self.do_sample else {**found, "temperature": 0.0}

    def stops(self) -> Sequence[str]:
        """Return the texts that end a generation."""
        stop = self.stop_sequences or ()
        return [stop] if isinstance(stop, str) else stop


def _untyped(value: Any) -> Any:
    if not isinstance(value, dict) or set(value) != {"type", "value"}:
        return value
    kind, text = value["type"], value["value"]
    if kind == "NoneType":
        return None
    if kind == "list" and isinstance(text, str) and len(text) <= _MAX_LISTED:
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError) as cause:
            raise ValueError("the value of a parameter of type list is not a list") from cause
    return text


class GenericItem(RequestPart):
    """Prompt, or with ``process_prompt`` a chat as JSON text; the default id is its index."""

    id: Annotated[str, Field(pattern="^[^#]{1,200}$")] | None = None
    value: str


class ItemsBody(RequestPart):
    """Body of ``POST /api/v2/predict/generic/…``."""

    items: Annotated[list[GenericItem], Field(min_length=1, max_length=64)]
    params: GenericParams = GenericParams()

    @property
    def named_items(self) -> list[tuple[str, str]]:
        """Return id and prompt of each item.

        Raises:
            InvalidArgument: two have the same id.
        """
        found = [(str(at) if item.id is None else item.id, item.value) for at, item in enumerate(self.items)]
        if len({name for name, _ in found}) != len(found):
            raise InvalidArgument("items: each needs a unique id", field="items")
        return found


class InstancesBody(RequestPart):
    """Body of ``POST /api/predict/generic/…``: ``instances``, or ``instance`` for a stream."""

    instances: Annotated[list[str], Field(min_length=1, max_length=64)] | None = None
    instance: str | None = None
    params: GenericParams = GenericParams()

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if (self.instances is None) == (self.instance is None):
            raise ValueError("expected exactly one of instances and instance")
        return self

    @property
    def named_items(self) -> list[tuple[str, str]]:
        """Return id and prompt of each instance."""
        prompts = [self.instance or ""] if self.instances is None else self.instances
        return [(str(at), prompt) for at, prompt in enumerate(prompts)]


class StudioMessage(RequestPart):
    """Message of a chat."""

    message_id: int | str | None = None
    role: Literal["system", "user", "assistant"]
    content: str


class Conversation(RequestPart):
    """Chat in the form of a prompt."""

    messages: Annotated[list[StudioMessage], Field(min_length=1)]
    conversation_id: str | None = None


def read_chat(model: str, prompt: str, params: GenericParams) -> ChatBody:
    """Read a prompt that is to be processed: a chat as JSON text, otherwise a user's message.

    Raises:
        InvalidArgument: an object that is not a chat.
    """
    messages = [ChatMessage(role="user", content=prompt)]
    if prompt.lstrip().startswith("{"):
        try:
            chat = Conversation.model_validate_json(prompt)
        except ValidationError as cause:
            first = cause.errors()[0]
            place = ".".join(str(part) for part in first["loc"])
            raise InvalidArgument(
                f"items: the value is not a chat: {place}: {first['msg']}; with process_prompt expected "
                '{"messages": [{"message_id", "role", "content"}]}, or a text', field="items",
            ) from cause  # fmt: skip
        messages = [ChatMessage(role=each.role, content=each.content) for each in chat.messages]
    return ChatBody(
        model=model, messages=messages, max_tokens=params.max_tokens_to_generate, stop=params.stop_sequences,
        **params.sampling_fields() | {"do_sample": bool(params.do_sample)},
    )  # fmt: skip


class GenericAnswer:
    """Answer of one request; its texts are generated together.

    ``turns`` has id, prompt and turn of each; ``is_v2``: with items, not predictions.
    """

    def __init__(self, turns: Sequence[tuple[str, str, Turn]], is_v2: bool) -> None:
        self._turns = turns
        self._is_v2 = is_v2

    async def respond(self, request: Request, is_stream: bool) -> Response:
        """Respond whole, or with a line of JSON for each piece."""
        if is_stream:
            return await stream_response(request, self._lines(), _last_words, "application/json")
        found, dones = await unless_gone(request, self._finish())
        body = {"items": found} if self._is_v2 else {"predictions": [each["value"] for each in found]}
        waited, worked = max(done.queue_us for done in dones), max(done.compute_us for done in dones)
        return JSONResponse(body, headers=server_timing(self._turns[0][2].version, waited, worked))

    async def _finish(self) -> tuple[list[dict[str, Any]], list[Done]]:
        found: dict[int, dict[str, Any]] = {}
        dones = []
        async for at, value, done in self._made():
            if done is not None:
                found[at] = {"id": self._turns[at][0], "value": value}
                dones.append(done)
        return [found[at] for at in sorted(found)], dones

    async def _lines(self) -> AsyncGenerator[bytes]:
        async with contextlib.aclosing(self._made()) as made:
            async for at, value, done in made:
                value = value if done is None else {"stream_token": "", **value}
                items = {"items": [{"id": self._turns[at][0], "value": value}]}
                yield orjson.dumps({"result": items if self._is_v2 else {"responses": [value]}}) + b"\n"

    async def _made(self) -> AsyncGenerator[tuple[int, dict[str, Any], Done | None]]:
        """Yield a text's number and a piece, or its number and the complete text with its end."""
        texts = [""] * len(self._turns)
        async with contextlib.aclosing(make_together([turn for _, _, turn in self._turns])) as events:
            async for at, event in events:
                if isinstance(event, Piece) and event.text:
                    texts[at] += event.text
                    yield at, {"stream_token": event.text, "is_last_response": False}, None
                elif isinstance(event, Done):
                    _, prompt, turn = self._turns[at]
                    yield at, {"completion": texts[at], **_told(prompt, turn, event)}, event


def _told(prompt: str, turn: Turn, done: Done) -> dict[str, Any]:
    """Return the report about an ended text; times are seconds."""
    usage: Any = turn.tally.usage(time.time())
    return {
        "is_last_response": True, "prompt": prompt,
        "stop_reason": "stop_sequence_hit" if done.stop_sequence is not None else _REASONS[done.reason],
        "prompt_tokens_count": usage["prompt_tokens"], "completion_tokens_count": usage["completion_tokens"],
        "total_tokens_count": usage["total_tokens"], "start_time": usage["start_time"], "end_time": usage["end_time"],
        "model_execution_time": done.compute_us / 1e6, "time_to_first_token": usage["time_to_first_token"],
        "throughput_after_first_token": usage["completion_tokens_after_first_per_sec"],
    }  # fmt: skip


def _last_words(error: RdukitError) -> bytes:
    return orjson.dumps(studio_error(error)) + b"\n"


def studio_error(error: RdukitError) -> dict[str, object]:
    """Return the error in a form of ours; the vendor's is not documented. Source: ours."""
    return {"error": {"code": error.code, "message": error.message, "details": error.detail.get("field")}}
