"""``rdukit backup`` and ``rdukit restore``."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rdukit.cli.commands import JSON_OPTION
from rdukit.errors import ContentDamaged
from rdukit.units import format_bytes
from rdukit_platform.settings import checked_home, current_home

if TYPE_CHECKING:
    from rdukit_platform.backup.manifest import BackupManifest
    from rdukit_platform.backup.write import OnStep


@click.command()
@click.argument("place", type=click.Path(path_type=Path))
@click.option("--verify", is_flag=True, help="Read the backup again, and compare every digest.")
@JSON_OPTION
def backup(place: Path, verify: bool, as_json: bool) -> None:
    """Back up a stopped or running platform: database, artifacts, settings, faults of the node.

    PLACE is a file that ends in .tar, or a folder. A folder keeps its content, so the next backup into it copies only
    new content, and continues an interrupted one. Run the command on the machine of the home folder, as its user.

    Example: rdukit backup /backups/monday --verify

    Example: rdukit backup monday.tar
    """
    from rdukit_platform.backup.write import verify_backup, write_backup

    place = place.expanduser().absolute()
    with _steps() as on_step:
        manifest = write_backup(checked_home(), place, time.time(), on_step)
        if verify:
            verify_backup(place, on_step)
    _report(manifest, place, as_json, {"verified": verify})
    if manifest.damaged:
        raise ContentDamaged(
            f"the backup lacks {len(manifest.damaged)} blobs that are missing or damaged in the store: "
            f"{', '.join(manifest.damaged[:5])}"
        )


@click.command()
@click.argument("place", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Replace the state in the home folder and the database.")
@click.option("--database", metavar="URL", default="", help="Database to write; sqlite: a file in the home folder.")
@click.option("--verify", is_flag=True, help="Only verify every digest of the backup; restore nothing.")
@JSON_OPTION
def restore(place: Path, force: bool, database: str, verify: bool, as_json: bool) -> None:
    """Restore a backup into an empty $RDUKIT_HOME and its database.

    A backup of an older version is migrated. Jobs that had not ended run again when the platform starts. The same
    command continues an interrupted restore; until then nothing starts in the home folder.

    Example: rdukit restore /backups/monday

    Example: rdukit restore /backups/monday --verify
    """
    from rdukit_platform.backup.restore import restore_backup
    from rdukit_platform.backup.write import verify_backup

    place = place.expanduser().absolute()
    with _steps() as on_step:
        if verify:
            manifest = verify_backup(place, on_step)
            more: dict[str, Any] = {"verified": True}
        else:
            home = current_home()
            done = restore_backup(
                home, place, time.time(), database_url=database, is_forced=force, on_step=on_step
            )  # fmt: skip
            manifest = done.manifest
            more = {"home": str(home.folder), "migrated": done.is_migrated, "notes": done.notes}
    _report(manifest, place, as_json, more)


def _report(manifest: "BackupManifest", place: Path, as_json: bool, more: dict[str, Any]) -> None:
    from rdukit_platform.backup.manifest import BLOBS
    from rdukit_platform.cli.show import print_json

    blobs = sum(file.path.startswith(f"{BLOBS}/") for file in manifest.files)
    facts = {
        "backup": manifest.id, "place": str(place), "created_at": manifest.created_at, "rdukit": manifest.rdukit,
        "schema": manifest.schema, "database": manifest.database, "rows": dict(manifest.rows), "blobs": blobs,
        "bytes": manifest.bytes, "damaged": list(manifest.damaged), **more,
    }  # fmt: skip
    if as_json:
        print_json(facts)
        return
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(manifest.created_at))
    click.echo(f"backup    {manifest.id} of {when}, rdukit {manifest.rdukit}, schema {manifest.schema}")
    click.echo(f"place     {place}")
    click.echo(f"database  {sum(manifest.rows.values())} rows of {manifest.database}")
    click.echo(f"content   {blobs} blobs, {format_bytes(manifest.bytes)} in total")
    if more.get("verified"):
        click.echo("verified  every file matches its digest")
    if "home" in more:
        click.echo(f"home      {more['home']}{', migrated to the newest schema' if more['migrated'] else ''}")
        click.echo("next      rdukit up; it writes a new administrator's token into the file token")
        for note in more["notes"]:
            click.echo(f"note      {note}")


@contextmanager
def _steps() -> Iterator["OnStep"]:
    """Yield the progress callback: a bar on a terminal, otherwise nothing."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

    from rdukit_platform.backup.write import Step

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda step: None
        return
    columns = (TextColumn("{task.description:<22}"), BarColumn(bar_width=30), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=None)

        def show(step: Step) -> None:
            bar.update(task, description=step.what, completed=step.done, total=step.total or None)

        yield show
