"""``rdukit node install`` and ``rdukit node unit``: the vendor's places under a prefix."""

import json
import os
import sys
from pathlib import Path

import click

from rdukit.hardware import NODES, find_node
from rdukit.settings import resolve
from rdukit_node.install import install as installation
from rdukit_node.install.service_units import UnitPlaces, exporter_unit, snd_unit
from rdukit_node.settings import PLATFORM


@click.command()
@click.argument("root", type=click.Path(path_type=Path, file_okay=False))
@click.option("--platform", default=None, help=f"One of {', '.join(NODES)} (default {PLATFORM.default}).")
@click.option("--uninstall", is_flag=True, help="Remove what this command put there, and nothing else.")
@click.option("--json", "as_json", is_flag=True, help="Print what was done as JSON.")
def install(root: Path, platform: str | None, uninstall: bool, as_json: bool) -> None:
    """Put tools, units, folders and databases where programs and containers expect them.

    ROOT is the prefix of the places: / for this machine (needs root), or any folder. Existing files that are not this
    command's are never touched. With / the service is then started by: systemctl enable --now snd

    Example: rdukit node install /srv/node0 --platform SN30-8
    """
    root = Path(os.path.abspath(root))
    if uninstall:
        changes = installation.uninstall(root)
    else:
        from rdukit_node.install.plan import plan_installation  # protobuf: the other commands do without

        spec = find_node(resolve(PLATFORM, platform))
        changes = installation.install(root, plan_installation(root, Path(sys.executable), spec))
    if as_json:
        click.echo(json.dumps({"root": str(root), **changes.as_json()}, sort_keys=True))
        return
    for verb, paths in changes.as_json().items():
        if verb != "unchanged":
            for path in paths:
                click.echo(f"{verb:8} {root / path}")
    counts = ", ".join(f"{len(paths)} {verb}" for verb, paths in changes.as_json().items() if paths)
    click.echo(f"{'uninstalled' if uninstall else 'installed'} under {root}: {counts or 'nothing to do'}", err=True)


@click.command()
@click.argument("root", type=click.Path(path_type=Path, file_okay=False), default=Path("/"))
@click.option("--exporter", is_flag=True, help="The exporter's unit instead of the daemon's.")
def unit(root: Path, exporter: bool) -> None:
    """Print the systemd unit of the node daemon. ROOT [default: /] is the prefix of the places that it names.

    Example: rdukit node unit > /etc/systemd/system/snd.service
    """
    places = UnitPlaces(Path(os.path.abspath(root)), Path(sys.executable))
    click.echo(exporter_unit(places) if exporter else snd_unit(places), nl=False)
