"""Checks of commands that pages print: they exist, with the options and the number of arguments that are given."""

import re
import shlex
from collections.abc import Iterator
from importlib import import_module
from typing import Final

import click

from rdukit.cli.app import cli

#: Tools of a node, by name, and the module of each.
TOOLS: Final = {
    **{name: f"rdukit_node.cli.{name}" for name in ("snconfig", "snddrstat", "snfadm", "snpciestat", "sntilestat")},
    "sambanova_exporter": "rdukit_node.cli.exporter",
    "slurmfeeder": "rdukit_node.cli.slurmfeeder",
    "snprof": "rdukit_runtime.profile.snprof",
}
BLOCK: Final = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
#: Languages of blocks that have commands.
SHELLS: Final = ("", "bash", "console", "sh")
COMMAND: Final = re.compile(rf"^ *(?:\$ )?((?:rdukit|{'|'.join(TOOLS)}) .*)$", re.MULTILINE)

#: What ends a command in a line of a shell.
ENDS: Final = ("|", ">", "&", "&&", "||", ";", "2>&1")


def printed_commands(text: str) -> Iterator[str]:
    """Yield the commands of ``rdukit`` and of a node's tools in a page's blocks of code.

    Synopses, which have options in brackets, and places of the reader's own, ``…``, are left out.
    """
    for language, block in BLOCK.findall(text):
        if language not in SHELLS:
            continue
        for line in COMMAND.findall(re.sub(r"\\\n *", "", block)):
            if " [" not in line and "|" not in line.partition(" #")[0].partition(" | ")[0]:
                yield line


def check_command(line: str) -> None:
    """Fail unless ``line`` is a command with options that it has; nothing is run."""
    words = _words_of(line)
    if words[0] == "rdukit":
        command: click.Command = cli
    else:
        assert words[0] in TOOLS, line
        command = getattr(import_module(TOOLS[words[0]]), words[0])
    rest = words[1:]
    context = click.Context(command)
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        found = command.get_command(context, rest[0])
        assert found is not None, f"{line}: there is no {rest[0]!r}"
        command, rest = found, rest[1:]
        context = click.Context(command)
    try:
        _, left, _ = command.make_parser(context).parse_args(list(rest))
    except click.UsageError as cause:
        raise AssertionError(f"{line}: {cause.format_message()}") from cause
    assert not left or command.allow_extra_args, f"{line}: it does not take {' '.join(left)}"


def _words_of(line: str) -> list[str]:
    """Split the first command of a line as a shell does."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError as cause:
        raise AssertionError(f"{line}: a quotation mark is missing") from cause
    kept: list[str] = []
    for word in words:
        if word in ENDS:
            break
        kept.append(word.removesuffix(";"))
        if word.endswith(";"):
            break
    return [word for word in kept if word != "…"]
