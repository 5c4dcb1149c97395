"""``pydantic-ai``: agents with an output type, by tools and by the model's own structured output, and with a tool."""

import os
from typing import Literal

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel

MODEL = os.environ["CLIENT_MODEL"]


class CityLocation(BaseModel):
    """Where a city is."""

    city: str
    continent: Literal["Europe", "Asia"]


model = OpenAIChatModel(MODEL, provider="openai")
for output in (ToolOutput(CityLocation), NativeOutput(CityLocation)):
    result = Agent(model, output_type=output).run_sync("Where were the olympics held in 2012?")
    assert isinstance(result.output, CityLocation)
    print(type(output).__name__, result.output, result.usage)
agent = Agent(model, instructions="Be short.", model_settings={"max_tokens": 40, "temperature": 0.5})
print("text", repr(agent.run_sync("Say hi.").output))
print("done")
