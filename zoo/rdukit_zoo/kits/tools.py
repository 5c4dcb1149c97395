"""Let a model call real tools: arithmetic, queries of an SQLite database, and the clock.

The model requests a tool with arguments; this program runs it and returns the result, until the model answers. Requests
of a model are untrusted: sums are parsed and never evaluated as code, and the database is opened read-only. The program
uses the vendor's client ``sambanova``; that of ``openai`` works alike.
"""

import ast
import json
import operator
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click
import httpx
from sambanova import APIError, SambaNova

from rdukit_zoo.kits.model import KitModel, with_model

#: Time limit in seconds of a database query.
QUERY_S: Final = 5.0
#: Allowed actions. A read-only connection could still write files by VACUUM INTO, and open others by ATTACH.
_READING: Final = frozenset(
    {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
)
_SIGNS: Final[dict[type, Callable[..., Any]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.USub: operator.neg,
}  # fmt: skip


def calculate(sum: str) -> float:
    """Work out a sum of numbers with + - * / and brackets."""

    def value(node: ast.AST) -> Any:
        match node:
            case ast.Constant(value=int() | float() as number):
                return number
            case ast.BinOp(left, sign, right) if type(sign) in _SIGNS:
                return _SIGNS[type(sign)](value(left), value(right))
            case ast.UnaryOp(ast.USub() as sign, inner):
                return _SIGNS[type(sign)](value(inner))
        raise ValueError("expected only numbers, + - * / and brackets")

    return value(ast.parse(sum, mode="eval").body)  # type: ignore[no-any-return]


def clock() -> str:
    """Return the time in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def make_query(database: Path, most_s: float = QUERY_S) -> Callable[[str], list[Any]]:
    """Return the tool that reads from a database, for ``most_s`` seconds at a time."""

    def query(sql: str) -> list[Any]:
        """Read rows of the SQLite database by one SELECT."""
        with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            end = time.monotonic() + most_s
            connection.set_authorizer(
                lambda action, *_: sqlite3.SQLITE_OK if action in _READING else sqlite3.SQLITE_DENY
            )
            connection.set_progress_handler(lambda: time.monotonic() > end, 10_000)
            return connection.execute(sql).fetchmany(20)

    return query


def describe(tool: Callable[..., Any]) -> Any:
    """Describe a tool to the model; all of its arguments are texts."""
    names = [name for name in tool.__annotations__ if name != "return"]
    texts = {name: {"type": "string", "maxLength": 200} for name in names}
    schema = {"type": "object", "properties": texts, "required": names, "additionalProperties": False}
    described = {"name": tool.__name__, "description": tool.__doc__, "parameters": schema}
    return {"type": "function", "function": described}


@click.command()
@click.argument("question")
@with_model
@click.option("--database", type=click.Path(exists=True, path_type=Path), help="SQLite file that the model may query.")
@click.option("--must-call", is_flag=True, help="Require a call in the first answer.")
@click.option("--rounds", default=4, show_default=True, help="Number of answers after which tools are disabled.")
@click.option("--most", default=200, show_default=True, help="Largest number of tokens in an answer.")
def main(question: str, model: KitModel, database: Path | None, must_call: bool, rounds: int, most: int) -> None:
    """Answer QUESTION with the help of tools.

    Example: python -m rdukit_zoo.kits.tools "What is 17.5 * (3 + 4)?"
    """
    tools: dict[str, Callable[..., Any]] = {"calculate": calculate, "clock": clock}
    if database is not None:
        tools["query"] = make_query(database)
    http, url = httpx.Client(trust_env=False), str(model.client.base_url)
    try:
        with SambaNova(base_url=url, api_key=model.client.api_key, http_client=http) as client:
            converse(client, model.name, question, tools, must_call, rounds, most)
    except APIError as error:
        raise click.ClickException(f"{url}: {error.message}") from error


def converse(
    client: Any, model: str, question: str, tools: dict[str, Callable[..., Any]], must_call: bool, rounds: int,
    most: int,
) -> None:  # fmt: skip
    """Send requests until an answer has no call, and print it."""
    messages: list[Any] = [{"role": "user", "content": question}]
    for turn in range(rounds):
        choice = "none" if turn == rounds - 1 else "required" if must_call and turn == 0 else "auto"
        answer = client.chat.completions.create(
            model=model, messages=messages, tools=[describe(tool) for tool in tools.values()], tool_choice=choice,
            max_tokens=most, temperature=0,
        )  # fmt: skip
        message = answer.choices[0].message
        if not message.tool_calls:
            click.echo(message.content)
            return
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls:
            try:
                result = json.dumps(tools[call.function.name](**json.loads(call.function.arguments)), default=str)
            except (
                ValueError,
                SyntaxError,
                LookupError,
                ArithmeticError,
                RecursionError,
                sqlite3.Error,
                TypeError,
            ) as error:
                result = json.dumps(f"error: {error}")
            click.echo(f"{call.function.name}({call.function.arguments}) = {result}", err=True)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


if __name__ == "__main__":
    main()
