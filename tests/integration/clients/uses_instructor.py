"""``instructor``: models of pydantic from chats, by tools and by JSON schemas, partial and in lists."""

import os

import instructor
from openai import OpenAI
from pydantic import BaseModel, Field

MODEL = os.environ["CLIENT_MODEL"]


class User(BaseModel):
    """A user."""

    name: str
    age: int = Field(ge=0, le=150)


messages = [{"role": "user", "content": "Jason is 25 years old"}]
for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
    client = instructor.from_openai(OpenAI(), mode=mode)
    user = client.chat.completions.create(model=MODEL, messages=messages, response_model=User, max_retries=0)
    assert isinstance(user, User) and 0 <= user.age <= 150
    print(mode, user)
client = instructor.from_openai(OpenAI())
for partial in client.chat.completions.create_partial(
    model=MODEL, messages=messages, response_model=User, max_retries=0
):
    print("partial", partial)
print("done")
