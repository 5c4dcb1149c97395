"""OpenAI's deprecated functions of chats, which older clients send, as tools: request, messages, and answers. Pure.

Source: OpenAI's API reference, "Create chat completion": ``functions``, ``function_call``, the role ``function``.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from rdukit_serving.text.chat_messages import (
    ChatMessage,
    ChosenFunction,
    ChosenTool,
    DeclaredFunction,
    FunctionTool,
    MadeCall,
    choose_tool,
)
from rdukit_serving.text.tool_calls import ToolCall

#: Names of errors' fields in a request with functions.
FIELDS: Final[Mapping[str, str]] = {"tools": "functions", "tool_choice": "function_call"}

FunctionChoice = Literal["none", "auto"] | ChosenFunction


def functions_as_tools(functions: Sequence[DeclaredFunction]) -> list[FunctionTool]:
    """Return functions as a chat's tools."""
    return [FunctionTool(type="function", function=each) for each in functions]


def choice_as_tool(choice: FunctionChoice | None) -> Literal["none", "auto"] | ChosenTool | None:
    """Return the choice of a function as that of a tool."""
    return choose_tool(choice.name) if isinstance(choice, ChosenFunction) else choice


def with_tool_calls(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Return messages whose calls of functions, and results of functions, are those of tools.

    A result answers the last call of its function before it. Ids have nine letters and digits, as Mistral's templates
    require.
    """
    found = []
    ids: dict[str | None, str] = {}
    for number, message in enumerate(messages):
        own = f"call{number:05d}"
        if message.function_call is not None:
            ids[message.function_call.name] = own
            call = MadeCall(id=own, function=message.function_call)
            message = message.model_copy(update={"tool_calls": [call], "function_call": None})
        elif message.role == "function":
            message = message.model_copy(update={"role": "tool", "tool_call_id": ids.get(message.name, own)})
        found.append(message)
    return found


def function_call_of(call: ToolCall) -> dict[str, Any]:
    """Return a call as older clients read it."""
    return {"name": call.name, "arguments": call.arguments}


def function_call_deltas(call: ToolCall) -> Iterator[dict[str, object]]:
    """Yield the pieces of a call for a stream: first the function, then the arguments."""
    yield {"function_call": {"name": call.name, "arguments": ""}}
    yield {"function_call": {"arguments": call.arguments}}
