"""Shared by all kits: the address of the model, and its client."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any, Final

import click
import openai

#: Address of a box that `rdukit box run` has started.
URL: Final = "http://127.0.0.1:9000/v1"


@dataclass(frozen=True, slots=True)
class KitModel:
    """Model of texts at a box, a router or an endpoint."""

    client: openai.OpenAI
    name: str

    def ask(self, messages: Any, **more: Any) -> str:
        """Return the model's next message in a chat."""
        answer = self.client.chat.completions.create(model=self.name, messages=messages, **more)
        return answer.choices[0].message.content or ""


@contextmanager
def connect(url: str, token: str, name: str = "") -> Iterator[KitModel]:
    """Connect to a server; the default model is the first that the server lists.

    Raises:
        ClickException: the server does not answer, or refuses, with its message.
    """
    http = openai.DefaultHttpxClient(trust_env=False)
    try:
        with openai.OpenAI(base_url=url, api_key=token, http_client=http) as client:
            yield KitModel(client, name or client.models.list().data[0].id)
    except openai.APIError as error:
        raise click.ClickException(f"{url}: {error.message}") from error


def with_model(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options ``--url``, ``--token`` and ``--model``, and the ``model`` that they name."""

    @wraps(command)
    def run(url: str, token: str, model: str, **named: Any) -> None:
        with connect(url, token, model) as found:
            command(model=found, **named)

    options = [
        click.option("--url", default=URL, show_default=True, help="Base URL of the server, with /v1."),
        click.option("--token", envvar="RDUKIT_TOKEN", default="none", help="Its token [default: $RDUKIT_TOKEN]."),
        click.option("--model", default="", help="Model, expert or router [default: the first that is listed]."),
    ]
    for option in reversed(options):
        run = option(run)
    return run


def given(schema: dict[str, Any], name: str = "answer") -> dict[str, Any]:
    """Return the field ``response_format`` for answers that keep a JSON schema."""
    return {"type": "json_schema", "json_schema": {"name": name, "schema": schema, "strict": True}}
