"""Command groups that other parts add commands to, by entry points."""

from importlib.metadata import entry_points
from typing import Any

import click


class ExtensibleGroup(click.Group):
    """Has its own commands, and those of an entry-point group, each imported only when it is asked for."""

    def __init__(self, *args: Any, extended_by: str, **options: Any) -> None:
        """Make the group.

        Args:
            extended_by: the entry-point group, such as ``rdukit.box.commands``.
        """
        super().__init__(*args, **options)
        self.extended_by = extended_by

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *(point.name for point in entry_points(group=self.extended_by))})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        own = super().get_command(ctx, cmd_name)
        found = [] if own is not None else [p for p in entry_points(group=self.extended_by) if p.name == cmd_name]
        return found[0].load() if found else own
