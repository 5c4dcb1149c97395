"""Reference of the command line for the site, from the commands themselves: one page for each of ``rdukit``'s."""

import inspect
import re
from collections.abc import Iterator
from typing import Final

import click

from rdukit.cli.app import ROLES, SUMMARIES
from rdukit.cli.app import cli as root

#: Head of a page that its list leads to, and the navigation does not: Furo writes the whole navigation into each page.
ORPHAN: Final = "---\norphan: true\n---\n\n"
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#~])")


def escaped(text: str) -> str:
    """Return plain text as Markdown that shows it, on one line; ``code`` in double backticks stays code."""
    parts = re.split(r"``(.+?)``", " ".join(text.split()))
    return "".join(f"`{part}`" if number % 2 else _SPECIAL.sub(r"\\\1", part) for number, part in enumerate(parts))


def cli_pages() -> dict[str, str]:
    """Return Markdown by place in the site: ``cli``, the list by role, and ``cli/NAME`` for each command."""
    context = click.Context(root, info_name="rdukit")
    pages = {"cli": _list_page(list(context_options(context)))}
    for name in root.list_commands(context):
        command = root.get_command(context, name)
        assert command is not None
        blocks = list(_command_blocks(command, click.Context(command, parent=context, info_name=name), 1))
        pages[f"cli/{name}"] = ORPHAN + "\n\n".join(blocks) + "\n"
    return pages


def _list_page(options: list[str]) -> str:
    blocks = ["# Command line", "Every command, by what it is for. `rdukit COMMAND --help` prints the same in a shell."]
    for role, commands in ROLES.items():
        rows = [f"| [rdukit {name}](cli/{name}.md) | {escaped(SUMMARIES[name])} |" for name in commands]
        blocks += [f"## {role}", "\n".join(["| command | what it does |", "| --- | --- |", *rows])]
    return "\n\n".join([*blocks, "## Options of all", *options]) + "\n"


def toctree(places: str, caption: str = "") -> str:
    """Return the block that puts pages below the one that has it, in the navigation."""
    name = f":caption: {caption}\n" if caption else ""
    return f"```{{toctree}}\n:hidden:\n{name}\n{places}\n```"


def _command_blocks(command: click.Command, context: click.Context, level: int) -> Iterator[str]:
    """Yield the blocks of Markdown of a command and of those below it."""
    yield f"{'#' * min(level, 3)} {context.command_path}"
    yield from help_blocks(command.help or "")
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"```text\n{context.command_path} {usage}\n```"
    yield from context_options(context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _command_blocks(inner, click.Context(inner, parent=context, info_name=name), level + 1)


def help_blocks(text: str) -> Iterator[str]:
    """Yield a help text's paragraphs; examples and paragraphs that keep their lines are code."""
    for paragraph in filter(None, re.split(r"\n\s*\n", inspect.cleandoc(text))):
        if paragraph.startswith("\b"):
            yield f"```text\n{paragraph[1:].strip()}\n```"
        elif paragraph.startswith("Example: "):
            yield f"```text\n{' '.join(paragraph.removeprefix('Example: ').split())}\n```"
        else:
            yield escaped(paragraph)


def context_options(context: click.Context) -> Iterator[str]:
    """Yield the table of a command's options, if it has any."""
    records = [record for each in context.command.get_params(context) if (record := each.get_help_record(context))]
    if records:
        rows = [f"| `{name.replace('|', chr(92) + '|')}` | {escaped(text)} |" for name, text in records]
        yield "\n".join(["| option | what |", "| --- | --- |", *rows])
