"""The ``rdukit`` command, and building blocks that the commands of all parts share."""

from rdukit.cli.app import cli, exit_on_error, main, run_command

__all__ = ["cli", "exit_on_error", "main", "run_command"]
