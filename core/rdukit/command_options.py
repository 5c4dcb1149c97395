"""Options that commands of several parts have, and what their texts mean."""

import json
from collections.abc import Sequence
from typing import Any, Final

import click

from rdukit.errors import InvalidArgument, suggest

#: Gives the command's function ``as_json``.
JSON_OPTION: Final = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")


class Choice(click.Choice[str]):
    """One of some words; a mistyped one is refused with those near it."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        """Return click's message with a suggestion."""
        return super().get_invalid_choice_message(value, ctx) + suggest(str(value), map(str, self.choices))


def parse_name_values(option: str, texts: Sequence[str]) -> dict[str, str]:
    """Values by name of options that are each ``NAME=VALUE``; of two for one name the later holds.

    Raises:
        InvalidArgument: a text has no name or no ``=``; the message names ``option``.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise InvalidArgument(f"{option} {text!r} is not legal; legal: NAME=VALUE")
        found[name] = value
    return found


def parse_value(text: str) -> object:
    """A number or truth value if it reads as one in JSON, else the text."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, (bool, int, float)) else text
