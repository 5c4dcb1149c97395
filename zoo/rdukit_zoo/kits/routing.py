"""Ask three experts behind one name: each prompt goes to the expert that suits it, and the answer says which it was.

``rdukit router train`` learns from labelled prompts, such as those of ``prompts.jsonl`` next to this file, and
``rdukit router serve`` puts the experts behind one name.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from rdukit_zoo.kits.model import KitModel, with_model

PROMPTS: Final = Path(__file__).with_name("prompts.jsonl")


@click.command()
@click.argument("prompts", nargs=-1, required=True)
@with_model
@click.option("--most", default=60, show_default=True, help="Largest number of tokens in an answer.")
def main(prompts: Sequence[str], model: KitModel, most: int) -> None:
    """Ask each of PROMPTS, and print who answered, how sure the router was, and the answer.

    Example: python -m rdukit_zoo.kits.routing --url http://127.0.0.1:9010/v1 "What is 12 * 12?"
    """
    for prompt in prompts:
        raw = model.client.chat.completions.with_raw_response.create(
            model=model.name, messages=[{"role": "user", "content": prompt}], max_tokens=most, temperature=0
        )
        answer = raw.parse()
        sure = raw.headers.get("x-rdukit-expert", "").partition("confidence=")[2] or "-"
        click.echo(f"{answer.model} ({sure}): {answer.choices[0].message.content}")


if __name__ == "__main__":
    main()
