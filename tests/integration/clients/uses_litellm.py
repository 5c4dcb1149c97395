"""``litellm``: completions by the providers openai and anthropic, streams, tools, JSON schemas."""

import os
from typing import Literal

import litellm
from pydantic import BaseModel

MODEL = os.environ["CLIENT_MODEL"]
messages = [{"role": "user", "content": "Hello, how are you?"}]


class Event(BaseModel):
    """An event."""

    name: str
    kind: Literal["meeting", "party"]


tools = [{"type": "function", "function": {"name": "Event", "parameters": Event.model_json_schema()}}]
for name in (f"openai/{MODEL}", f"anthropic/{MODEL}"):
    print(name, repr(litellm.completion(model=name, messages=messages, max_tokens=40).choices[0].message.content))
    assert list(litellm.completion(model=name, messages=messages, max_tokens=40, stream=True))
    called = litellm.completion(model=name, messages=messages, tools=tools, tool_choice="required", max_tokens=400)
    call = called.choices[0].message.tool_calls[0].function
    assert Event.model_validate_json(call.arguments), called
    formed = litellm.completion(model=name, messages=messages, response_format=Event, max_tokens=400)
    assert Event.model_validate_json(formed.choices[0].message.content), formed
print("done")
