"""``langchain-openai`` and ``langchain-anthropic``: chats, streams, tools, structured output."""

import os
from typing import Literal

from langchain_anthropic import ChatAnthropic
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field

MODEL = os.environ["CLIENT_MODEL"]


class Joke(BaseModel):
    """A joke to tell."""

    setup: str = Field(description="The setup of the joke")
    rating: Literal[1, 2, 3]


class GetWeather(BaseModel):
    """Get the weather at a place."""

    location: str


for chat in (ChatOpenAI(model=MODEL, max_tokens=400), ChatAnthropic(model=MODEL, max_tokens=400)):
    print("invoke", repr(chat.invoke("Hello").content))
    print("stream", len(list(chat.stream("Hello"))))
    said = chat.bind_tools([GetWeather], tool_choice="GetWeather").invoke("What is the weather in Paris?")
    assert "location" in said.tool_calls[0]["args"], said
    joke = chat.with_structured_output(Joke, method="function_calling").invoke("Tell me a joke")
    assert joke.rating in {1, 2, 3}
    joke = chat.with_structured_output(Joke, method="json_schema").invoke("Tell me a joke")
    assert joke.rating in {1, 2, 3}
assert OpenAIEmbeddings(model=MODEL, check_embedding_ctx_length=False).embed_query("hi")
print("done")
