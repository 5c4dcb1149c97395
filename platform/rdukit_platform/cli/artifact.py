"""``rdukit artifact``: list, show, fetch, add, pin and delete artifacts, and collect content."""

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from rdukit.cli.commands import JSON_OPTION, TOKEN_OPTION, ExtensibleGroup
from rdukit.errors import Conflict, NotFound
from rdukit.files.atomic import atomic_target
from rdukit.units import format_bytes

if TYPE_CHECKING:
    from rdukit_platform.cli.client import ApiClient


@click.group(cls=ExtensibleGroup)
def artifact() -> None:
    """List, show, fetch, add, pin and delete artifacts of the platform.

    Example: rdukit artifact list --kind checkpoint
    """


@artifact.command("list")
@click.option("--kind", default=None, help="Only artifacts of this kind.")
@click.option("--job", default=None, help="Only artifacts that this job made.")
@click.option("--limit", type=click.IntRange(1, 200), default=50, show_default=True, help="How many at most.")
@click.option("--cursor", default=None, help="next_cursor of the page before.")
@JSON_OPTION
@TOKEN_OPTION
def list_(kind: str | None, job: str | None, limit: int, cursor: str | None, as_json: bool) -> None:
    """List artifacts, newest first.

    Example: rdukit artifact list --kind pef
    """
    from rdukit_platform.cli import show
    from rdukit_platform.cli.client import ApiClient

    with ApiClient.of_home() as client:
        page = client.get("/v1/artifacts", kind=kind, job=job, limit=limit, cursor=cursor)
        use = client.get("/v1/artifacts/usage")
    if as_json:
        show.print_json(page)
        return
    rows = [
        (a["id"], a["kind"], "folder" if a["is_folder"] else "file", format_bytes(a["bytes"]), a["job_id"] or "-",
         show.ago(a["created_at"]), a["digest"][:12], f"{a['name']}{' (pinned)' * (a['pinned_at'] is not None)}")
        for a in page["artifacts"]
    ]  # fmt: skip
    show.print_table(("ID", "KIND", "FORM", "SIZE", "JOB", "AGE", "SHA256", "NAME"), rows)
    click.echo(show.describe_use(use), err=True)
    if page["next_cursor"]:
        click.echo(f"more with: --cursor {page['next_cursor']}", err=True)


@artifact.command("show")
@click.argument("artifact_id")
@JSON_OPTION
@TOKEN_OPTION
def show_(artifact_id: str, as_json: bool) -> None:
    """Show one artifact, its files and its lineage.

    Example: rdukit artifact show art-7k2m9x41abcd
    """
    from rdukit_platform.cli import show
    from rdukit_platform.cli.client import ApiClient

    with ApiClient.of_home() as client:
        found = client.get(f"/v1/artifacts/{artifact_id}")
        lineage = client.get(f"/v1/artifacts/{artifact_id}/lineage")
    if as_json:
        show.print_json({**found, "lineage": lineage})
        return
    click.echo(f"{found['id']}  {found['name']}\nkind    {found['kind']}\nsize    {format_bytes(found['bytes'])}")
    click.echo(f"sha256  {found['digest']}\nmade by {found['job_id'] or 'upload'} at {show.clock(found['created_at'])}")
    for file in found["files"] or []:
        click.echo(f"file    {file['path']}  {format_bytes(file['bytes'])}")
    for link in lineage["links"]:
        click.echo(f"lineage {link['child']} was made from {link['parent']} ({link['slot']}) by {link['job_id']}")


@artifact.command()
@click.argument("artifact_id")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="New file or folder to write.")
@TOKEN_OPTION
def get(artifact_id: str, output: Path) -> None:
    """Fetch an artifact's content.

    Example: rdukit artifact get art-7k2m9x41abcd -o checkpoint/
    """
    from rdukit_platform.cli.client import ApiClient

    if output.exists():
        raise Conflict(f"{output} exists already; name a path that does not")
    with ApiClient.of_home() as client:
        found = client.get(f"/v1/artifacts/{artifact_id}")
        if found["is_folder"]:
            _fetch_folder(client, found, output)
        else:
            with atomic_target(output) as temporary, temporary.open("wb") as stream:
                client.download(f"/v1/artifacts/{artifact_id}/content", stream, found["digest"])
    click.echo(f"{output}: {format_bytes(found['bytes'])}", err=True)


@artifact.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--kind", required=True, help="What it is: pef, dataset, checkpoint, …")
@click.option("--name", default=None, help="Name of the artifact (default: the path's last part).")
@JSON_OPTION
@TOKEN_OPTION
def add(path: Path, kind: str, name: str | None, as_json: bool) -> None:
    """Add a file or a folder as an artifact. Prints its id.

    Example: rdukit artifact add digits/ --kind data
    """
    from rdukit_platform.cli import show
    from rdukit_platform.cli.client import ApiClient, read_folder

    if not path.exists():
        raise NotFound(f"there is nothing at {path}")
    files = read_folder(path) if path.is_dir() else [(path.name, path)]
    form = {"kind": kind, "name": name or path.name, "folder": str(path.is_dir()).lower()}
    with ExitStack() as stack, ApiClient.of_home() as client:
        added = client.upload([(title, stack.enter_context(file.open("rb"))) for title, file in files], form)
    if as_json:
        show.print_json(added)
    else:
        click.echo(added["id"])


@artifact.command()
@click.argument("artifact_id")
@JSON_OPTION
@TOKEN_OPTION
def delete(artifact_id: str, as_json: bool) -> None:
    """Delete an artifact. Refused while it is pinned, or a job that has not ended, an expert or a box needs it.

    Example: rdukit artifact delete art-7k2m9x41abcd
    """
    from rdukit_platform.cli import show
    from rdukit_platform.cli.client import ApiClient

    with ApiClient.of_home() as client:
        gone = client.delete(f"/v1/artifacts/{artifact_id}")
    if as_json:
        show.print_json(gone)
        return
    kept = f"; {', '.join(gone['same_content'])} has the same content, which stays" if gone["same_content"] else ""
    click.echo(f"deleted {gone['id']} ({format_bytes(gone['bytes'])}){kept}")


@artifact.command()
@click.argument("artifact_id")
@JSON_OPTION
@TOKEN_OPTION
def pin(artifact_id: str, as_json: bool) -> None:
    """Keep an artifact: whatever its age, and from being deleted.

    Example: rdukit artifact pin art-7k2m9x41abcd
    """
    from rdukit_platform.cli import show
    from rdukit_platform.cli.client import ApiClient

    with ApiClient.of_home() as client:
        kept = client.put(f"/v1/artifacts/{artifact_id}/pin")
    show.print_json(kept) if as_json else click.echo(f"pinned {kept['id']}")


@artifact.command()
@click.argument("artifact_id")
@JSON_OPTION
@TOKEN_OPTION
def unpin(artifact_id: str, as_json: bool) -> None:
    """Take the pin of an artifact away.

    Example: rdukit artifact unpin art-7k2m9x41abcd
    """
    from rdukit_platform.cli import show
    from rdukit_platform.cli.client import ApiClient

    with ApiClient.of_home() as client:
        freed = client.delete(f"/v1/artifacts/{artifact_id}/pin")
    show.print_json(freed) if as_json else click.echo(f"unpinned {freed['id']}")


@artifact.command()
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@JSON_OPTION
@TOKEN_OPTION
def gc(dry_run: bool, as_json: bool) -> None:
    """Remove the content that no tenant's artifact names any more. Needs the scope admin.

    The scheduler does it every hour. Content younger than artifacts.grace_s stays.

    Example: rdukit artifact gc --dry-run
    """
    from rdukit_platform.cli import show
    from rdukit_platform.cli.client import ApiClient

    with ApiClient.of_home() as client:
        found = client.post(f"/v1/artifacts/gc?dry_run={str(dry_run).lower()}")
    if as_json:
        show.print_json(found)
        return
    did = "would remove" if dry_run else "removed"
    click.echo(
        f"{did} {found['removed']} blobs with {format_bytes(found['removed_bytes'])}; "
        f"kept {found['kept']} that artifacts name, and {found['young']} that are too young to tell"
    )


def _fetch_folder(client: "ApiClient", found: dict[str, Any], output: Path) -> None:
    # The folder gets its name when all its files are there.
    output.absolute().parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{output.name}.", suffix=".part", dir=output.absolute().parent) as incoming:
        folder = Path(incoming) / "content"
        folder.mkdir()
        for file in found["files"]:
            with atomic_target(folder / file["path"]) as temporary, temporary.open("wb") as stream:
                client.download(f"/v1/artifacts/{found['id']}/content", stream, file["digest"], path=file["path"])
        folder.rename(output)
