"""The ``openai`` package: chats, streams, tools, structured outputs, responses, embeddings."""

import json
import os
from typing import Literal

from openai import OpenAI
from pydantic import BaseModel

MODEL = os.environ["CLIENT_MODEL"]
client = OpenAI()
messages = [{"role": "user", "content": "Say this is a test."}]

completion = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=30)
print("chat", repr(completion.choices[0].message.content))

with client.chat.completions.stream(model=MODEL, messages=messages) as stream:
    for event in stream:
        if event.type == "content.delta":
            print("delta", repr(event.delta))
    assert stream.get_final_completion().choices[0].finish_reason == "stop"


class CalendarEvent(BaseModel):
    """An event."""

    name: str
    date: str
    participants: list[str]
    kind: Literal["meeting", "party"]


parsed = client.chat.completions.parse(
    model=MODEL,
    messages=messages,
    response_format=CalendarEvent,
    verbosity="low",
    prompt_cache_key="events",
    safety_identifier="someone",
    service_tier="auto",
    store=False,
)
assert isinstance(parsed.choices[0].message.parsed, CalendarEvent), parsed
print("parsed", parsed.choices[0].message.parsed)

tools = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get the temperature at a place.",
            "strict": True,
            "parameters": {
                "type": "object",
                "properties": {"location": {"type": "string"}, "units": {"enum": ["c", "f"]}},
                "required": ["location", "units"],
                "additionalProperties": False,
            },
        },
    }
]
called = client.chat.completions.create(model=MODEL, messages=messages, tools=tools, tool_choice="required")
call = called.choices[0].message.tool_calls[0]
assert json.loads(call.function.arguments)["units"] in {"c", "f"}
messages += [called.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "14"}]
client.chat.completions.create(model=MODEL, messages=messages, tools=tools)

response = client.responses.parse(
    model=MODEL, input="Who meets?", text_format=CalendarEvent, reasoning={"effort": "low"}
)
assert isinstance(response.output_parsed, CalendarEvent), response
with client.responses.stream(model=MODEL, input="Say hi.") as stream:
    assert stream.until_done().get_final_response().status == "completed"
assert client.embeddings.create(model=MODEL, input="hi").data[0].embedding
assert client.completions.create(model=MODEL, prompt="hi", stop=["a", "b", "c", "d", "e"]).choices
print("done")
