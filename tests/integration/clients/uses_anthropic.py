"""The ``anthropic`` package: messages, streams, tools, thinking that is off, counts of tokens."""

import os

from anthropic import Anthropic

MODEL = os.environ["CLIENT_MODEL"]
client = Anthropic()
messages = [{"role": "user", "content": "Hello, Claude"}]

message = client.messages.create(model=MODEL, max_tokens=64, messages=messages, system="Be short.")
print("message", message.content)

with client.messages.stream(model=MODEL, max_tokens=64, messages=messages) as stream:
    for text in stream.text_stream:
        print("text", repr(text))
    assert stream.get_final_message().stop_reason in {"end_turn", "max_tokens"}

tools = [
    {
        "name": "get_weather",
        "description": "Get the weather at a place.",
        "input_schema": {
            "type": "object",
            "properties": {"location": {"type": "string"}, "unit": {"type": "string", "enum": ["c", "f"]}},
            "required": ["location", "unit"],
        },
    }
]
used = client.messages.create(
    model=MODEL,
    max_tokens=1024,
    tools=tools,
    messages=messages,
    tool_choice={"type": "any"},
    thinking={"type": "disabled"},
    metadata={"user_id": "someone"},
    service_tier="auto",
)
assert used.stop_reason == "tool_use", used
tool = next(block for block in used.content if block.type == "tool_use")
assert tool.input["unit"] in {"c", "f"}
messages += [
    {"role": "assistant", "content": used.content},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": tool.id, "content": "15 degrees"}]},
]
client.messages.create(model=MODEL, max_tokens=64, tools=tools, messages=messages)
assert client.messages.count_tokens(model=MODEL, messages=messages[:1]).input_tokens > 0
print("done")
