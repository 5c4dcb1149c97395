"""LlamaIndex' ``OpenAILike``: completions, chats, streams, tools."""

import os

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

llm = OpenAILike(
    model=os.environ["CLIENT_MODEL"],
    api_base=os.environ["OPENAI_BASE_URL"],
    api_key=os.environ["OPENAI_API_KEY"],
    is_chat_model=True,
    is_function_calling_model=True,
    context_window=4096,
    max_tokens=60,
)
print("complete", repr(llm.complete("Paul Graham is ").text))
print("chat", llm.chat([ChatMessage(role="user", content="Hello")]).message)
print("stream", "".join(piece.delta or "" for piece in llm.stream_chat([ChatMessage(role="user", content="Hello")])))


def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


tool = FunctionTool.from_defaults(fn=multiply)
asked = [ChatMessage(role="user", content="What is 2 times 3?")]
answer = llm.chat(asked, tools=[tool.metadata.to_openai_tool()], tool_choice="required")
calls = llm.get_tool_calls_from_response(answer)
assert calls[0].tool_name == "multiply" and set(calls[0].tool_kwargs) == {"a", "b"}, answer
print("done")
