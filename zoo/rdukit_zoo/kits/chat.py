"""Chat with a text model: answers are streamed, each with its speed.

``python -m rdukit_zoo.kits.chat --system "You are brief."`` reads a line, answers it, and keeps both as context.
"""

import sys
from typing import Any

import click
import openai

from rdukit_zoo.kits.model import KitModel, with_model


@click.command()
@with_model
@click.option("--system", default="", help="Instructions at the start of the chat.")
@click.option(
    "--temperature", default=0.7, show_default=True, help="Sampling temperature; 0: always the likeliest token."
)
@click.option("--most", default=256, show_default=True, help="Largest number of tokens in an answer.")
def main(model: KitModel, system: str, temperature: float, most: int) -> None:
    """Chat with a text model, a line at a time; an empty line or Ctrl-D ends it.

    Example: python -m rdukit_zoo.kits.chat --system "You are brief."
    """
    click.echo(f"{model.name} at {model.client.base_url}; an empty line ends the chat", err=True)
    messages: list[Any] = [{"role": "system", "content": system}] if system else []
    while line := _read_line():
        messages.append({"role": "user", "content": line})
        try:
            said = _answer(model, messages, temperature=temperature, max_tokens=most)
        except openai.BadRequestError as error:
            # Usually the chat has become longer than the context: continue without its oldest turn.
            click.echo(f"{error.message}; forgetting the first turn", err=True)
            del messages[-1], messages[bool(system) : bool(system) + 2]
            continue
        messages.append({"role": "assistant", "content": said})


def _read_line() -> str:
    if sys.stdin.isatty():
        click.echo("> ", nl=False, err=True)
    return sys.stdin.readline().strip()


def _answer(model: KitModel, messages: list[Any], **options: Any) -> str:
    """Stream the answer to stdout, then print the server's figures; return the answer."""
    stream = model.client.chat.completions.create(
        model=model.name, messages=messages, stream=True, stream_options={"include_usage": True}, **options
    )
    said = ""
    for chunk in stream:
        if chunk.choices and (text := chunk.choices[0].delta.content):
            said += text
            click.echo(text, nl=False)
        if chunk.usage is not None:
            usage = chunk.usage.model_dump()
            cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
            click.echo(
                f"\n[{chunk.model}: first token after {1000 * usage['time_to_first_token']:.0f} ms, then "
                f"{usage['completion_tokens_after_first_per_sec']:.1f} tokens/s; {usage['prompt_tokens']} tokens "
                f"read, {cached} of them known, {usage['completion_tokens']} made]",
                err=True,
            )
    click.echo()
    return said


if __name__ == "__main__":
    main()
