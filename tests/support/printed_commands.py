"""Checks of commands that pages print: they exist, with the options that are given."""

import shlex

import click

from rdukit.cli.app import cli


def check_command(line: str) -> None:
    """Fail unless ``line`` is a command of ``rdukit`` with options that it has; nothing is run."""
    words = shlex.split(line)
    assert words[0] == "rdukit", line
    command: click.Command = cli
    rest = words[1:]
    while isinstance(command, click.Group):
        found = command.get_command(click.Context(command), rest[0])
        assert found is not None, line
        command, rest = found, rest[1:]
    options = {name for parameter in command.params for name in parameter.opts}
    assert {word for word in rest if word.startswith("--")} <= options | {"--help"}, line
