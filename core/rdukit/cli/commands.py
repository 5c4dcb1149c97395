"""Building blocks of the commands of all parts: groups that parts extend, suggestions, shared options."""

import json
import re
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from rdukit.errors import InvalidArgument, suggest
from rdukit.settings import CONTEXT, TOKEN, parse_token, resolve

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

F = TypeVar("F", bound=Callable[..., Any])

#: Commands of other tools → their names here.
_SYNONYMS: Final = {
    "ls": ("list",),
    "ps": ("list", "operations", "status"),
    "get": ("show",),
    "describe": ("show",),
    "inspect": ("show",),
    "info": ("show", "status"),
    "show": ("status", "describe"),
    "events": ("watch",),
    "rm": ("revoke", "uninstall", "clear"),
    "delete": ("revoke", "uninstall", "clear"),
    "stop": ("cancel",),
    "kill": ("cancel",),
    "add": ("create", "install"),
    "create": ("add", "submit", "new"),
    "run": ("submit", "start"),
    "tail": ("logs", "watch", "events"),
    "follow": ("watch",),
    "upload": ("add",),
    "download": ("get",),
    "jobs": ("job",),
    "boxes": ("box",),
    "models": ("zoo",),
    "serve": ("up", "run"),
}


class ExtensibleGroup(click.Group):
    """A group with its own commands and those of an entry-point group, which are imported only when used.

    An unknown command is refused with the nearest ones.
    """

    def __init__(self, *args: Any, extended_by: str = "", **options: Any) -> None:
        """Create the group.

        Args:
            extended_by: the entry-point group, such as ``rdukit.box.commands``; empty: none.
        """
        super().__init__(*args, **options)
        self.extended_by = extended_by

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, sorted."""
        return sorted({*super().list_commands(ctx), *(point.name for point in self._points)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command, imported from another part if necessary; its help gets this group's last line."""
        found = super().get_command(ctx, cmd_name)
        if found is None:
            found = next((point.load() for point in self._points if point.name == cmd_name), None)
        if found is not None and self.epilog is not None:
            end_help_as(found, self.epilog)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each command's name and its first sentence, unabridged."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, command.get_short_help_str(limit=400)) for name, command in commands if command is not None]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that ``args`` begin with. Raises: click.UsageError: there is none; the message names similar
        ones.
        """
        if args[0] in self.commands:  # without reading the installed entry points
            return super().resolve_command(ctx, args)
        word, names = args[0], self.list_commands(ctx)
        if word in names or word.startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        meant = [name for name in _SYNONYMS.get(word, ()) if name in names]
        hint = suggest(word, meant or names, is_sure=bool(meant)) or f" There are: {', '.join(names)}."
        raise click.UsageError(f"No such command {word!r}.{hint}", ctx)

    @cached_property
    def _points(self) -> "Sequence[EntryPoint]":
        """Commands of other parts, looked up once: each lookup reads the metadata of all packages."""
        if not self.extended_by:
            return ()
        from importlib.metadata import entry_points  # imports as slowly as click, so only if needed

        return tuple(entry_points(group=self.extended_by))


def end_help_as(command: click.Command, epilog: str) -> None:
    """Set the last line of the help of a command and its sub-commands, unless they have one."""
    if command.epilog is None:
        command.epilog = epilog
    for inner in getattr(command, "commands", {}).values():
        end_help_as(inner, epilog)


#: Option ``--json``, as the parameter ``as_json``.
JSON_OPTION: Final = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")


#: Option for commands that call a box; ``given_token`` returns its value.
BOX_TOKEN_OPTION: Final = click.option(
    "--token", metavar="TOKEN|@FILE", expose_value=False, callback=lambda context, _, text: _keep_token(context, text),
    help="Token to send, or @FILE to read it from a file [env: RDUKIT_TOKEN].",
)  # fmt: skip
_TOKEN_KEY: Final = "rdukit.token"
#: Option for commands that call a gateway; ``given_context`` returns its value.
CONTEXT_OPTION: Final = click.option(
    "--context", metavar="NAME", expose_value=False, callback=lambda context, _, text: _keep_context(context, text),
    help="Platform to use, by its name in rdukit context list [env: RDUKIT_CONTEXT].",
)  # fmt: skip
_CONTEXT_KEY: Final = "rdukit.context"


def _at_gateway(command: F) -> F:
    return BOX_TOKEN_OPTION(CONTEXT_OPTION(command))


#: Options for commands that call a gateway; ``given_token`` and ``given_context`` return the values.
TOKEN_OPTION: Final = _at_gateway


def token_option() -> str:
    """Return the running command's ``--token``; empty if there is none."""
    return _given(_TOKEN_KEY) or ""


def given_token() -> str:
    """Return the running command's ``--token``, otherwise the setting; empty if there is neither."""
    return resolve(TOKEN, _given(_TOKEN_KEY))


def given_context() -> str:
    """Return the running command's ``--context``, otherwise the setting; empty if there is neither."""
    return resolve(CONTEXT, _given(_CONTEXT_KEY))


def _given(key: str) -> str | None:
    context = click.get_current_context(silent=True)
    found: str | None = None if context is None else context.meta.get(key)
    return found


def _keep_context(context: click.Context, text: str | None) -> None:
    if text is not None:
        context.meta[_CONTEXT_KEY] = text


def _keep_token(context: click.Context, text: str | None) -> None:
    if text is not None:
        try:
            context.meta[_TOKEN_KEY] = parse_token(text)
        except ValueError as cause:
            raise InvalidArgument(f"--token {text} is not valid: {cause}") from cause


#: Unit of a duration → its seconds.
_SECONDS: Final = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class Duration(click.ParamType[float]):
    """Duration in seconds: a number, or one with s, m, h or d."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds; a number is returned unchanged."""
        if isinstance(value, int | float):
            return float(value)
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", value.strip())
        if found is None:
            self.fail(
                f"{value!r} is not a duration; expected a number of seconds, or a value such as 15m, 12h or 30d",
                param,
                ctx,
            )
        return float(found[1]) * _SECONDS[found[2]]


class Choice(click.Choice[str]):
    """Choice among some words; the error for a mistyped one names similar words."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        """Return click's message with a suggestion."""
        return super().get_invalid_choice_message(value, ctx) + suggest(str(value), map(str, self.choices))


def with_plain_range(error: click.ClickException) -> click.ClickException:
    """Return click's error about an option; if it takes a range of numbers, state the range as the other messages
    do.
    """
    if not isinstance(error, click.BadParameter) or error.param is None:
        return error
    kind = error.param.type
    if not isinstance(kind, click.IntRange | click.FloatRange):
        return error
    value = re.split(r" is not (?:a valid|in the) ", error.message)[0]
    number = "a whole number" if isinstance(kind, click.IntRange) else "a number"
    low = "" if kind.min is None else f" {'above' if kind.min_open else 'from'} {kind.min}"
    high = "" if kind.max is None else f" {'below' if kind.max_open else 'to'} {kind.max}"
    said = f"{value} is not valid; expected {number}{low}{high}."
    return click.BadParameter(said, error.ctx, error.param, error.param_hint)


def parse_name_values(option: str, texts: Sequence[str]) -> dict[str, str]:
    """Parse options of the form ``NAME=VALUE``.

    Raises:
        InvalidArgument: a text has no name or no ``=``, or a name is repeated; the message names ``option``.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise InvalidArgument(f"{option} {text!r} is not valid; expected NAME=VALUE")
        if name in found:
            raise InvalidArgument(f"{option} gives {name} twice, {found[name]!r} and {value!r}; expected once")
        found[name] = value
    return found


def parse_value(text: str) -> object:
    """Return the number or boolean that ``text`` is in JSON, otherwise the text."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, (bool, int, float)) else text
