"""Messages of a chat as callers send them, checked, and as chat templates read them.

Source: OpenAI's API reference, "Create chat completion", and the parts of an answer that its clients send back.
"""

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

#: Names of functions.
FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]


class RequestPart(BaseModel):
    """Object within a request: a key that it does not have is refused."""

    model_config = ConfigDict(extra="forbid")


#: Types of parts in the served APIs that are not text.
_MEDIA: Final = re.compile(r"(input_)?(image|audio|video|file|document)(_url|_content)?")


class TextOnly(RequestPart):
    """Part of a content, which must be text."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_media(cls, value: Any) -> Any:
        kind = value.get("type") if isinstance(value, dict) else None
        if isinstance(kind, str) and _MEDIA.fullmatch(kind):
            raise ValueError(f"parts of type {kind} are not supported, because the model reads only text")
        return value


class TextPart(TextOnly):
    """Part of a message's content: a text, or an assistant's refusal, which is one to the model."""

    type: Literal["text"]
    text: str

    @model_validator(mode="before")
    @classmethod
    def _take_refusal(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("type") == "refusal" and value.keys() == {"type", "refusal"}:
            return {"type": "text", "text": value["refusal"]}
        return value


class CalledFunction(RequestPart):
    """Function that an assistant called, and its arguments as JSON text."""

    name: FunctionName
    arguments: str


class MadeCall(RequestPart):
    """Call that an assistant's message made."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None

    def for_template(self) -> dict[str, Any]:
        """Return the call in the form of templates: arguments that are an object become one."""
        arguments: Any = self.function.arguments
        try:
            parsed = json.loads(arguments)
            arguments = parsed if isinstance(parsed, dict) else arguments
        except (ValueError, RecursionError):
            pass
        return {"id": self.id, "type": self.type, "function": {"name": self.function.name, "arguments": arguments}}


class DeclaredFunction(RequestPart):
    """Function that a model may call; ``parameters`` is a JSON schema of an object."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionTool(RequestPart):
    """Tool of a chat."""

    type: Literal["function"]
    function: DeclaredFunction


class ChosenFunction(RequestPart):
    """Function that must be called."""

    name: FunctionName


class ChosenTool(RequestPart):
    """Tool that must be called."""

    type: Literal["function"]
    function: ChosenFunction


def declare_tool(name: str, description: str | None, parameters: dict[str, Any] | None) -> FunctionTool:
    """Return the tool that another API describes, as a chat has it."""
    return FunctionTool(
        type="function", function=DeclaredFunction(name=name, description=description, parameters=parameters)
    )


def choose_tool(name: str) -> ChosenTool:
    """Return the choice of a tool that must be called."""
    return ChosenTool(type="function", function=ChosenFunction(name=name))


class ChatMessage(RequestPart):
    """Message of a chat."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    #: For an assistant: its calls, and its thoughts, which some templates show again.
    tool_calls: list[MadeCall] | None = None
    reasoning_content: str | None = None
    #: For a tool: the call that it answers.
    tool_call_id: str | None = None
    #: Parts of an answer that clients send back; models ignore them.
    refusal: str | None = None
    annotations: list[Any] | None = None
    audio: None = None
    #: The older form of an assistant's call; results have the role ``function`` and its name.
    function_call: CalledFunction | None = None

    @model_validator(mode="after")
    def _check_role(self) -> Self:
        if self.tool_calls and self.role != "assistant":
            raise ValueError("tool_calls are valid only with the role assistant")
        if self.function_call is not None and (self.tool_calls or self.role != "assistant"):
            raise ValueError("function_call is valid only with the role assistant and without tool_calls")
        if self.role == "function" and not self.name:
            raise ValueError("a message with the role function needs name, the function whose result it is")
        if self.role == "tool" and self.tool_call_id is None:
            raise ValueError("a message with the role tool needs tool_call_id, the id of the call that it answers")
        if self.content is None and self.role != "assistant":
            raise ValueError("content is missing; it may be null only with the role assistant")
        return self

    def for_template(self, knows_developers: bool) -> dict[str, Any]:
        """Return the message in the form of templates, with its text in one piece.

        ``knows_developers``: the template has the role ``developer``; else it is ``system``.
        """
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content or ())
        found: dict[str, Any] = {"role": self.role, "content": text}
        if self.role == "developer" and not knows_developers:
            found["role"] = "system"
        if self.tool_calls:
            found["tool_calls"] = [call.for_template() for call in self.tool_calls]
            found["content"] = text or None
        optional = {"name": self.name, "tool_call_id": self.tool_call_id, "reasoning_content": self.reasoning_content}
        return found | {key: value for key, value in optional.items() if value is not None}


#: Variables of a template that are a chat's own.
OWN_VARIABLES: Final = frozenset(
    {"messages", "tools", "add_generation_prompt", "chat_template", "bos_token", "eos_token"}
)


def check_template_values(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return more variables of a template.

    Raises:
        ValueError: a value has a name that the chat sets itself.
    """
    own = sorted(OWN_VARIABLES & values.keys())
    if own:
        raise ValueError(f"{own[0]} is reserved for the chat; leave it out")
    return values
